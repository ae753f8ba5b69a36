"""Runs on disk, and on a page that loads nothing from anywhere."""

import io
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from batcher.sim.workload import Constant, Mix, Sender
from loadtest.console import print_report
from loadtest.files import REPORT_FILE, SAMPLES_FILE, UnreadableRun, load_run, save_run
from loadtest.page import render_page
from loadtest.plan import draw_schedule
from loadtest.render import HOW_TO_INSTALL, render
from loadtest.report import make_report
from loadtest.runner import Recording
from loadtest.samples import Ending
from tests.loadtest.examples import end, generate, make_messages_plan, make_plan, make_recording

PNG = b"\x89PNG\r\n"


def make_mixed() -> Recording:
    """Answers, refusals and errors, at two hundred a second."""
    recording = make_recording(make_plan(arrivals=Constant(200.0), duration_s=3.0))
    for row in range(0, 600, 5):
        end(recording.samples, row, Ending.REJECTED_CAPACITY, latency_s=0.002, status=529)
    end(recording.samples, 7, Ending.FAILED, latency_s=0.1, status=500)
    return recording


class Resources(HTMLParser):
    """Collects whatever a browser would load."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value for name, value in attrs if name in ("src", "srcset", "data") and value]
        self.loaded += [value for name, value in attrs if tag != "a" and name == "href" and value]
        assert tag not in ("script", "iframe", "object", "embed")


def test_a_saved_run_is_loaded_as_it_was(tmp_path: Path) -> None:
    recording = make_mixed()
    report = make_report(recording)
    save_run(tmp_path / "new" / "folder", report, recording.samples)
    assert load_run(tmp_path / "new" / "folder") == (report, recording.samples)


def test_real_keys_are_not_on_disk(tmp_path: Path) -> None:
    recording = make_recording(make_plan(mix=Mix((Sender("sk-live-very-secret", "paid", 1.0),))))
    save_run(tmp_path, make_report(recording), recording.samples)
    assert b"secret" not in (tmp_path / REPORT_FILE).read_bytes()
    assert "secret" not in repr(load_run(tmp_path))


@pytest.mark.parametrize("name", [REPORT_FILE, SAMPLES_FILE])
def test_a_folder_without_a_whole_run_is_refused(tmp_path: Path, name: str) -> None:
    recording = make_mixed()
    save_run(tmp_path, make_report(recording), recording.samples)
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(UnreadableRun, match="holds no saved run"):
        load_run(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(UnreadableRun):
        load_run(tmp_path)


def test_a_run_is_drawn_on_a_page_of_its_own(tmp_path: Path) -> None:
    recording = make_mixed()
    page, missing = render(tmp_path, make_report(recording), recording.samples)
    assert missing is None
    assert all((tmp_path / name).read_bytes().startswith(PNG) for name in ("latency.png", "percentiles.png"))
    text = page.read_text(encoding="utf-8")
    resources = Resources()
    resources.feed(text)
    assert len(resources.loaded) == 2
    assert all(loaded.startswith("data:image/png;base64,") for loaded in resources.loaded)
    assert "url(" not in text
    assert "@import" not in text


def test_the_verdict_is_the_first_word_of_the_page() -> None:
    recording = make_mixed()
    recording.samples.ending[0] = Ending.DROPPED
    text = render_page(make_report(recording), [])
    body = text[text.index("<main>") :]
    words = [word for word in re.sub(r"<[^>]*>", "\n", body).split("\n") if word.strip()]
    assert words[0] == "INVALID"
    assert "not of the server" in body
    assert "1 sends were dropped" in body


def test_texts_from_outside_are_escaped() -> None:
    plan = make_plan(mix=Mix((Sender("dev-<b>", "<script>", 1.0),)), arrivals_name="<i>")
    text = render_page(make_report(make_recording(plan)), [])
    assert "<script>" not in text
    assert "<b>" not in text.replace("<b>", "", text.count("</b>"))
    assert "&lt;i&gt;" in text


@pytest.mark.parametrize("ending", [Ending.TRANSPORT, Ending.REJECTED_CAPACITY, Ending.UNSENT])
def test_a_run_without_good_answers_can_be_drawn(tmp_path: Path, ending: Ending) -> None:
    recording = make_recording(make_plan())
    for row in range(len(recording.samples)):
        end(recording.samples, row, ending, latency_s=0.001, status=0)
    page, missing = render(tmp_path, make_report(recording), recording.samples)
    assert missing is None
    text = page.read_text(encoding="utf-8")
    assert "–" in text
    assert "no good answer</span>" in text
    assert "no latency to draw" in text
    assert "<img" not in text
    assert not list(tmp_path.glob("*.png"))


def test_without_matplotlib_the_page_is_written_and_the_way_to_pictures_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "loadtest.pictures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    recording = make_mixed()
    page, missing = render(tmp_path, make_report(recording), recording.samples)
    assert missing == HOW_TO_INSTALL
    assert "pip install" in HOW_TO_INSTALL
    assert "<img" not in page.read_text(encoding="utf-8")


def make_generated(*, num_answered: int = 20) -> Recording:
    recording = make_recording(make_messages_plan(slo_ttft_s=1.0, slo_tpot_s=0.05))
    for row in range(20):
        if row < num_answered:
            generate(recording.samples, row, ttft_s=0.2 + row / 100.0, gaps_s=[0.01, 0.5, 0.02])
        else:
            end(recording.samples, row, Ending.STREAM_CUT, latency_s=0.2, status=200)
    return recording


def test_a_saved_run_of_generated_text_is_loaded_as_it_was(tmp_path: Path) -> None:
    recording = make_generated(num_answered=15)
    report = make_report(recording)
    save_run(tmp_path, report, recording.samples)
    assert load_run(tmp_path) == (report, recording.samples)


def test_the_times_of_tokens_are_drawn(tmp_path: Path) -> None:
    recording = make_generated()
    page, missing = render(tmp_path, make_report(recording), recording.samples)
    assert missing is None
    assert (tmp_path / "tokens.png").read_bytes().startswith(PNG)
    text = page.read_text(encoding="utf-8")
    assert text.count("<img") == 3
    assert "Times of tokens, in milliseconds" in text
    assert "TPOT, paid" in text
    assert "good within TTFT 1000 ms, TPOT 50 ms" in text


def test_without_a_whole_answer_no_tokens_are_drawn(tmp_path: Path) -> None:
    recording = make_generated(num_answered=0)
    page, _ = render(tmp_path, make_report(recording), recording.samples)
    assert not (tmp_path / "tokens.png").exists()
    assert "Times of tokens" not in page.read_text(encoding="utf-8")


def test_a_closed_loop_says_what_its_latency_is_not() -> None:
    plan = make_plan(arrivals=None, concurrency=32, arrivals_name="closed loop of 32")
    samples = draw_schedule(make_plan())
    text = render_page(make_report(make_recording(plan, samples=samples)), [])
    assert "coordinated omission" in text
    assert "arrivals ·" not in text
    console = Console(record=True, width=300, file=io.StringIO())
    print_report(console, make_report(make_recording(plan, samples=samples)))
    assert "not corrected for callers who would have asked meanwhile" in console.export_text()
    assert "coordinated omission" not in render_page(make_report(make_recording(make_plan())), [])


def print_at(width: int, recording: Recording) -> str:
    console = Console(record=True, width=width, file=io.StringIO())
    print_report(console, make_report(recording))
    return console.export_text()


def test_tables_fit_eighty_columns() -> None:
    """Labels were wrapped to one word a line, and numbers cut to dots."""
    recording = make_generated()
    for row in range(20):
        generate(recording.samples, row, ttft_s=12.3456 + row, gaps_s=[1.5, 0.25])
    end(recording.samples, 3, Ending.REJECTED_CAPACITY, latency_s=0.01, status=529)
    printed = print_at(80, recording)
    assert "all, real send" in printed
    assert "TPOT, paid" in printed
    assert "31,346" in printed
    assert "31,345.6" not in printed
    assert "250.0" in printed
    assert "p99.9" not in printed
    assert "…" not in printed
    for label in ("latency in ms, good answers, from intended send", "tokens in ms, TTFT from intended send"):
        assert label in printed


def test_a_long_run_has_a_p999_within_eighty_columns() -> None:
    recording = make_recording(make_plan(arrivals=Constant(500.0), duration_s=2.0))
    for row in range(1000):
        end(recording.samples, row, Ending.OK, latency_s=98.7654, status=200)
    printed = print_at(80, recording)
    assert "p99.9" in printed
    assert printed.count("98,765") == 4 * 6
    assert "…" not in printed


def make_refused(status: int, ending: Ending, *, num_ok: int = 0) -> Recording:
    recording = make_recording(make_plan())
    for row in range(num_ok, len(recording.samples)):
        end(recording.samples, row, ending, latency_s=0.001, status=status)
    recording.samples.first_error = f"HTTP {status}: [bold]no such thing[/bold]"
    return recording


def test_a_run_of_errors_is_valid_and_not_praised() -> None:
    """A run against a wrong path was a green VALID with 60 "refused"."""
    recording = make_refused(404, Ending.CLIENT_ERROR)
    printed = print_at(200, recording)
    page = render_page(make_report(recording), [])
    assert "VALID   no good answer" in printed
    assert "errors 60 (client error 60)" in printed
    assert "refused" not in printed
    assert "HTTP statuses: 404: 60" in printed
    assert "<b>60</b><span>errors</span>" in page
    assert "<b>0</b><span>refused</span>" in page
    for text in (printed, page):
        assert "irst error: HTTP 404: [bold]no such thing[/bold]" in text
        assert "most answers are 404" in text
        assert "--path" in text


def test_a_run_of_good_answers_needs_no_words() -> None:
    recording = make_recording(make_plan())
    assert "HTTP statuses" not in print_at(200, recording)
    assert "good answer<" not in render_page(make_report(recording), [])


def test_the_terminal_shows_tokens_where_there_are_any() -> None:
    console = Console(record=True, width=300, file=io.StringIO())
    print_report(console, make_report(make_generated()))
    printed = console.export_text()
    assert "TTFT, all" in printed
    assert "gaps, free" in printed
    assert "input 140 · output 80" in printed
    assert "stopped by end turn 20" in printed
