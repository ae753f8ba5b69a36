"""compare.png: one panel a figure, one bar a server, so that what a change bought and what it cost stand side by side."""

from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from loadtest.compare import Comparison, Figure
from loadtest.compare_output import number, ratio, shown_figures
from loadtest.pictures import INK, MUTED, STYLE, TIER_COLOURS

COMPARE_PICTURE = "compare.png"

_PANELS = ("output_token_rate", "goodput_rate", "latency_p95_ms", "ttft_p95_ms", "tpot_p95_ms")


def draw_comparison(folder: Path, comparison: Comparison) -> Path:
    """Write it into the folder; its path."""
    figures = [figure for figure in shown_figures(comparison) if figure.key in _PANELS]
    figures.sort(key=lambda figure: _PANELS.index(figure.key))
    height = 1.7 + 0.55 * len(comparison.servers)
    with rc_context(STYLE):
        drawing = Drawing(figsize=(13, height))
        panels = drawing.subplots(1, max(len(figures), 1), sharey=True, squeeze=False, gridspec_kw={"wspace": 0.12})[0]
        longest = max((len(standing.name) for standing in comparison.servers), default=0)
        drawing.subplots_adjust(left=min(0.03 + 0.0075 * longest, 0.3), right=0.985, top=1 - 1.0 / height, bottom=0.35 / height)
        title_y = 1 - 0.3 / height
        drawing.text(0.015, title_y, "The same traffic, one server after the other", fontsize=15, weight="bold", va="center")
        words = f"{comparison.arrivals}, seed {comparison.seed}   ·   × is to the first   ·   lines are the range of the rounds"
        drawing.text(0.985, title_y, words, fontsize=9.5, color=MUTED, ha="right", va="center")
        for axes, figure in zip(panels, figures, strict=False):
            _draw_panel(axes, figure, comparison)
        path = folder / COMPARE_PICTURE
        drawing.savefig(path, dpi=160, metadata={"Software": None})
    return path


def _draw_panel(axes: Axes, figure: Figure, comparison: Comparison) -> None:
    names = [standing.name for standing in comparison.servers]
    spreads = [standing.figures[figure.key] for standing in comparison.servers]
    values = [spread.median or 0.0 for spread in spreads]
    most = max([*values, *(spread.high or 0.0 for spread in spreads), 1e-9])
    colours = [TIER_COLOURS[place % len(TIER_COLOURS)] for place in range(len(names))]
    axes.barh(range(len(names)), values, height=0.62, color=colours, alpha=0.85)
    for place, spread in enumerate(spreads):
        if len(spread.rounds) > 1 and spread.low is not None and spread.high is not None:
            axes.plot([spread.low, spread.high], [place, place], color=INK, linewidth=1.3)
        words = number(spread.median)
        if spread.ratio is not None and place:
            words += f"  {ratio(spread.ratio)}"
        axes.text((spread.high or 0.0) + most * 0.03, place, words, va="center", fontsize=9.5)
    direction = "less is better" if figure.is_small_better else "more is better"
    axes.set_title(f"{figure.title} ({figure.unit})", fontsize=10.5, loc="left", pad=18, weight="bold")
    axes.text(0, 1.02, direction, transform=axes.transAxes, fontsize=8.5, color=MUTED, va="bottom")
    axes.set_xlim(0, most * 1.75)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.locator_params(axis="x", nbins=4)
    axes.tick_params(axis="y", labelcolor=INK)
