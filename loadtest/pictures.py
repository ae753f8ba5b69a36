"""Two pictures of a run, drawn from its raw samples: latency over time, and the percentile curve.

Latency over time shows what a table hides: when it happened, how long it lasted, who was refused meanwhile. The percentile
curve spreads the tail over a logarithmic axis, where a table has three numbers of it. matplotlib comes with the extra
`loadtest`; this module is imported only when pictures are asked for.
"""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from loadtest.report import Report
from loadtest.samples import NOT_ERRORS, REJECTIONS, Ending, Samples
from loadtest.stats import Window, latencies, windows

LATENCY_PICTURE = "latency.png"
PERCENTILE_PICTURE = "percentiles.png"

MAX_DOTS = 20_000
"""More would paint the picture black, and say no more."""

WINDOW_WIDTHS_S = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Spans of time that a reader can count with."""
MIN_WINDOW_S = 0.25
"""Narrower windows, though full of answers, would draw noise: only a short run has them."""
MIN_WINDOWS = 10
"""Fewer would draw no course over time."""
ANSWERS_A_WINDOW = 200
"""So many give a p95 that means something."""
MAX_MARKED_WINDOWS = 60
"""So few are marked by points, since a window between two without answers has no line."""

INK, MUTED, GRID, PAPER = "#1d2733", "#6b7785", "#e6eaee", "#ffffff"
BLUE, ORANGE, RED, AMBER, TEAL = "#2f6fb5", "#d9822b", "#c43d3d", "#e0a92e", "#2a9d8f"
TIER_COLOURS = (BLUE, TEAL, ORANGE, "#7c5cab", "#5b6b7b")

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": "#c5ccd3",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
}


def draw_pictures(folder: Path, report: Report, samples: Samples) -> list[Path]:
    """Write both pictures into the folder; their paths. Without a good answer there is nothing to draw, and no picture."""
    drawn: list[Path] = []
    if not report.latency_s.count:
        return drawn
    with rc_context(STYLE):
        for name, figure in (
            (LATENCY_PICTURE, _draw_latency(report, samples)),
            (PERCENTILE_PICTURE, _draw_percentiles(report, samples)),
        ):
            figure.savefig(folder / name, dpi=160, metadata={"Software": None})
            drawn.append(folder / name)
    return drawn


def _draw_latency(report: Report, samples: Samples) -> Figure:
    figure = Figure(figsize=(11, 6.4))
    upper, lower = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3.2, 1], "hspace": 0.12})
    figure.subplots_adjust(left=0.075, right=0.975, top=0.83, bottom=0.085)
    width_s = window_width(report)
    spans = windows(samples, width_s=width_s, end_s=report.measured_s)
    title(figure, report, "Latency over time")
    _draw_dots(upper, report, samples)
    _draw_span_lines(upper, spans, width_s, report.measured_s)
    top_ms = _top_of(report, samples) * 1e3
    if report.slo_s is not None:
        _draw_slo(upper, report.slo_s * 1e3, top_ms)
    upper.set(ylim=(0, top_ms), ylabel="latency (ms), by time of asking", xlim=(0, report.measured_s))
    upper.yaxis.set_major_locator(MaxNLocator(6))
    upper.tick_params(labelbottom=False)
    legend = upper.legend(loc="lower left", bbox_to_anchor=(-0.01, 0.995), ncols=6, handletextpad=0.5, columnspacing=1.6)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
            if isinstance(handle, PathCollection):
                handle.set_sizes([50.0])
    _draw_rates(lower, spans, width_s, report.measured_s)
    lower.set(xlabel="seconds since the start of the run")
    figure.align_ylabels((upper, lower))
    return figure


def _draw_slo(axes: Axes, slo_ms: float, top_ms: float) -> None:
    axes.axhline(slo_ms, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), zorder=2)
    if slo_ms < top_ms:
        axes.annotate(
            f"SLO {ms(slo_ms / 1e3)}",
            (1, slo_ms),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 4),
            textcoords="offset points",
            ha="right",
            color=MUTED,
            fontsize=9.5,
        )


def _draw_dots(axes: Axes, report: Report, samples: Samples) -> None:
    """Every request as a dot where it was meant to leave; a fair draw of them when there are very many."""
    good, rejected, failed = [], [], []
    for row, code in enumerate(samples.ending):
        if code == Ending.OK:
            good.append(row)
        elif code in REJECTIONS:
            rejected.append(row)
        elif code not in NOT_ERRORS:
            failed.append(row)
    rng = random.Random(report.seed)
    for rows, colour, marker, size, alpha, label in (
        (good, BLUE, ".", _size(len(good)), _alpha(len(good)), f"answers ({len(good):,})"),
        (rejected, AMBER, ".", _size(len(rejected)) + 2.0, 0.5, f"refused ({len(rejected):,})"),
        (failed, RED, "x", 26.0, 0.9, f"errors ({len(failed):,})"),
    ):
        if not rows:
            continue
        shown = rows if len(rows) <= MAX_DOTS else rng.sample(rows, MAX_DOTS)
        axes.scatter(
            [samples.planned_at[row] for row in shown],
            [(samples.ended_at[row] - samples.planned_at[row]) * 1e3 for row in shown],
            color=colour,
            marker=marker,
            s=size,
            alpha=alpha,
            linewidths=0 if marker == "." else 1.1,
            label=label,
            rasterized=True,
            zorder=1.5 if marker == "." else 4,
        )


def _draw_span_lines(axes: Axes, spans: Sequence[Window], width_s: float, end_s: float) -> None:
    centres = [(span.at_s + min(span.at_s + width_s, end_s)) / 2 for span in spans]
    p50 = [math.nan if span.p50_s is None else span.p50_s * 1e3 for span in spans]
    p95 = [math.nan if span.p95_s is None else span.p95_s * 1e3 for span in spans]
    style: Any = {"linewidth": 2, "zorder": 3, "solid_capstyle": "round"}
    if len(spans) <= MAX_MARKED_WINDOWS:
        style |= {"marker": "o", "markersize": 4.5}
    for values, colour, name in ((p95, ORANGE, "p95"), (p50, INK, "p50")):
        if not all(map(math.isnan, values)):
            axes.plot(centres, values, color=colour, label=f"{name} of {width_s:.3g} s", **style)


def _draw_rates(axes: Axes, spans: Sequence[Window], width_s: float, end_s: float) -> None:
    edges = [*(span.at_s for span in spans), end_s]
    completed, offered = rates(spans, width_s, end_s)
    axes.stairs(completed, edges, fill=True, color=TEAL, alpha=0.28, label="answered")
    axes.stairs(completed, edges, color=TEAL, linewidth=1.4)
    axes.stairs(offered, edges, color=INK, linewidth=1.2, linestyle=(0, (2, 1.5)), label="offered")
    axes.set(ylabel="requests/s", ylim=(0, (max([*offered, *completed]) or 1.0) * 1.25))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.legend(loc="upper right", ncols=2, fontsize=9.5, borderaxespad=0.1, handlelength=1.6)


def rates(spans: Sequence[Window], width_s: float, end_s: float) -> tuple[list[float], list[float]]:
    """Answered and offered requests per second of each window, the last of which ends with the run."""
    widths_s = [max(min(width_s, end_s - span.at_s), 1e-9) for span in spans]
    completed = [span.completed / seconds for span, seconds in zip(spans, widths_s, strict=True)]
    return completed, [span.offered / seconds for span, seconds in zip(spans, widths_s, strict=True)]


def _draw_percentiles(report: Report, samples: Samples) -> Figure:
    figure = Figure(figsize=(11, 5.4))
    axes = figure.subplots()
    figure.subplots_adjust(left=0.075, right=0.975, top=0.85, bottom=0.115)
    title(figure, report, "Latency by percentile")
    num_most = 1
    for colour, tier in zip(TIER_COLOURS, report.tiers, strict=False):
        ordered = sorted(latencies(samples, tier=tier))
        if not ordered:
            continue
        num_most = max(num_most, len(ordered))
        ranks, values = curve(ordered)
        label = f"{tier}: {len(ordered):,} answers, p95 {ms(report.tiers[tier].latency_s.p95)}"
        axes.plot(ranks, values, color=colour, linewidth=2.2, label=label, drawstyle="steps-post", solid_capstyle="round")
    set_percentile_axis(axes, num_most)
    axes.set(ylim=(0, None), ylabel="latency (ms)", xlabel="percentile of good answers")
    if report.slo_s is not None and report.slo_s * 1e3 < axes.get_ylim()[1]:
        axes.axhline(report.slo_s * 1e3, color=MUTED, linewidth=1, linestyle=(0, (4, 3)), label=f"SLO {ms(report.slo_s)}")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", borderaxespad=0.8)
    return figure


def set_percentile_axis(axes: Axes, num_most: int) -> None:
    """Percentiles on a logarithmic axis, as far as so many samples reach."""
    nines = [share for share in (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999) if 1 - share >= 0.5 / num_most]
    axes.set_xscale("log")
    axes.set_xlim(1.0, max(1.0 / (1.0 - nines[-1]) * 2, 4))
    axes.xaxis.set_major_locator(FixedLocator([1.0 / (1.0 - share) for share in nines]))
    axes.xaxis.set_major_formatter(FixedFormatter(["0", *(f"p{share * 100:.5g}" for share in nines[1:])]))
    axes.xaxis.set_minor_locator(NullLocator())


def curve(ordered: Sequence[float]) -> tuple[list[float], list[float]]:
    """Points (1 / (1 - part), ms) of the sorted samples: dense in the tail, about 400 in all."""
    num = len(ordered)
    ranks = {min(int(num * (1.0 - math.exp(-step / 40.0))), num - 1) for step in range(600)} | set(range(max(num - 50, 0), num))
    chosen = sorted(ranks)
    return [num / (num - rank) for rank in chosen], [ordered[rank] * 1e3 for rank in chosen]


def title(figure: Figure, report: Report, what: str, figures: str = "") -> None:
    """The heading; `figures` instead of those of latency."""
    figure.text(0.02, 0.955, what, fontsize=16, fontweight="bold", va="center")
    p50, p95, p99 = (ms(value) for value in (report.latency_s.p50, report.latency_s.p95, report.latency_s.p99))
    words = f"{_rate(report.offered_rate)} requests/s, {report.arrivals}, {round(report.duration_s, 1):g} s   ·   "
    words += figures or f"p50 {p50}   p95 {p95}   p99 {p99}   ·   good {_rate(report.goodput_rate)}/s"
    figure.text(0.02, 0.905, words, fontsize=10.5, color=MUTED, va="center")
    if not report.is_valid:
        figure.text(
            0.98, 0.955, "INVALID: the generator's limit, not the server's", color=RED, ha="right", va="center", weight="bold"
        )


def window_width(report: Report) -> float:
    """Seconds: enough for some hundred answers a window, so that its p95 means something, and at most a tenth of the run."""
    most_s = max(report.measured_s / MIN_WINDOWS, 1e-3)
    wanted_s = ANSWERS_A_WINDOW / max(report.throughput_rate, 1e-9)
    narrow = [width_s for width_s in WINDOW_WIDTHS_S if width_s <= most_s]
    if not narrow:
        return most_s
    return next((width_s for width_s in narrow if width_s >= max(wanted_s, MIN_WINDOW_S)), narrow[-1])


def _top_of(report: Report, samples: Samples) -> float:
    """The latency at the top of the picture, in seconds: all dots, unless a few outliers would flatten the rest."""
    slo_s = report.slo_s or 0.0
    highest_s, p999_s = report.latency_s.max or slo_s, report.latency_s.p999 or slo_s
    top_s = min(highest_s * 1.08, p999_s * 1.6)
    return max(top_s, slo_s * 1.08 if top_s > slo_s * 0.6 else 0.001, 0.001)


def _size(num: int) -> float:
    """Area of a dot in square points: a few dots must be found, many must not cover each other."""
    return min(max(12_000.0 / max(num, 1), 8.0), 60.0)


def _alpha(num: int) -> float:
    return min(max(3000.0 / max(num, 1), 0.18), 0.6)


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10.0 else f"{rate:.2g}"


def ms(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1e3:,.0f} ms" if seconds >= 0.0995 else f"{seconds * 1e3:.3g} ms"
