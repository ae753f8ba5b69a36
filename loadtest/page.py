"""report.html: a run on one page that can be mailed around. Pictures are inlined; it loads nothing from anywhere.

Plain string templates are enough for one page, so no template engine is a dependency of the load test.
"""

import base64
import html
from collections.abc import Iterable
from pathlib import Path

from loadtest.console import describe_loop, describe_slo, describe_tokens, token_rows
from loadtest.measures import Measures
from loadtest.outcomes import count_errors, count_refused, describe_statuses, describe_success, hints
from loadtest.report import Report
from loadtest.stats import Quantiles

PAGE_FILE = "report.html"

CSS = """
:root { --ink: #1d2733; --muted: #6b7785; --line: #e3e8ec; --paper: #fff; --back: #f5f7f9; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); line-height: 1.45;
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 36px 24px 64px; }
h1 { font-size: 25px; margin: 10px 0 2px; letter-spacing: -.01em; }
h2 { font-size: 16px; margin: 34px 0 10px; }
p { margin: 4px 0; } .muted { color: var(--muted); }
.verdict { display: inline-block; padding: 3px 12px; border-radius: 999px; font-weight: 650; font-size: 13px;
  letter-spacing: .04em; color: #fff; }
.VALID { background: #23836f; } .INVALID { background: #c43d3d; } .doubt { background: #e0a92e; color: #1d2733; }
.reasons { border-left: 3px solid #c43d3d; padding: 4px 14px; margin: 14px 0; background: #fdf3f3; }
.reasons.hints { border-color: #e0a92e; background: #fdf8ec; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 22px 0; }
.tile { background: var(--paper); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 24px; font-weight: 650; letter-spacing: -.01em; white-space: nowrap; }
.tile span { color: var(--muted); font-size: 13px; }
img { display: block; width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: 10px;
  margin: 14px 0; }
.scroll { overflow-x: auto; background: var(--paper); border: 1px solid var(--line); border-radius: 10px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 8px 14px; text-align: right; white-space: nowrap; border-top: 1px solid var(--line); }
tr:first-child th { border-top: 0; color: var(--muted); font-weight: 500; font-size: 13px; }
th:first-child, td:first-child { text-align: left; }
tr.strong td { font-weight: 600; } td.zero { color: #aab3bb; }
"""

NO_PICTURES = '<p class="muted">There was no good answer, so there is no latency to draw.</p>'

_QUANTILES = ("p50", "p90", "p95", "p99", "p999", "max", "mean")


def write_page(folder: Path, report: Report, pictures: Iterable[Path]) -> Path:
    """Write report.html with the pictures inlined; its path."""
    path = folder / PAGE_FILE
    path.write_text(render_page(report, [picture.read_bytes() for picture in pictures]), encoding="utf-8")
    return path


def render_page(report: Report, pictures: Iterable[bytes]) -> str:
    """The whole page. Pictures are PNG files."""
    rate = f"{report.offered_rate:,.{0 if report.offered_rate >= 10 else 2}f}"
    title = f"{rate} requests/s for {round(report.duration_s, 1):g} s"
    doubt = describe_success(report)
    images = "".join(
        f'<img alt="{alt}" src="data:image/png;base64,{base64.b64encode(picture).decode()}">'
        for alt, picture in zip(("Latency over time", "Latency by percentile", "Times of tokens"), pictures, strict=False)
    )
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{html.escape(title)} · load test</title><style>{CSS}</style></head><body><main>
<span class="verdict {report.verdict}">{report.verdict}</span>{f' <span class="verdict doubt">{doubt}</span>' if doubt else ""}
<h1>{html.escape(title)}</h1>
<p class="muted">{html.escape(report.url)} · {html.escape(_name_arrivals(report))} · seed {report.seed}</p>
{_render_loop(report)}
{_render_reasons(report)}
{_render_errors(report)}
<section class="tiles">{_render_tiles(report)}</section>
{images if report.latency_s.count else NO_PICTURES}
<h2>Latency of good answers, in milliseconds</h2>
<p class="muted">From the instant each request was meant to leave. Refusals and errors are not in it.</p>
{_render_latencies(report)}
{_render_tokens(report)}
<h2>How requests ended</h2>
{_render_outcomes(report)}
<h2>By API key</h2>
{_render_keys(report)}
<h2>The generator</h2>
{_render_generator(report)}
</main></body></html>
"""


def _render_reasons(report: Report) -> str:
    if report.is_valid:
        return ""
    items = "".join(f"<p>{html.escape(reason)}</p>" for reason in report.reasons)
    return f'<div class="reasons"><p><b>These figures tell of the generator, not of the server.</b></p>{items}</div>'


def _render_errors(report: Report) -> str:
    lines = [*hints(report), *([] if report.first_error is None else [f"First error: {report.first_error}"])]
    return f'<div class="reasons hints">{"".join(f"<p>{html.escape(line)}</p>" for line in lines)}</div>' if lines else ""


def _render_tiles(report: Report) -> str:
    tiles = [
        (f"{_ms(report.latency_s.p50)} ms", "p50 latency"),
        (f"{_ms(report.latency_s.p95)} ms", "p95 latency"),
        (f"{_ms(report.latency_s.p99)} ms", "p99 latency"),
        (f"{report.goodput_rate:,.{0 if report.goodput_rate >= 10 else 2}f}/s", describe_slo(report)),
        (f"{count_refused(report):,}", "refused"),
        (f"{count_errors(report):,}", "errors"),
    ]
    if report.tokens is not None:
        tiles += [
            (f"{_ms(report.ttft_s.p95)} ms", "p95 time to first token"),
            (f"{_ms(report.tpot_s.p95)} ms", "p95 time per output token"),
            (f"{report.tokens.output_rate:,.0f}/s", "output tokens"),
        ]
    return "".join(f'<div class="tile"><b>{value}</b><span>{label}</span></div>' for value, label in tiles)


def _name_arrivals(report: Report) -> str:
    return report.arrivals if report.concurrency is not None else f"{report.arrivals} arrivals"


def _render_loop(report: Report) -> str:
    return "" if report.concurrency is None else f'<p class="muted">{html.escape(describe_loop(report.concurrency))}</p>'


def _render_tokens(report: Report) -> str:
    if report.tokens is None:
        return ""
    header = ["", "samples", "p50", "p90", "p95", "p99", "p99.9", "max", "mean"]
    rows = [_latency_row(name, measured) for name, measured in token_rows(report, report.tiers)]
    words = describe_tokens(report.tokens, report.stop_reasons or {})
    return f"""<h2>Times of tokens, in milliseconds</h2>
<p class="muted">TTFT: from the intended send to the first text. TPOT: one mean per answer, after its first text. Gaps: between
two events with text, whatever each carries; the TTFT is not among them.</p>
{render_table(header, rows)}<p class="muted">{html.escape(words)}</p>"""


def _render_latencies(report: Report) -> str:
    rows = [(name, measures.latency_s) for name, measures in _all_and_tiers(report)]
    rows += [("all, from the real send", report.service_latency_s), ("refusals", report.rejection_latency_s)]
    header = ["", "samples", "p50", "p90", "p95", "p99", "p99.9", "max", "mean"]
    return render_table(header, [_latency_row(name, measured) for name, measured in rows])


def _all_and_tiers(report: Report) -> list[tuple[str, Measures]]:
    """One tier alone is all."""
    return [("all", report), *(report.tiers.items() if len(report.tiers) > 1 else ())]


def _latency_row(name: str, measured: Quantiles) -> list[str]:
    return [name, f"{measured.count:,}", *(_ms(getattr(measured, quantile)) for quantile in _QUANTILES)]


def _render_outcomes(report: Report) -> str:
    columns = _all_and_tiers(report)
    names = [*dict.fromkeys(name for _, measures in columns for name in measures.outcomes)]
    rows = [[name.replace("_", " "), *(f"{measures.outcomes.get(name, 0):,}" for _, measures in columns)] for name in names]
    rows.append(["sent", *(f"{measures.sent:,}" for _, measures in columns)])
    rows.append(["answered per second", *(f"{measures.throughput_rate:,.1f}" for _, measures in columns)])
    rows.append(["good per second", *(f"{measures.goodput_rate:,.1f}" for _, measures in columns)])
    statuses = f'<p class="muted">HTTP statuses: {describe_statuses(report)}</p>'
    return render_table(["", *(name for name, _ in columns)], rows) + statuses


def _render_keys(report: Report) -> str:
    rows = [
        [
            key,
            f"{measures.sent:,}",
            f"{measures.outcomes['ok']:,}",
            f"{count_refused(measures):,}",
            f"{count_errors(measures):,}",
            *(_ms(value) for value in (measures.latency_s.p50, measures.latency_s.p95, measures.latency_s.p99)),
        ]
        for key, measures in report.keys.items()
    ]
    more = report.num_keys - len(report.keys)
    note = f'<p class="muted">and {more:,} more that sent less</p>' if more else ""
    return render_table(["key", "sent", "ok", "refused", "errors", "p50 ms", "p95 ms", "p99 ms"], rows) + note


def _render_generator(report: Report) -> str:
    lag = report.send_lag_s
    rows = [
        ["planned", f"{report.planned:,}"],
        ["sent", f"{report.sent:,}"],
        ["dropped", f"{report.dropped:,}"],
        ["answers that do not belong to their question", f"{report.mismatched:,}"],
        ["answers given twice", f"{report.duplicated:,}"],
        ["send lag p50, p99, max", f"{_ms(lag.p50)}, {_ms(lag.p99)}, {_ms(lag.max)} ms"],
        ["CPU", f"{report.generator_cpu_s:.2f} s, {report.generator_cpu_share:.0%} of a core"],
    ]
    if report.poison is not None:
        poison = report.poison
        rows.append(["poison inputs sent, failed, answered", f"{poison.sent:,}, {poison.failed:,}, {poison.answered:,}"])
    return render_table(None, rows)


def render_table(header: list[str] | None, rows: Iterable[list[str]]) -> str:
    lines = [] if header is None else ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in header) + "</tr>"]
    lines += ["<tr>" + "".join(_cell(cell) for cell in row) + "</tr>" for row in rows]
    return f'<div class="scroll"><table>{"".join(lines)}</table></div>'


def _cell(text: str) -> str:
    return f'<td class="zero">{text}</td>' if text in ("0", "–") else f"<td>{html.escape(text)}</td>"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.0995 else f"{seconds * 1e3:.3g}"
