"""Long texts, on every way: nothing forbidden leaves, and what was computed is charged and forgotten."""

import asyncio
import gc
import json
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from batcher.config import TierConfig
from batcher.service.safety.contract import Checked
from batcher.service.safety.rulebook import AnswerScan
from batcher.service.safety.stage import MAX_INLINE_CHARS
from batcher.service.turns import Turns
from tests.service.errors import assert_error
from tests.service.serving import quick, serving, until
from tests.service.sse import body, opened
from tests.service.turns import LARGE, ROUTES, NoTurns, asked, next_round, withhold
from tests.service.wire_client import connected, request, run

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]

TEN_TIMES = "tests.service.test_long_texts:ten_times"

RULES = """
[[rules]]
name = "phrase"
phrases = ["some plutonium"]

[[rules]]
name = "stops"
phrases = ["a secret thing"]
where = "output"
verdict = "stop"

[[rules]]
name = "refuses"
phrases = ["never say"]
where = "output"
"""


def ten_times(inputs: list[str]) -> list[str]:
    """A batch of answers that are longer than what was asked, but for what says that it is short."""
    return [text if text.startswith("short") else text * 10 for text in inputs]


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest) -> str:
    path: str = request.param
    return path


@pytest.fixture
def long_answers(tmp_path: Path) -> Callable[[], Any]:
    (tmp_path / "rules.toml").write_text(RULES)
    settings = quick(backend=TEN_TIMES, safety_rules=tmp_path / "rules.toml", usage_dir=tmp_path / "usage")
    return lambda: serving(settings)


def text_of(answer: Any) -> str:
    text: str = answer.json["output" if "output" in answer.json else "content"]
    return text


@pytest.mark.parametrize("text", ["once " * 1000, LARGE])
async def test_long_texts_are_looked_through_and_answered_whole(route: str, text: str, long_answers: Any) -> None:
    async with long_answers() as server:
        answer = await server.ask(asked(route, text, model=TEN_TIMES))
        assert (answer.status, text_of(answer)) == (200, text * 10)


async def test_a_large_body_counts_until_its_text_is_looked_through(route: str, long_answers: Any) -> None:
    """It was given back at its first turn, and thousands waited for the next ones."""
    async with long_answers() as server, connected(server.port) as client:
        bodies, texts = server.service.front.door.bodies, server.service.front.safety.long_texts
        turns = texts._turns = withhold(server)
        client.write(asked(route, LARGE, model=TEN_TIMES))
        for _ in range(3):
            await until(lambda: len(turns.withheld) == 1)
            assert bodies.num_bytes > len(LARGE)
            turns.withheld.pop()()
        texts._turns = Turns()
        turns.give()
        assert (await client.read()).status == 200
        assert bodies.num_bytes == 0


@pytest.mark.parametrize("what", ["input", "output"])
async def test_a_server_that_stops_waits_for_texts_that_are_looked_through(route: str, what: str, long_answers: Any) -> None:
    """It was drained at once, as nothing ran, and they were cut off."""
    async with long_answers() as server, connected(server.port) as client:
        texts = server.service.front.safety.long_texts
        turns = texts._turns = NoTurns()
        client.write(asked(route, LARGE if what == "input" else "once " * 1000, model=TEN_TIMES))
        await until(lambda: len(turns.withheld) == 1)
        draining = asyncio.ensure_future(server.server._drain("a test"))
        for _ in range(10):
            await next_round()
        assert not draining.done()
        texts._turns = Turns()
        turns.give()
        assert (await client.read()).status == (529 if what == "input" else 200)
        await draining


async def test_a_second_signal_waits_for_no_text(route: str, long_answers: Any) -> None:
    async with long_answers() as server, connected(server.port) as client:
        turns = server.service.front.safety.long_texts._turns = NoTurns()
        client.write(asked(route, LARGE, model=TEN_TIMES))
        await until(lambda: len(turns.withheld) == 1)
        for _ in range(2):
            server.server._on_signal(signal.SIGTERM)
            await next_round()
        await server.server._drain_task
        assert len(turns.withheld) == 1
        client.leave()


async def test_a_phrase_deep_in_a_long_input_is_found(route: str, long_answers: Any) -> None:
    async with long_answers() as server:
        answer = await server.ask(asked(route, "short " + LARGE + "some plutonium", model=TEN_TIMES))
        assert_error(answer, 400, "invalid_request_error")
        assert server.service.driver.num_live == 0


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_phrase_deep_in_a_long_answer_ends_it_there(is_streamed: bool, long_answers: Any, tmp_path: Path) -> None:
    before = "x" * (MAX_INLINE_CHARS - 5)
    content = body("short" + before[5:] + "a secret thing" + before, model=TEN_TIMES, max_tokens=10**6, stream=is_streamed)
    async with long_answers() as server, connected(server.port) as client:
        if is_streamed:
            events = await (await opened(client, request(path="/v1/messages", body=content))).rest()
            text = "".join(event.data["text"] for event in events if event.name == "content_delta")
        else:
            text = text_of(await client.ask(request(path="/v1/messages", body=content)))
    assert text == "short" + before[5:]
    records = [json.loads(line) for file in (tmp_path / "usage").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert [record["output_tokens"] for record in records] == [len(before)]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages?by=asgi"])
async def test_a_small_request_whose_long_answer_says_what_is_forbidden_gets_no_more_than_that(
    path: str, long_answers: Any
) -> None:
    """The answer is looked through where it came: on the short way, too."""
    long = "x" * 3000
    async with long_answers() as server:
        stopped = await server.ask(asked(path, long + "a secret thing", model=TEN_TIMES))
        assert (stopped.status, text_of(stopped), stopped.json["stop_reason"]) == (200, long, "refusal")
        assert_error(await server.ask(asked(path, long + "never say", model=TEN_TIMES)), 400, "invalid_request_error")
        assert server.service.front.limiter.statistics().num_open == 0


@pytest.mark.parametrize("phrase", ["a secret thing", "never say"])
async def test_a_run_whose_long_output_says_what_is_forbidden_is_refused(phrase: str, long_answers: Any) -> None:
    async with long_answers() as server:
        assert_error(await server.ask(run("x" * 3000 + phrase)), 400, "invalid_request_error")


class Held:
    """Looks through nothing before it is let go."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.is_let_go = asyncio.Event()

    async def feed(self, scan: AnswerScan, text: str, *, tenant: str) -> Checked:
        self.has_begun.set()
        await self.is_let_go.wait()
        return scan.feed(text)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages?by=asgi", "/v1/run"])
@pytest.mark.usefixtures("no_collector")
async def test_who_leaves_while_a_long_answer_is_looked_through_is_charged_for_it_and_forgotten(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    tier = TierConfig("paid", tokens_per_minute=10**7)
    async with serving(quick(backend=TEN_TIMES, safety_rules=tmp_path / "rules.toml", tiers=(tier,))) as server:
        held = Held()
        safety = server.service.front.safety
        assert safety is not None
        monkeypatch.setattr(safety.long_texts, "feed", held.feed)
        async with connected(server.port) as client:
            client.write(asked(path, "once " * 1000, model=TEN_TIMES))
            await held.has_begun.wait()
            client.leave()
            await until(lambda: server.service.front.limiter.statistics().num_open == 0)
        limiter = server.service.front.limiter.statistics()
        assert (limiter.num_settled, limiter.num_given_back) == (1, 0)
        await until(lambda: not [thing for thing in gc.get_objects() if type(thing).__name__ in ("_Call", "Passage")])


async def test_a_check_that_breaks_on_a_long_answer_lets_nothing_out(
    long_answers: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Awaitable[None]:
        raise ValueError("broken")

    async with long_answers() as server:
        monkeypatch.setattr(server.service.front.safety, "open_output", broken)
        answer = await server.ask(request(path="/v1/messages", body=body("once " * 1000, model=TEN_TIMES, max_tokens=10**6)))
        assert_error(answer, 500, "api_error", may_retry="true")
        assert server.service.front.limiter.statistics().num_open == 0
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == ["request_failed"]
    caplog.clear()  # Expected here, and looked at.
