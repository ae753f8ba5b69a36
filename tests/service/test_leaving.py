"""Clients that leave. Whatever the moment, their place is given back, nobody computes for them, and the others are answered."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batcher.config import TierConfig
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.types import Outcome
from tests.service.serving import ASYNC_FAULTY, Gate, Serving, quick, serving, until
from tests.service.wire_client import KEY, connected, request, run

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]

PATIENT = (TierConfig("paid", wait_budget_s=3600.0), TierConfig("free", wait_budget_s=3600.0))


def count(server: Serving, outcome: Outcome) -> int:
    return server.service.meters.tiers["paid"].outcomes[outcome]


async def has_full_capacity(server: Serving) -> None:
    """Every worker is free, and takes a batch."""
    num_workers = server.service.settings.workers
    await until(lambda: server.statistics.workers["free"] == num_workers)
    answers = await asyncio.gather(*(server.ask(run(f"{number}")) for number in range(num_workers)))
    assert [answer.status for answer in answers] == [200] * num_workers


async def test_who_waits_and_leaves_never_runs(path: str, gate: Gate) -> None:
    """B22: nothing is sent to the worker that comes free."""
    async with serving(quick(backend=ASYNC_FAULTY, workers=1)) as server, connected(server.port) as first:
        first.write(run(gate.hold))
        await until(lambda: server.statistics.num_running == 1)
        async with connected(server.port) as second:
            second.write(run("gone", path=path))
            await until(lambda: server.statistics.num_live == 2)
        await until(lambda: server.statistics.num_live == 1)
        gate.open()
        assert (await first.read()).status == 200
        assert server.statistics.counters.batch_sizes == {1: 1}
        assert count(server, Outcome.CANCELLED) == 1


async def test_who_runs_and_leaves_takes_nobody_along(path: str, gate: Gate, tmp_path: Path) -> None:
    """B15: the outputs of those that left must not shift the others'."""
    async with serving(quick(backend=ASYNC_FAULTY, workers=1)) as server, AsyncExitStack() as clients:
        first = await clients.enter_async_context(connected(server.port))
        until_all_wait = Gate(tmp_path / "all-wait")
        first.write(run(until_all_wait.hold))
        await until(lambda: server.statistics.num_running == 1)
        others = [await clients.enter_async_context(connected(server.port)) for _ in range(30)]
        for number, client in enumerate(others):
            client.write(run(gate.hold if number == 0 else f"{number}", path=path))
        await until(lambda: server.statistics.tiers[0].num_waiting == 30)
        until_all_wait.open()
        await until(lambda: server.statistics.counters.batch_sizes == {1: 1, 30: 1})
        for number in range(0, 30, 3):
            others[number].leave()
        await until(lambda: server.statistics.num_live == 20)
        gate.open()
        for number in range(30):
            if number % 3:
                assert (await others[number].read()).json["output"] == f"<{number}>"
        assert count(server, Outcome.CANCELLED) == 10


@pytest.mark.parametrize(
    "behind",
    [run("behind"), run("behind", path="/v1/run?x"), request("GET", "/health"), b"POST /v1/", b"\0"],
    ids=["fast", "asgi", "other", "half", "garbage"],
)
async def test_who_leaves_with_more_in_the_pipeline_gives_all_of_it_back(path: str, gate: Gate, behind: bytes) -> None:
    async with serving(quick(backend=ASYNC_FAULTY, workers=1)) as server, connected(server.port) as client:
        client.write(run(gate.hold, path=path) + behind)
        await until(lambda: server.statistics.num_running == 1)
        client.leave()
        await until(lambda: server.statistics.num_live == 0)
        gate.open()
        await server.check_idle()
        assert server.statistics.counters.batch_sizes == {1: 1}


async def test_who_ends_its_side_has_left(path: str, gate: Gate) -> None:
    """A half-closed connection cannot be told from a closed one before something is written, and then it is too late."""
    async with serving(quick(backend=ASYNC_FAULTY, workers=1)) as server, connected(server.port) as client:
        client.write(run(gate.hold, path=path))
        await until(lambda: server.statistics.num_running == 1)
        client.writer.write_eof()
        await until(lambda: server.statistics.num_live == 0)
        assert await client.read_to_end() == b""
        gate.open()


async def test_who_leaves_in_mid_request_was_never_there(path: str) -> None:
    """At every byte of a small request, and in the body of a large one (B26)."""
    async with serving(quick()) as server:
        data = run("hello", path=path)
        large = run("x" * 100_000, path=path)
        for sent in [*(data[:at] for at in range(len(data))), *(large[:at] for at in range(1000, 100_000, 9999))]:
            async with connected(server.port) as client:
                client.write(sent)
                await asyncio.sleep(0)
        await until(lambda: not server.server.server_state.connections)
        assert server.statistics.counters.batch_sizes == {}
        await has_full_capacity(server)


async def test_leaving_around_the_hand_off_does_not_erode_capacity(path: str) -> None:
    """B20, around the hand-off and around the answer: batches take 1 ms."""
    async with serving(quick(service_time=0.001)) as server:
        random = Random(20)
        for number in range(300):
            async with connected(server.port) as client:
                client.write(run(f"{number}", path=path))
                await asyncio.sleep(random.choice([0.0, random.uniform(0.0, 0.002)]))
        await server.check_idle()
        ended = {outcome: count(server, outcome) for outcome in Outcome if count(server, outcome)}
        assert set(ended) <= {Outcome.OK, Outcome.CANCELLED}
        await has_full_capacity(server)


async def test_a_wave_of_impatience_does_no_lasting_damage(path: str) -> None:
    """B19: the patient are served after it as before it."""

    async def patient(number: int) -> bool:
        return bool((await server.ask(run(f"{number}", path=path))).json["output"] == f"{number}")

    async def impatient(number: int) -> None:
        async with connected(server.port) as client:
            client.write(run(f"{number}", path=path))
            await asyncio.sleep(0.01)

    async with serving(quick(service_time=0.03, tiers=PATIENT)) as server:
        for _ in range(2):
            assert all(await asyncio.gather(*(patient(number) for number in range(100))))
            await asyncio.gather(*(impatient(number) for number in range(100)))
        assert all(await asyncio.gather(*(patient(number) for number in range(100))))
        assert count(server, Outcome.OK) >= 300
        await server.check_idle()
        await has_full_capacity(server)


async def test_who_leaves_at_the_moment_of_the_answer_is_counted_once(path: str) -> None:
    async with serving(quick(service_time=0.001)) as server, AsyncExitStack() as clients:

        def all_answered() -> bool:
            return count(server, Outcome.OK) == num_asked

        for num_asked in range(1, 51):
            client = await clients.enter_async_context(connected(server.port))
            client.write(run(f"{num_asked}", path=path))
            await until(all_answered)
            client.leave()
        assert (count(server, Outcome.OK), count(server, Outcome.CANCELLED)) == (50, 0)


# The ASGI endpoint, cancelled at every await (DESIGN D9)


async def _call(
    server: Serving,
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[Any], Awaitable[None]],
) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/run",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in KEY.items()],
    }
    await server.app(scope, receive, send)


def _receive_in_pieces(text: str) -> Callable[[], Awaitable[dict[str, Any]]]:
    """A body of three pieces, each a turn of the loop later; then a client that waits."""
    body = json.dumps({"input": text}).encode()
    size = -(-len(body) // 3)
    pieces = [
        {"type": "http.request", "body": body[at : at + size], "more_body": at + size < len(body)}
        for at in range(0, len(body), size)
    ]

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0)
        if pieces:
            return pieces.pop(0)
        await asyncio.Event().wait()
        raise AssertionError

    return receive


@pytest.mark.parametrize("num_steps", range(16))
async def test_the_asgi_endpoint_can_be_cancelled_anywhere_before_the_answer(num_steps: int, gate: Gate) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async with serving(quick(backend=ASYNC_FAULTY, workers=1)) as server:
        call = asyncio.ensure_future(_call(server, _receive_in_pieces(gate.hold), send))
        for _ in range(num_steps):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        gate.open()
        assert sent == []
        await server.check_idle()


@pytest.mark.parametrize("num_sent", range(2))
async def test_the_asgi_endpoint_can_be_cancelled_in_the_answer(num_sent: int) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        if len(sent) == num_sent:
            call.cancel()
        await asyncio.sleep(0)
        sent.append(message)

    async with serving(quick()) as server:
        call = asyncio.ensure_future(_call(server, _receive_in_pieces("hello"), send))
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(sent) == num_sent
        await server.check_idle()


@pytest.mark.parametrize("num_pieces", range(4))
async def test_the_asgi_endpoint_sends_nothing_to_who_has_left(num_pieces: int) -> None:
    """B28: told by http.disconnect, before, in and behind the body."""
    body = b'{"input": "hello"}'
    messages = [{"type": "http.request", "body": body[at : at + 6], "more_body": at < 12} for at in (0, 6, 12)][:num_pieces]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async with serving(quick()) as server:
        await _call(server, receive, send)
        assert sent == []
        assert server.service.driver.num_live == 0


async def test_a_check_that_can_fail(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """The common check would see a leak: here a cancellation that does not reach the dispatcher."""
    async with serving(quick(backend=ASYNC_FAULTY, workers=1)) as server, connected(server.port) as client:
        client.write(run(gate.hold))
        await until(lambda: server.statistics.num_running == 1)
        with monkeypatch.context() as patch:
            patch.setattr(Dispatcher, "cancel", lambda self, request_id: False)
            client.leave()
            await until(lambda: server.service.driver.num_live == 0)
        assert server.statistics.num_live == 1
        (leaked,) = server.service.dispatcher.live_requests
        server.service.dispatcher.cancel(leaked.id)
        gate.open()
