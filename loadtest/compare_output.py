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
from loadtest.page import CSS
from loadtest.render import HOW_TO_INSTALL

TABLE_WIDTH = 160
PAGE_CSS = """
main { max-width: 1240px; }
table.figures th, table.figures td { padding: 8px 9px; vertical-align: top; }
table.figures th { white-space: normal; vertical-align: bottom; }
table.figures td b { font-weight: 650; } table.figures td span { display: block; color: var(--muted); font-size: 12px; }
table.servers td { text-align: left; vertical-align: top; }
table.servers td + td { white-space: normal; overflow-wrap: anywhere;
  font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
"""
COMPARE_FILE, COMPARE_PAGE = "compare.json", "compare.html"


def print_comparison(console: Console, comparison: Comparison) -> None:
    """Each cell: the median, below it the ratio to the first server's, and the range of the rounds."""
    table = Table(title=_describe(comparison), title_justify="left", title_style="dim", box=SIMPLE_HEAD)
    table.add_column("", no_wrap=True)
    figures = shown_figures(comparison)
    for figure in figures:
        table.add_column(f"{figure.title}\n{figure.unit}", justify="right", no_wrap=True)
    for place, standing in enumerate(comparison.servers):
        doubt = "\n[red]INVALID[/red]" if "INVALID" in standing.verdicts else ""
        cells = ["\n".join(_lines(figure, standing.figures[figure.key], place)) for figure in figures]
        table.add_row(escape(standing.name) + doubt, *cells)
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


def ratio(figure: Figure, spread: Spread, place: int) -> str:
    """How many times the first server's; empty for that one itself, and for counts, which are read as they are."""
    value = spread.ratio
    if value is None or not place or not figure.unit:
        return ""
    if 0.0 < value < 0.0995:
        return f"×1/{1 / value:,.0f}"
    return f"×{value:.2f}" if value < 9.995 else f"×{value:,.1f}"


def _lines(figure: Figure, spread: Spread, place: int) -> list[str]:
    """`place` is the server's in the comparison, from 0."""
    lines = [number(spread.median)]
    if words := ratio(figure, spread, place):
        lines.append(words)
    if (low := number(spread.low)) != (high := number(spread.high)):
        lines.append(f"{low}…{high}")
    return lines


def _describe(comparison: Comparison) -> str:
    rounds = "1 round" if comparison.num_rounds == 1 else f"median and range of {comparison.num_rounds} rounds"
    return f"the same traffic for all: {comparison.arrivals}, seed {comparison.seed}, {rounds}; × is to the first"


def _render_page(comparison: Comparison, picture: bytes | None) -> str:
    figures = shown_figures(comparison)
    header = "".join(f"<th>{html.escape(f'{figure.title} {figure.unit}'.strip())}</th>" for figure in figures)
    rows = "".join(_page_row(standing, figures, place) for place, standing in enumerate(comparison.servers))
    image = ""
    if picture is not None:
        image = f'<img alt="The servers side by side" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
    reasons = "".join(f"<p>{html.escape(reason)}</p>" for reason in comparison.reasons)
    doubts = f'<div class="reasons"><p><b>These runs tell of the generator.</b></p>{reasons}</div>' if reasons else ""
    servers = "".join(
        f"<tr><td>{html.escape(standing.name)}</td><td>{html.escape(standing.server)}</td></tr>"
        for standing in comparison.servers
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Comparison · load test</title><style>{CSS}{PAGE_CSS}</style></head><body><main>
<h1>{len(comparison.servers)} servers, one traffic</h1>
<p class="muted">{html.escape(_describe(comparison))}</p>
{doubts}
{image}
<div class="scroll"><table class="figures"><tr><th></th>{header}</tr>{rows}</table></div>
<h2>The servers</h2>
<div class="scroll"><table class="servers">{servers}</table></div>
</main></body></html>
"""


def _page_row(standing: Standing, figures: list[Figure], place: int) -> str:
    doubt = "<span>INVALID</span>" if "INVALID" in standing.verdicts else ""
    cells = [f"<td><b>{html.escape(standing.name)}</b>{doubt}</td>"]
    for figure in figures:
        median, *others = _lines(figure, standing.figures[figure.key], place)
        cells.append(f"<td><b>{median}</b>{''.join(f'<span>{line}</span>' for line in others)}</td>")
    return f"<tr>{''.join(cells)}</tr>"
