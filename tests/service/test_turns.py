"""Large requests take turns, so that small ones pass between; and what is long does not stay on the way."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from batcher.config import TierConfig
from batcher.service.safety.stage import MAX_INLINE_CHARS
from batcher.service.small_bodies import SMALL_BODY_BYTES
from batcher.service.turns import Turns
from batcher.types import Outcome
from tests.service.errors import assert_error
from tests.service.serving import Serving, quick, serving, until
from tests.service.sse import body, opened
from tests.service.wire_client import connected, request, run

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]

TEN_TIMES = "tests.service.test_turns:ten_times"
LARGE = "never read " * (SMALL_BODY_BYTES // 8)
assert len(LARGE) > MAX_INLINE_CHARS > SMALL_BODY_BYTES

RULES = """
[[rules]]
name = "phrase"
phrases = ["some plutonium"]

[[rules]]
name = "stops"
phrases = ["a secret thing"]
where = "output"
verdict = "stop"
"""


def ten_times(inputs: list[str]) -> list[str]:
    """A batch of answers that are longer than what was asked, but for what says that it is short."""
    return [text if text.startswith("short") else text * 10 for text in inputs]


async def next_round() -> None:
    await asyncio.sleep(0)


async def test_the_first_of_a_round_has_its_turn_at_once_and_the_others_one_each_round() -> None:
    turns, seen = Turns(), []
    for number in range(4):
        turns.call(lambda number=number: seen.append(number))  # type: ignore[misc]
    assert (seen, repr(turns)) == ([0], "Turns(3 waiting)")
    for number in range(1, 4):
        await next_round()
        assert seen == list(range(number + 1))
    await next_round()
    turns.call(lambda: seen.append(4))
    assert seen == [0, 1, 2, 3, 4], "nothing is put off where there is no crowd"


async def test_tasks_wait_in_the_same_line_as_callbacks() -> None:
    turns, seen = Turns(), []

    async def take(name: str) -> None:
        await turns.take()
        seen.append(name)

    tasks = [asyncio.ensure_future(take(name)) for name in ("a", "b", "c")]
    await next_round()
    turns.call(lambda: seen.append("d"))
    await asyncio.gather(*tasks)
    await next_round()
    assert sorted(seen) == ["a", "b", "c", "d"]
    assert [name for name in seen if name != "d"] == ["a", "b", "c"], "a task goes on one round after its turn has come"


async def test_who_was_cancelled_while_waiting_takes_nobodys_turn_for_good() -> None:
    turns, seen = Turns(), []
    waiting = asyncio.ensure_future(turns.take())
    for name in ("first", "second"):
        turns.call(lambda name=name: seen.append(name))  # type: ignore[misc]
    await next_round()
    turns.call(lambda: seen.append("third"))
    assert repr(turns) == "Turns(2 waiting)"
    waiting.cancel()
    for _ in range(4):
        await next_round()
    assert waiting.cancelled()
    assert (seen, repr(turns)) == (["first", "second", "third"], "Turns(0 waiting)")


class NoTurns(Turns):
    """They come when `give` is called."""

    def __init__(self) -> None:
        super().__init__()
        self.withheld: list[Callable[[], None]] = []

    def call(self, work: Callable[[], None]) -> None:
        self.withheld.append(work)

    async def take(self) -> None:
        has_come = asyncio.Event()
        self.withheld.append(has_come.set)
        await has_come.wait()

    def give(self) -> None:
        while self.withheld:
            self.withheld.pop(0)()


@pytest.fixture(params=["/v1/run", "/v1/run?by=asgi", "/v1/messages", "/v1/messages?by=asgi"])
def route(request: pytest.FixtureRequest) -> str:
    path: str = request.param
    return path


def asked(path: str, text: str, **fields: Any) -> bytes:
    if "run" in path:
        return run(text, path=path)
    return request(path=path, body=body(text, max_tokens=10**6, **fields))


def withhold(server: Serving) -> NoTurns:
    turns = server.service.front.door.turns = NoTurns()
    return turns


async def test_small_requests_pass_while_large_ones_wait_for_their_turn(route: str) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        turns = withhold(server)
        client.write(asked(route, LARGE))
        await until(lambda: len(turns.withheld) == 1)
        assert server.service.front.door.bodies.num_bytes > len(LARGE), "it is held, and counted, until then"
        assert (await server.ask(asked(route, "small"))).status == 200
        assert server.service.driver.num_live == 0
        turns.give()
        assert (await client.read()).status == 200


async def test_who_leaves_before_its_turn_gets_no_work_done(route: str) -> None:
    async with serving(quick(batch_timeout=0.1)) as server:
        turns = withhold(server)
        async with connected(server.port) as client:
            client.write(asked(route, LARGE))
            await until(lambda: len(turns.withheld) == 1)
            client.leave()
            await until(lambda: not server.server.server_state.connections)
        turns.give()
        await server.check_idle()
        outcomes = server.service.meters.tiers["paid"].outcomes
        assert sum(outcomes.values()) == outcomes[Outcome.CANCELLED]


async def test_what_is_asked_behind_a_large_request_waits_for_it(route: str) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        turns = withhold(server)
        client.write(asked(route, LARGE) + run("second") + run("third"))
        await until(lambda: len(turns.withheld) == 1)
        turns.give()
        assert len((await client.read()).body) > len(LARGE)
        assert [(await client.read()).json["output"] for _ in range(2)] == ["second", "third"]


# Long texts


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


async def test_a_phrase_deep_in_a_long_input_is_found(route: str, long_answers: Any) -> None:
    async with long_answers() as server:
        answer = await server.ask(asked(route, "short " + LARGE + "some plutonium", model=TEN_TIMES))
        assert_error(answer, 400, "invalid_request_error")
        assert server.service.driver.num_live == 0


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_phrase_deep_in_a_long_answer_ends_it_there(is_streamed: bool, long_answers: Any, tmp_path: Path) -> None:
    """It lies across two of the pieces that are looked through one at a turn."""
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


async def test_who_leaves_while_a_long_answer_is_looked_through_is_charged_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rules.toml").write_text(RULES)
    tier = TierConfig("paid", tokens_per_minute=10**7)
    async with serving(quick(backend=TEN_TIMES, safety_rules=tmp_path / "rules.toml", tiers=(tier,))) as server:
        safety = server.service.front.safety
        turns = NoTurns()
        monkeypatch.setattr(safety, "turns", turns)
        async with connected(server.port) as client:
            client.write(request(path="/v1/messages", body=body("once " * 1000, model=TEN_TIMES, max_tokens=10**6)))
            await until(lambda: len(turns.withheld) == 1)
            client.leave()
            await until(lambda: server.service.front.limiter.statistics().num_open == 0)
        turns.give()
        limiter = server.service.front.limiter.statistics()
        assert (limiter.num_settled, limiter.num_given_back) == (1, 0)


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
