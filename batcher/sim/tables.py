"""A report as plain text: for people who read terminals, and for diffs.

Drawing is left to whoever has colours; a table here is lines of equal columns.
"""

from collections.abc import Sequence

from batcher.sim.report import Latencies, Report

_HEADINGS = ("", "requests", "ok", "refused", "other", "mean", "p50", "p95", "p99", "max")


def describe(report: Report) -> str:
    """One simulation: latency and outcomes by tier, then what the workers did."""
    rows = [(tier.name, *_counts(tier.outcomes), *_latencies(tier.latency)) for tier in report.tiers]
    if len(rows) > 1:
        rows.append(("all", *_counts(report.outcomes), *_latencies(report.latency)))
    lines = [
        table((_HEADINGS, *rows)),
        f"workers   busy {report.busy_share:.1%}, mean batch {_number(report.mean_batch)}, {named(report.batches, 'batches')}",
        f"endings   {named(report.outcomes, 'requests')}",
    ]
    if report.faults:
        lines.append(f"faults    {named(report.faults, 'workers given up')}")
    lines.append("latency in ms from the intended arrival, answers only, rounded up to 0.1 ms")
    return "\n".join(lines)


def compare(reports: dict[str, Report]) -> str:
    """Several simulations of the same traffic, a line each."""
    headings = ("policy", *_HEADINGS[1:], "mean batch", "busy", "batches")
    rows = [
        (
            name,
            *_counts(report.outcomes),
            *_latencies(report.latency),
            _number(report.mean_batch),
            f"{report.busy_share:.1%}",
            f"{report.num_batches:,}",
        )
        for name, report in reports.items()
    ]
    return table((headings, *rows))


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; the first is flush left, the others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join((row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))))
        for row in rows
    )


def _counts(outcomes: dict[str, int]) -> tuple[str, str, str, str]:
    """All, answered, refused, and what ended in any other way."""
    num_all = sum(outcomes.values())
    num_ok = outcomes.get("ok", 0)
    num_refused = sum(num for outcome, num in outcomes.items() if outcome.startswith("rejected"))
    return f"{num_all:,}", f"{num_ok:,}", f"{num_refused:,}", f"{num_all - num_ok - num_refused:,}"


def _latencies(latency: Latencies | None) -> tuple[str, ...]:
    if latency is None:
        return ("-",) * 5
    shown = (latency.mean_s, latency.p50_s, latency.p95_s, latency.p99_s, latency.max_s)
    return tuple(f"{1000.0 * value_s:.1f}" for value_s in shown)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def named(counts: dict[str, int], what: str) -> str:
    """A total and what it is made of."""
    details = ", ".join(f"{num:,} {name}" for name, num in counts.items())
    return f"{sum(counts.values()):,} {what}" + (f" ({details})" if details else "")
