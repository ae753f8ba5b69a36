"""Says on the terminal what was measured: the verdict first, since nothing else counts without it."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from loadtest.measures import Measures, TokenCounts
from loadtest.outcomes import describe_outcomes, describe_statuses, describe_success, hints
from loadtest.report import Report
from loadtest.stats import Quantiles
from loadtest.sweep import Knee, Step

MIN_P999_SAMPLES = 1_000
"""Of fewer, p99.9 is the maximum over again."""


def print_report(console: Console, report: Report) -> None:
    style = "bold white on green" if report.is_valid else "bold white on red"
    console.print()
    doubt = describe_success(report)
    words = [Text(f" {report.verdict} ", style=style)] + ([Text(f" {doubt} ", style="bold black on yellow")] if doubt else [])
    console.print(*words, Text(f"{report.url}  seed {report.seed}"))
    for reason in report.reasons:
        console.print(f"  {reason}", style="red", highlight=False)
    if report.latency_s.count or report.rejection_latency_s.count:
        console.print(_latency_table(report))
    if report.ttft_s.count:
        console.print(_token_table(report))
    lines = [
        f"sent {report.sent:,} of {report.planned:,} planned at {report.offered_rate:,.1f}/s  →  {describe_outcomes(report)}",
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
    if set(report.statuses) - {"200"}:
        lines.append(f"HTTP statuses: {describe_statuses(report)}")
    for line in lines:
        console.print(line, highlight=False, markup=False)
    if report.first_error is not None:
        console.print(f"first error: {report.first_error}", style="red", highlight=False, markup=False)
    for hint in hints(report):
        console.print(hint, style="yellow", highlight=False, markup=False)


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
    if len(report.tiers) > 1:
        rows += [(tier, measures.latency_s) for tier, measures in report.tiers.items()]
    rows += [("all, real send", report.service_latency_s)]
    if report.rejection_latency_s.count:
        rows.append(("refusals", report.rejection_latency_s))
    return _quantile_table("latency in ms, good answers, from intended send", rows)


def _token_table(report: Report) -> Table:
    rows = token_rows(report, report.tiers)
    return _quantile_table("tokens in ms, TTFT from intended send", rows)


def token_rows(whole: Measures, tiers: dict[str, Measures]) -> list[tuple[str, Quantiles]]:
    """What there is to show about the times of tokens: TTFT, TPOT and gaps, of all and by tier."""
    rows: list[tuple[str, Quantiles]] = []
    for name, field in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("gaps", "gap_s")):
        rows.append((f"{name}, all", getattr(whole, field)))
        if len(tiers) > 1:
            rows += [(f"{name}, {tier}", getattr(measures, field)) for tier, measures in tiers.items()]
    return rows


def _quantile_table(title: str, rows: list[tuple[str, Quantiles]]) -> Table:
    """No cell is wrapped or cut: it fits 80 columns, unless a tier's name is very long."""
    names = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p999": "p99.9", "max": "max"}
    if max(measured.count for _, measured in rows) < MIN_P999_SAMPLES:
        del names["p999"]
    table = Table(title=title, title_justify="left", title_style="dim", box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in ("samples", *names.values()):
        table.add_column(name, justify="right", no_wrap=True)
    for label, measured in rows:
        table.add_row(escape(label), f"{measured.count:,}", *(_ms(getattr(measured, quantile)) for quantile in names))
    return table


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1e3:,.1f}" if seconds < 0.99995 else f"{seconds * 1e3:,.0f}"
