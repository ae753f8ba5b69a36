"""Servers side by side: who is measured when, what is told of them, and that none is left running."""

import contextlib
import io
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from batcher.errors import ConfigError
from loadtest.compare import FIGURES, Comparison, Contender, Spread, compare, parse_contender, sigterm_as_interrupt
from loadtest.compare_output import print_comparison, ratio, write_comparison
from loadtest.plan import Plan
from loadtest.render import HOW_TO_INSTALL
from loadtest.runner import Recording
from loadtest.samples import Ending
from loadtest.scenarios.proctree import descendants
from loadtest.scenarios.server import ServerFailed
from tests.loadtest.examples import end, make_messages_plan, make_recording
from tests.loadtest.talker import talking

ROOT = Path(__file__).parents[2]
TALKER = shlex.join(["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.loadtest.talker"])


class Measurer:
    """Measures nothing: what is asked of it is answered after so many seconds, by the server's URL, round by round."""

    def __init__(self, latencies_s: dict[str, Sequence[float]], *, interrupted_at: int | None = None) -> None:
        self.plans: list[Plan] = []
        self._latencies_s = {url: iter(values) for url, values in latencies_s.items()}
        self._interrupted_at = interrupted_at

    def __call__(self, plan: Plan) -> Recording:
        self.plans.append(plan)
        if plan.concurrency is not None:
            return make_recording(make_messages_plan(), is_interrupted=len(self.plans) == self._interrupted_at)
        recording = make_recording(plan, is_interrupted=len(self.plans) == self._interrupted_at)
        latency_s = next(self._latencies_s[plan.target.url.removesuffix("/v1/messages")])
        for row in range(len(recording.samples)):
            end(recording.samples, row, Ending.OK, latency_s=latency_s, status=200)
        return recording

    @property
    def asked(self) -> list[str]:
        return [("warm-up " if plan.concurrency else "") + plan.target.url[7] for plan in self.plans]


def measure(measurer: Measurer, *, num_rounds: int = 1, num_warmup: int = 0) -> Comparison:
    return compare(
        [parse_contender("first=http://a"), parse_contender("second=http://b")],
        make_messages_plan,
        num_rounds=num_rounds,
        num_warmup=num_warmup,
        start_timeout_s=1.0,
        on_run=lambda *_: None,
        measure=measurer,
    )


def test_servers_take_turns() -> None:
    measurer = Measurer({"http://a": [0.1] * 3, "http://b": [0.1] * 3})
    measure(measurer, num_rounds=3)
    assert measurer.asked == ["a", "b", "a", "b", "a", "b"]
    assert len({plan.seed for plan in measurer.plans}) == 1


def test_each_run_is_warmed_up_with_other_prompts() -> None:
    measurer = Measurer({"http://a": [0.1], "http://b": [0.1]})
    measure(measurer, num_warmup=7)
    assert measurer.asked == ["warm-up a", "a", "warm-up b", "b"]
    warmup, plan = measurer.plans[:2]
    assert (warmup.num_requests, warmup.concurrency) == (7, 4)
    assert warmup.messages == plan.messages
    assert warmup.seed != plan.seed


def test_a_figure_is_the_median_of_its_rounds_with_their_range_and_ratio() -> None:
    comparison = measure(Measurer({"http://a": [0.2, 0.1, 0.4], "http://b": [0.1, 0.1, 0.3]}), num_rounds=3)
    first, second = (standing.figures["latency_p95_ms"] for standing in comparison.servers)
    assert [first.median, first.low, first.high] == pytest.approx([200, 100, 400])
    assert first.ratio == 1.0
    assert second.median == pytest.approx(100)
    assert second.ratio == pytest.approx(0.5)
    assert second.rounds == [pytest.approx(100), pytest.approx(100), pytest.approx(300)]
    nothing = comparison.servers[1].figures["ttft_p95_ms"]
    assert (nothing.median, nothing.low, nothing.high, nothing.ratio) == (None, None, None, None)
    assert comparison.servers[0].figures["refused"].ratio is None  # Nothing is no base for a ratio.


def test_an_interrupted_comparison_tells_what_was_measured() -> None:
    measurer = Measurer({"http://a": [0.1] * 2, "http://b": [0.1] * 2}, interrupted_at=2)
    comparison = measure(measurer, num_rounds=2)
    assert measurer.asked == ["a", "b"]
    assert comparison.servers[1].verdicts == ["INVALID"]
    assert comparison.reasons == ["second, round 1: interrupted after 0.2 of 0.2 s", "interrupted after 2 of 4 runs"]


def test_a_comparison_that_is_interrupted_before_it_measured_has_nothing_to_show(tmp_path: Path) -> None:
    comparison = measure(Measurer({}, interrupted_at=1), num_warmup=1)
    assert comparison.servers == []
    assert comparison.reasons == ["interrupted after 0 of 2 runs"]
    print_comparison(Console(file=io.StringIO()), comparison)
    assert write_comparison(tmp_path, comparison)[0].exists()


def test_a_comparison_is_printed_and_written(tmp_path: Path) -> None:
    comparison = measure(Measurer({"http://a": [0.2, 0.3], "http://b": [0.1, 0.1]}), num_rounds=2)
    console = Console(record=True, width=60, file=io.StringIO())
    print_comparison(console, comparison)
    printed = console.export_text()
    assert "median and range of 2 rounds" in printed
    assert "250" in printed
    assert "×0.40" in printed
    assert printed.count("×1.00") == 1  # Of the second's goodput: neither of the first server nor of counts.
    assert "200…300" in printed
    assert "TTFT" not in printed  # Nobody has it.
    page, missing = write_comparison(tmp_path / "new" / "folder", comparison)
    assert missing is None
    assert (page.parent / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png" in page.read_text(encoding="utf-8")
    text = page.read_text(encoding="utf-8")
    assert "<td><b>250</b><span>200…300</span></td>" in text
    assert "<td><b>100</b><span>×0.40</span></td>" in text
    written = msgspec.json.decode((page.parent / "compare.json").read_bytes(), type=Comparison)
    assert written == comparison
    assert set(written.servers[0].figures) == {figure.key for figure in FIGURES}


@pytest.mark.parametrize(
    ("value", "place", "words"),
    [
        (1.0, 0, ""),
        (1.0, 1, "×1.00"),
        (1 / 360, 1, "×1/360"),
        (0.5, 1, "×0.50"),
        (0.0, 1, "×0.00"),
        (12.0, 2, "×12.0"),
        (None, 1, ""),
    ],
)
def test_a_ratio_has_digits_that_mean_something(value: float | None, place: int, words: str) -> None:
    figures = {figure.key: figure for figure in FIGURES}
    spread = Spread(1.0, 1.0, 1.0, [1.0], value)
    assert ratio(figures["goodput_rate"], spread, place) == words
    assert ratio(figures["ok"], spread, place) == ""


def test_without_matplotlib_there_is_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "loadtest.compare_picture", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page, missing = write_comparison(tmp_path, measure(Measurer({"http://a": [0.1], "http://b": [0.1]})))
    assert missing == HOW_TO_INSTALL
    assert "<img" not in page.read_text(encoding="utf-8")


def test_names_from_outside_are_escaped(tmp_path: Path) -> None:
    comparison = measure(Measurer({"http://a": [0.1], "http://b": [0.1]}))
    odd = [msgspec.structs.replace(standing, name="<script>[bold]") for standing in comparison.servers]
    odd_comparison = msgspec.structs.replace(comparison, servers=odd)
    page, _ = write_comparison(tmp_path, odd_comparison)
    assert "<script>" not in page.read_text(encoding="utf-8")
    console = Console(record=True, width=60, file=io.StringIO())
    print_comparison(console, odd_comparison)
    assert "<script>[bold]" in console.export_text()


def test_servers_are_parsed() -> None:
    assert parse_contender("here = http://h:1") == Contender("here", "http://h:1", url="http://h:1")
    own = parse_contender("paged=batcher serve --kv paged --name 'a b'")
    assert own.command == (sys.executable, "-m", "batcher", "serve", "--kv", "paged", "--name", "a b", "--port", "0")
    assert parse_contender("p=batcher serve --port=5").command[-1] == "--port=5"
    assert parse_contender("other=vllm serve --x=y").command == ("vllm", "serve", "--x=y")


@pytest.mark.parametrize("text", ["", "name", "=http://h", "name=", "name='open"])
def test_servers_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_contender(text)


@pytest.mark.parametrize(("names", "num_rounds", "num_warmup"), [("", 1, 0), ("aa", 1, 0), ("ab", 0, 0), ("ab", 1, -1)])
def test_comparisons_that_cannot_be_are_refused(names: str, num_rounds: int, num_warmup: int) -> None:
    contenders = [parse_contender(f"{name}=http://h") for name in names]
    with pytest.raises(ConfigError):
        compare(
            contenders, make_messages_plan, num_rounds=num_rounds, num_warmup=num_warmup, start_timeout_s=1.0,
            on_run=lambda *_: None, measure=Measurer({}),
        )  # fmt: skip


@contextlib.contextmanager
def nothing_left_running() -> Iterator[None]:
    before = {pid for pid, _ in descendants(os.getpid())}
    yield
    assert {pid for pid, _ in descendants(os.getpid())} <= before


def compare_really(*servers: str, interrupt: bool = False) -> Comparison:
    def on_run(contender: Contender, *_: object) -> None:
        if interrupt:
            os.kill(os.getpid(), signal.SIGTERM)

    with sigterm_as_interrupt():
        return compare(
            [parse_contender(server) for server in servers], make_messages_plan, num_rounds=1, num_warmup=1,
            start_timeout_s=30.0, on_run=on_run,
        )  # fmt: skip


def test_servers_are_started_measured_and_stopped() -> None:
    with talking() as running, nothing_left_running():
        comparison = compare_really(f"good={TALKER} chat", f"full={TALKER} refuse", f"there={running.url}")
    good, full, there = comparison.servers
    assert good.figures["ok"].median == there.figures["ok"].median == 20
    assert full.figures["refused"].median == 20
    assert full.figures["output_token_rate"].median is None
    assert good.figures["ttft_p95_ms"].median is not None


def test_a_server_that_does_not_start_is_told_with_its_log_and_nothing_runs_on() -> None:
    with nothing_left_running(), pytest.raises(ServerFailed, match="KeyError: 'sulk'"):
        compare_really(f"good={TALKER} chat", f"bad={TALKER} sulk")
    with pytest.raises(ServerFailed, match="cannot start no-such-program"):
        compare_really("bad=no-such-program --at all")


def test_a_comparison_that_is_ended_leaves_nothing_running() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with nothing_left_running(), pytest.raises(KeyboardInterrupt):
        compare_really(f"good={TALKER} chat", f"again={TALKER} chat", interrupt=True)
    assert signal.getsignal(signal.SIGTERM) is before
