"""Shows a comparison: a table on the terminal, and compare.json, compare.html and compare.png in a folder."""

import base64
import html
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from loadtest.compare import FIGURES, Comparison, Figure, Spread, Standing
from loadtest.page import CSS, render_table
from loadtest.render import HOW_TO_INSTALL

TABLE_WIDTH = 160
COMPARE_FILE, COMPARE_PAGE = "compare.json", "compare.html"


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Each cell: the median, below it the ratio to the first server's, and the range of the rounds."""
    table = Table(title=_describe(comparison), title_justify="left", title_style="dim", box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    figures = shown_figures(comparison)
    for figure in figures:
        table.add_column(f"{figure.title}\n{figure.unit}", justify="right", no_wrap=True)
    for standing in comparison.servers:
        doubt = "\n[red]INVALID[/red]" if "INVALID" in standing.verdicts else ""
        table.add_row(escape(standing.name) + doubt, *("\n".join(_lines(standing.figures[figure.key])) for figure in figures))
    console.print()
    # Columns that are cut down to dots would say nothing: on a narrow terminal lines go on below instead.
    console.width = max(console.width, TABLE_WIDTH)
    console.print(table)
    for reason in comparison.reasons:
        console.print(f"INVALID  {reason}", style="red", highlight=False)


def write_comparison(folder: Path, comparison: Comparison) -> tuple[Path, str | None]:
    """Write the files into the folder; the page's path, and what is missing, if anything is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / COMPARE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(comparison), indent=2) + b"\n")
    page = folder / COMPARE_PAGE
    try:
        from loadtest.compare_picture import draw_comparison
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        page.write_text(_render_page(comparison, None), encoding="utf-8")
        return page, HOW_TO_INSTALL
    picture = draw_comparison(folder, comparison)
    page.write_text(_render_page(comparison, picture.read_bytes()), encoding="utf-8")
    return page, None


def shown_figures(comparison: Comparison) -> list[Figure]:
    """Those that any server has."""
    return [
        figure for figure in FIGURES if any(standing.figures[figure.key].median is not None for standing in comparison.servers)
    ]


def number(value: float | None) -> str:
    """Three digits that mean something."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 99.5 or value == round(value) else f"{value:.3g}"


def ratio(value: float) -> str:
    return f"×{value:.2f}" if value < 9.995 else f"×{value:,.1f}"


def _lines(spread: Spread) -> list[str]:
    lines = [number(spread.median)]
    if spread.ratio is not None:
        lines.append(ratio(spread.ratio))
    if len(spread.rounds) > 1 and spread.low is not None:
        lines.append(f"{number(spread.low)}…{number(spread.high)}")
    return lines


def _describe(comparison: Comparison) -> str:
    rounds = "1 round" if comparison.num_rounds == 1 else f"median and range of {comparison.num_rounds} rounds"
    return f"the same traffic for all: {comparison.arrivals}, seed {comparison.seed}, {rounds}; × is to the first"


def _render_page(comparison: Comparison, picture: bytes | None) -> str:
    figures = shown_figures(comparison)
    header = ["", *(f"{figure.title} {figure.unit}".strip() for figure in figures)]
    rows = [_page_row(standing, figures) for standing in comparison.servers]
    image = ""
    if picture is not None:
        image = f'<img alt="The servers side by side" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
    reasons = "".join(f"<p>{html.escape(reason)}</p>" for reason in comparison.reasons)
    doubts = f'<div class="reasons"><p><b>These runs tell of the generator.</b></p>{reasons}</div>' if reasons else ""
    servers = render_table(None, [[standing.name, standing.server] for standing in comparison.servers])
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Comparison · load test</title><style>{CSS}</style></head><body><main>
<h1>{len(comparison.servers)} servers, one traffic</h1>
<p class="muted">{html.escape(_describe(comparison))}</p>
{doubts}
{image}
{render_table(header, rows)}
<h2>The servers</h2>
{servers}
</main></body></html>
"""


def _page_row(standing: Standing, figures: list[Figure]) -> list[str]:
    return [standing.name, *(" · ".join(_lines(standing.figures[figure.key])) for figure in figures)]
