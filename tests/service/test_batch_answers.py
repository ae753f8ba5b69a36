"""Conversations in batch mode: what a backend that knows only text makes of them, and what goes wrong with either kind."""

import asyncio
from typing import Any

import pytest

from batcher.config import TierConfig
from batcher.service.batch_answers import cut
from batcher.types import Outcome
from tests.service.errors import assert_error
from tests.service.serving import ASYNC_FAULTY, Gate, Serving, quick, serving, until
from tests.service.sse import ask, assert_answer, opened
from tests.service.wire_client import connected, run

pytestmark = pytest.mark.anyio

GENERATE = {"backend": "generate", "model": "simulated", "simulated_time_scale": 0.0, "workers": 1}


@pytest.mark.parametrize(
    ("output", "max_tokens", "stops", "expected"),
    [
        ("hello", 5, (), ("hello", "end_turn", None, 5)),
        ("hello", 4, (), ("hell", "max_tokens", None, 4)),
        ("", 1, (), ("", "end_turn", None, 0)),
        ("aé", 2, (), ("a", "max_tokens", None, 1)),
        ("aé", 3, (), ("aé", "end_turn", None, 3)),
        ("\U0001f600", 3, (), ("", "max_tokens", None, 0)),
        ("hello", 9, ("l",), ("he", "stop_sequence", "l", 3)),
        ("hello", 4, ("lo",), ("hell", "max_tokens", None, 4)),
        ("hello", 5, ("lo", "o", "llo"), ("he", "stop_sequence", "llo", 5)),
        ("héllo", 9, ("é",), ("h", "stop_sequence", "é", 3)),
    ],
)
def test_the_output_is_cut_by_whole_characters(
    output: str, max_tokens: int, stops: tuple[str, ...], expected: tuple[str, str, str | None, int]
) -> None:
    assert cut(output, max_tokens, stops) == expected


async def test_the_model_is_the_backend_and_gets_the_last_message_of_the_user() -> None:
    messages = [{"role": role, "content": f"{role} says"} for role in ("user", "system", "user", "assistant")]
    async with serving(quick(backend=ASYNC_FAULTY)) as server:
        text, reason, usage = assert_answer(await server.ask(ask(model=ASYNC_FAULTY, messages=messages)))
        assert_error(await server.ask(ask(model="simulated")), 404, "not_found_error")
    assert (text, reason, usage) == ("<user says>", "end_turn", {"input_tokens": 9, "output_tokens": 11})


async def test_conversations_and_plain_inputs_share_batches() -> None:
    async with serving(quick(**GENERATE, max_batch_size=4, batch_timeout=5.0)) as server:
        asked = [run("plain"), ask("hello"), run("more"), ask("world", max_tokens=2)]
        answers = await asyncio.gather(*(server.ask(data) for data in asked))
        assert [answer.json.get("output", answer.json.get("content")) for answer in answers] == ["plain", "hello", "more", "wo"]
        assert len({answer.headers["x-request-id"] for answer in answers}) == 4
        assert server.statistics.counters.batch_sizes == {4: 1}


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_goes_wrong_has_its_status_streamed_or_not(is_streamed: bool) -> None:
    async with serving(quick(backend=ASYNC_FAULTY)) as server:
        for content, may_retry in (("BOOM", "false"), ("SURROGATE", "false")):
            response = await server.ask(ask(content, model=ASYNC_FAULTY, stream=is_streamed))
            assert_error(response, 500, "api_error", may_retry=may_retry)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_who_leaves_gives_its_place_back(is_streamed: bool, gate: Gate) -> None:
    async with serving(quick(backend=ASYNC_FAULTY, workers=1)) as server:
        async with connected(server.port) as client:
            client.write(ask(gate.hold, model=ASYNC_FAULTY, stream=is_streamed))
            await until(lambda: server.statistics.num_running == 1)
        await until(lambda: server.service.num_live == 0)
        gate.open()
        await server.check_idle()
        assert _count(server, Outcome.CANCELLED) == 1


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_over_the_wait_budget_and_over_the_time_it_is_refused(is_streamed: bool, gate: Gate) -> None:
    tiers = (TierConfig("paid", wait_budget_s=3600.0), TierConfig("free", wait_budget_s=0.0))
    settings = quick(backend=ASYNC_FAULTY, workers=1, max_batch_size=1, service_time=1.0, tiers=tiers, request_timeout=0.3)
    fields: dict[str, Any] = {"model": ASYNC_FAULTY, "stream": is_streamed}
    async with serving(settings) as server, connected(server.port) as running, connected(server.port) as waiting:
        running.write(ask(gate.hold, **fields))
        await until(lambda: server.statistics.num_running == 1)
        waiting.write(ask("waits", **fields))
        await until(lambda: server.statistics.tiers[0].num_waiting == 1)
        refused = await server.ask(ask("too many", headers={"x-api-key": "dev-free"}, **fields))
        assert_error(refused, 529, "overloaded_error")
        for client in (running, waiting):
            assert_error(await client.read(), 504, "timeout_error")
        gate.open()


async def test_an_answer_that_is_no_document_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(quick(**GENERATE)) as server:
        monkeypatch.setattr("backends.generate._Generation.output", lambda self: "no document")
        assert_error(await server.ask(ask()), 500, "api_error", may_retry="false")
        monkeypatch.undo()
        assert_answer(await server.ask(ask()))


async def test_a_stream_of_batch_mode_has_one_delta() -> None:
    async with serving(quick(**GENERATE, isolation="process")) as server, connected(server.port) as client:
        stream = await opened(client, ask("hello", stream=True))
        assert [event.name for event in await stream.rest()] == ["message_start", "content_delta", "message_stop"]


def _count(server: Serving, outcome: Outcome) -> int:
    return server.service.meters.tiers["paid"].outcomes[outcome]
