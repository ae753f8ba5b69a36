"""compare.png: one panel a figure, one bar a server, so that what a change bought and what it cost stand side by side."""

import itertools
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing

from loadtest.compare import Comparison, Figure
from loadtest.compare_output import number, ratio, shown_figures
from loadtest.pictures import INK, MUTED, PAPER, STYLE, TIER_COLOURS

COMPARE_PICTURE = "compare.png"

PANELS_A_ROW = 3
"""More would leave no room for letters that can be read on a page."""
FULL_AXIS = 1.15
"""The axis by the largest value: a bar's length is what is compared, so the bars have most of it."""

_PANELS = ("output_token_rate", "goodput_rate", "latency_p95_ms", "ttft_p95_ms", "tpot_p95_ms")


def draw_comparison(folder: Path, comparison: Comparison) -> Path:
    """Write it into the folder; its path."""
    figures = [figure for figure in shown_figures(comparison) if figure.key in _PANELS]
    figures.sort(key=lambda figure: _PANELS.index(figure.key))
    num_rows = max(-(-len(figures) // PANELS_A_ROW), 1)
    num_columns = max(-(-len(figures) // num_rows), 1)
    row_height = 1.15 + 0.5 * max(len(comparison.servers), 1)
    height = 0.95 + row_height * num_rows
    with rc_context(STYLE | {"font.size": 11.5}):
        drawing = Drawing(figsize=(11, height))
        panels = drawing.subplots(num_rows, num_columns, sharey=True, squeeze=False).flat
        longest = max((len(standing.name) for standing in comparison.servers), default=0)
        left = min(0.03 + 0.0095 * longest, 0.3)
        drawing.subplots_adjust(
            left=left, right=0.985, top=1 - 1.55 / height, bottom=0.35 / height, wspace=0.12, hspace=1.15 / (row_height - 1.15)
        )
        drawing.text(
            0.015, 1 - 0.3 / height, "The same traffic, one server after the other", fontsize=16, weight="bold", va="center"
        )
        words = f"{comparison.arrivals}, seed {comparison.seed}   ·   × is to the first"
        if comparison.num_rounds > 1:
            words += "   ·   lines are the range of the rounds"
        drawing.text(0.015, 1 - 0.65 / height, words, fontsize=11, color=MUTED, va="center")
        for axes, figure in itertools.zip_longest(panels, figures):
            if figure is None:
                axes.set_visible(False)
            else:
                _draw_panel(axes, figure, comparison)
        path = folder / COMPARE_PICTURE
        drawing.savefig(path, dpi=160, metadata={"Software": None})
    return path


def _draw_panel(axes: Axes, figure: Figure, comparison: Comparison) -> None:
    names = [standing.name for standing in comparison.servers]
    spreads = [standing.figures[figure.key] for standing in comparison.servers]
    values = [spread.median or 0.0 for spread in spreads]
    most = FULL_AXIS * max([*values, *(spread.high or 0.0 for spread in spreads), 1e-9])
    colours = [TIER_COLOURS[place % len(TIER_COLOURS)] for place in range(len(names))]
    axes.barh(range(len(names)), values, height=0.66, color=colours, alpha=0.9)
    for place, spread in enumerate(spreads):
        if len(spread.rounds) > 1 and spread.low is not None and spread.high is not None:
            axes.plot([spread.low, spread.high], [place + 0.24] * 2, color=INK, linewidth=1.6)
        words = f"{number(spread.median)}  {ratio(figure, spread, place)}".rstrip()
        is_inside = values[place] > most / 2
        at = most * 0.02 if is_inside else values[place] + most * 0.02
        axes.text(at, place, words, va="center", fontsize=11.5, color=PAPER if is_inside else INK)
    direction = "less is better" if figure.is_small_better else "more is better"
    axes.set_title(f"{figure.title} ({figure.unit})", fontsize=12, loc="left", pad=20, weight="bold")
    axes.text(0, 1.02, direction, transform=axes.transAxes, fontsize=10.5, color=MUTED, va="bottom")
    axes.set_xlim(0, most)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.locator_params(axis="x", nbins=4)
    axes.tick_params(axis="y", labelcolor=INK)
