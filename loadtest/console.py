"""Says on the terminal what was measured: the verdict first, since nothing else counts without it."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from loadtest.measures import Measures, TokenCounts
from loadtest.report import Report
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
    if report.ttft_s.count:
        console.print(_token_table(report))
    outcomes = " · ".join(f"{name.replace('_', ' ')} {num:,}" for name, num in report.outcomes.items())
    lines = [
        f"sent {report.sent:,} of {report.planned:,} planned at {report.offered_rate:,.1f}/s  →  {outcomes}",
        f"throughput {report.throughput_rate:,.1f}/s · {describe_slo(report)}: {report.goodput_rate:,.1f}/s"
        f" · mismatched {report.mismatched:,} · duplicated {report.duplicated:,}",
        f"generator: {describe_generator(report)}",
    ]
    if report.tokens is not None:
        lines.insert(2, describe_tokens(report.tokens, report.stop_reasons or {}))
    if report.concurrency is not None:
        lines.append(describe_loop(report.concurrency))
    if report.poison is not None:
        poison = report.poison
        lines.append(f"poison: sent {poison.sent:,} · failed as it must {poison.failed:,} · answered {poison.answered:,}")
    if report.mismatched > report.sent / 2:
        lines.append("most answers differ from their questions: where the server does not echo, say --check contains or none")
    for line in lines:
        console.print(line, highlight=False)


def describe_slo(report: Report) -> str:
    """What counts as good, such as `good within 500 ms`."""
    bounds = (("", report.slo_s), ("TTFT ", report.slo_ttft_s), ("TPOT ", report.slo_tpot_s))
    words = [f"{name}{bound * 1e3:g} ms" for name, bound in bounds if bound is not None]
    return f"good within {', '.join(words)}" if words else "good at any latency"


def describe_loop(concurrency: int) -> str:
    return (
        f"closed loop: {concurrency} at a time. Its latency is theirs alone; it is not corrected for callers who would have "
        "asked meanwhile (coordinated omission)"
    )


def describe_tokens(tokens: TokenCounts, stop_reasons: dict[str, int]) -> str:
    stops = " · ".join(f"{name.replace('_', ' ')} {num:,}" for name, num in stop_reasons.items() if num)
    return (
        f"tokens: input {tokens.input:,} · output {tokens.output:,} at {tokens.output_rate:,.1f}/s · "
        f"both {tokens.total_rate:,.1f}/s · stopped by {stops}"
    )


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
    rows: list[tuple[str, Quantiles]] = [("all", report.latency_s)]
    rows += [(tier, measures.latency_s) for tier, measures in report.tiers.items()]
    rows += [("all, from the real send", report.service_latency_s)]
    if report.rejection_latency_s.count:
        rows.append(("refusals", report.rejection_latency_s))
    return _quantile_table("latency in ms, good answers, from the intended send", rows)


def _token_table(report: Report) -> Table:
    rows = token_rows(report, report.tiers)
    return _quantile_table("tokens in ms, TTFT from the intended send", rows)


def token_rows(whole: Measures, tiers: dict[str, Measures]) -> list[tuple[str, Quantiles]]:
    """What there is to show about the times of tokens: TTFT, TPOT and gaps, of all and by tier."""
    rows: list[tuple[str, Quantiles]] = []
    for name, field in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("gaps", "gap_s")):
        rows.append((f"{name}, all", getattr(whole, field)))
        if len(tiers) > 1:
            rows += [(f"{name}, {tier}", getattr(measures, field)) for tier, measures in tiers.items()]
    return rows


def _quantile_table(title: str, rows: list[tuple[str, Quantiles]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="dim", box=SIMPLE_HEAD)
    table.add_column("")
    for name in ("samples", "p50", "p90", "p95", "p99", "p99.9", "max"):
        table.add_column(name, justify="right")
    for name, measured in rows:
        table.add_row(name, f"{measured.count:,}", *(_ms(getattr(measured, quantile)) for quantile in _QUANTILES))
    return table


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:,.1f}"
