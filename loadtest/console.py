"""Says on the terminal what was measured: the verdict first, since nothing else counts without it."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtest.report import Measures, Report
from loadtest.stats import Quantiles
from loadtest.sweep import Knee, Step

_QUANTILES = ("p50", "p90", "p95", "p99", "p999", "max")


def print_report(console: Console, report: Report) -> None:
    style = "bold white on green" if report.is_valid else "bold white on red"
    console.print()
    console.print(Text(f" {report.verdict} ", style=style), f" {report.url}  seed {report.seed}")
    for reason in report.reasons:
        console.print(f"  {reason}", style="red", highlight=False)
    console.print(_latency_table(report))
    outcomes = " · ".join(f"{name.replace('_', ' ')} {num:,}" for name, num in report.outcomes.items())
    lines = [
        f"sent {report.sent:,} of {report.planned:,} planned at {report.offered_rate:,.1f}/s  →  {outcomes}",
        f"throughput {report.throughput_rate:,.1f}/s · good within {report.slo_s * 1e3:g} ms: {report.goodput_rate:,.1f}/s"
        f" · mismatched {report.mismatched:,} · duplicated {report.duplicated:,}",
        f"generator: {describe_generator(report)}",
    ]
    if report.poison is not None:
        poison = report.poison
        lines.append(f"poison: sent {poison.sent:,} · failed as it must {poison.failed:,} · answered {poison.answered:,}")
    if report.mismatched > report.sent / 2:
        lines.append("most answers differ from their questions: where the server does not echo, say --check contains or none")
    for line in lines:
        console.print(line, highlight=False)


def describe_generator(report: Report) -> str:
    per_request_us = report.generator_cpu_s / max(report.sent, 1) * 1e6
    lag = report.send_lag_s
    return (
        f"CPU {report.generator_cpu_share:.0%} of a core ({per_request_us:.0f} µs a request) · "
        f"send lag p50 {_ms(lag.p50)}, p99 {_ms(lag.p99)}, max {_ms(lag.max)} ms · dropped {report.dropped:,}"
    )


def print_step(console: Console, step: Step) -> None:
    report = step.report
    latency = report.latency_s
    console.print(
        f"{step.rate:>9,.0f}/s  p50 {_ms(latency.p50):>6}  p95 {_ms(latency.p95):>6}  p99 {_ms(latency.p99):>6} ms"
        f"  ok {step.ok_share:7.2%}  {step.judgement.value.upper():<8} {'; '.join(report.reasons)}",
        highlight=False,
    )


def print_knee(console: Console, knee: Knee) -> None:
    if knee.rate is None:
        console.print(f"No rate met the SLO: {knee.describe_limit()}", style="bold")
    else:
        console.print(f"Knee: {knee.rate:,.0f}/s ({knee.describe_limit()})", style="bold", highlight=False)


def _latency_table(report: Report) -> Table:
    table = Table(
        title="latency in ms, good answers, from the intended send", title_justify="left", title_style="dim", box=SIMPLE_HEAD
    )
    table.add_column("")
    for name in ("samples", "p50", "p90", "p95", "p99", "p99.9", "max"):
        table.add_column(name, justify="right")
    rows: list[tuple[str, Quantiles]] = [("all", report.latency_s)]
    rows += [(tier, _latency(measures)) for tier, measures in report.tiers.items()]
    rows += [("all, from the real send", report.service_latency_s)]
    if report.rejection_latency_s.count:
        rows.append(("refusals", report.rejection_latency_s))
    for name, measured in rows:
        table.add_row(name, f"{measured.count:,}", *(_ms(getattr(measured, quantile)) for quantile in _QUANTILES))
    return table


def _latency(measures: Measures) -> Quantiles:
    return measures.latency_s


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.1f}"
