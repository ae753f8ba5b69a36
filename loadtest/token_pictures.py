"""The picture of generated text: how long callers wait for the first token, and how evenly the others follow.

TTFT and the pace of decoding have different causes and different scales, so each has its own percentile curve, as latency
has in `loadtest.pictures`. Gaps stand beside TPOT because the mean of an answer hides the stutter that its reader saw.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.pictures import MUTED, STYLE, TIER_COLOURS, curve, ms, set_percentile_axis, title
from loadtest.report import Report
from loadtest.samples import Ending, Samples

TOKEN_PICTURE = "tokens.png"

MAX_SORTED_GAPS = 1_000_000
"""More gaps are thinned evenly for the curve: it has some hundred points."""


def draw_token_picture(folder: Path, report: Report, samples: Samples) -> list[Path]:
    """Write it into the folder; its path, or nothing for a run without streamed text."""
    if samples.tokens is None or not report.ttft_s.count:
        return []
    path = folder / TOKEN_PICTURE
    with rc_context(STYLE):
        figure = Figure(figsize=(11, 4.9))
        left, right = figure.subplots(1, 2, gridspec_kw={"wspace": 0.2})
        figure.subplots_adjust(left=0.07, right=0.98, top=0.82, bottom=0.125)
        words = f"{report.tokens.output_rate:,.0f} output tokens/s" if report.tokens else ""
        title(figure, report, "Times of tokens", words)
        _draw_ttft(left, report, samples)
        _draw_pace(right, report, samples)
        figure.savefig(path, dpi=160, metadata={"Software": None})
    return [path]


def _draw_ttft(axes: Axes, report: Report, samples: Samples) -> None:
    tokens = samples.tokens
    assert tokens is not None
    by_tier = _by_tier(report, samples, lambda row: tokens.ttft_s(row, samples.planned_at[row]))
    for colour, (tier, values) in zip(TIER_COLOURS, by_tier.items(), strict=False):
        _draw_curve(axes, values, colour, f"{tier}: p95 {ms(report.tiers[tier].ttft_s.p95)}")
    _finish(axes, "time to first token (ms)", report.slo_ttft_s, max(map(len, by_tier.values())), "answers")


def _draw_pace(axes: Axes, report: Report, samples: Samples) -> None:
    tokens = samples.tokens
    assert tokens is not None
    by_tier = _by_tier(report, samples, tokens.tpot_s)
    for colour, (tier, values) in zip(TIER_COLOURS, by_tier.items(), strict=False):
        _draw_curve(axes, values, colour, f"{tier}: TPOT p95 {ms(report.tiers[tier].tpot_s.p95)}")
    gaps_s = sorted(tokens.gaps_s[:: len(tokens.gaps_s) // MAX_SORTED_GAPS + 1])
    _draw_curve(axes, gaps_s, MUTED, f"gaps, all: p99 {ms(report.gap_s.p99)}", linestyle=(0, (2, 1.2)))
    num_most = max(len(gaps_s), *map(len, by_tier.values()), 1)
    _finish(axes, "time per output token, and gaps (ms)", report.slo_tpot_s, num_most, "answers, and of gaps")


def _by_tier(report: Report, samples: Samples, measure: Callable[[int], float | None]) -> dict[str, list[float]]:
    """The measured values of good answers, sorted."""
    found: dict[str, list[float]] = {tier: [] for tier in report.tiers}
    for row, code in enumerate(samples.ending):
        if code == Ending.OK and (value := measure(row)) is not None:
            found[samples.senders[samples.sender[row]].tier].append(value)
    return {tier: sorted(values) for tier, values in found.items()}


def _draw_curve(
    axes: Axes, ordered: Sequence[float], colour: str, label: str, linestyle: str | tuple[float, tuple[float, float]] = "-"
) -> None:
    if ordered:
        ranks, values = curve(ordered)
        axes.plot(ranks, values, color=colour, linewidth=2.2, label=label, drawstyle="steps-post", linestyle=linestyle)


def _finish(axes: Axes, ylabel: str, slo_s: float | None, num_most: int, what: str) -> None:
    set_percentile_axis(axes, max(num_most, 1))
    axes.set(ylim=(0, None), ylabel=ylabel, xlabel=f"percentile of {what}")
    if slo_s is not None and slo_s * 1e3 < axes.get_ylim()[1]:
        axes.axhline(slo_s * 1e3, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label=f"SLO {ms(slo_s)}")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", borderaxespad=0.8)
