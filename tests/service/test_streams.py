"""Streams while they run: who leaves, who does not read, what fails, what is silent, and what all of that costs the others."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any, cast

import pytest

from batcher.config import TierConfig
from batcher.service.server import Server
from batcher.types import Outcome
from tests.service.errors import assert_error
from tests.service.serving import Generating, generating, simulated, until
from tests.service.sse import MESSAGES, ask, assert_answer, assert_stream, body, opened
from tests.service.wire_client import KEY, Client, connected, request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]

ENDLESS = {"simulated_answer": "repeat", "simulated_time_scale": 0.1}
"""Answers go on to max_tokens, a token each half millisecond."""
LONG = 60_000
"""Tokens of an answer that no test waits for."""
FREE = {"x-api-key": "dev-free"}


async def running(server: Generating, client: Client, **fields: Any) -> None:
    """Starts an answer that takes a minute."""
    num_before = server.statistics.num_running
    client.write(ask(max_tokens=LONG, **fields))
    await until(lambda: server.statistics.num_running == num_before + 1)


# Who leaves


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_nobody_generates_for_who_has_left(is_streamed: bool) -> None:
    """B24: the slot and the blocks are free within two steps."""
    async with generating(simulated(**ENDLESS)) as server, connected(server.port) as client:
        await running(server, client, stream=is_streamed)
        client.leave()
        await server.check_idle()
        assert server.count(Outcome.CANCELLED) == 1
        assert server.service.replica.meters.num_output_tokens < LONG


async def test_who_ends_its_side_has_left() -> None:
    async with generating(simulated(**ENDLESS)) as server, connected(server.port) as client:
        stream = await opened(client, ask(max_tokens=LONG, stream=True))
        assert (await stream.next()) is not None
        client.writer.write_eof()
        await server.check_idle()


async def test_who_waits_and_leaves_never_starts() -> None:
    """B25: and what it took in the queue is given back."""
    async with generating(simulated(**ENDLESS, max_num_seqs=1)) as server, connected(server.port) as first:
        await running(server, first)
        for _ in range(20):
            async with connected(server.port) as client:
                client.write(ask("waits", max_tokens=10))
                await until(lambda: server.statistics.num_waiting == 1)
            await until(lambda: server.statistics.num_waiting == server.statistics.num_waiting_tokens == 0)
        assert server.service.replica.meters.num_input_tokens == len("hello") + 3
        first.leave()
        await server.check_idle()
        assert server.count(Outcome.CANCELLED) == 21


async def test_leaving_at_any_moment_does_not_erode_capacity() -> None:
    """B20."""
    async with generating(simulated(simulated_time_scale=0.02, kv_blocks=32)) as server:
        random = Random(20)
        for number in range(200):
            async with connected(server.port) as client:
                client.write(ask(f"{number}" * 20, stream=bool(number % 2)))
                await asyncio.sleep(random.choice([0.0, random.uniform(0.0, 0.004)]))
        await server.check_idle()
        answers = await asyncio.gather(*(server.ask(ask(f"{number}")) for number in range(8)))
        assert [assert_answer(answer)[0] for answer in answers] == [f"{number}" for number in range(8)]


async def _call(
    server: Generating, receive: Callable[[], Awaitable[dict[str, Any]]], send: Callable[[Any], Awaitable[None]]
) -> None:
    scope = {
        "type": "http",
        "method": "POST",
        "path": MESSAGES,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in KEY.items()],
    }
    await server.app(scope, receive, send)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_endpoint_can_be_cancelled_at_every_await(is_streamed: bool) -> None:
    async with generating(simulated(simulated_time_scale=0.2)) as server:
        for content in ("hello", "x" * 5_000):  # The second is tokenized on a thread.
            for num_steps in range(25):
                data = body(content, stream=is_streamed)
                pieces = [{"type": "http.request", "body": data[at : at + 3000], "more_body": True} for at in (0, 3000)]
                pieces.append({"type": "http.request"})

                async def receive(pieces: list[dict[str, Any]] = pieces) -> dict[str, Any]:
                    await asyncio.sleep(0)
                    if pieces:
                        return pieces.pop(0)
                    await asyncio.Event().wait()
                    raise AssertionError

                call = asyncio.ensure_future(_call(server, receive, lambda message: asyncio.sleep(0)))
                for _ in range(num_steps):
                    await asyncio.sleep(0)
                call.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await call
            await server.check_idle()


@pytest.mark.parametrize("num_pieces", range(4))
async def test_nothing_is_sent_to_who_has_left(num_pieces: int) -> None:
    """B28: told by http.disconnect, before, in and behind the body."""
    data = body(max_tokens=LONG, stream=True)
    messages = [{"type": "http.request", "body": data[at : at + 50], "more_body": at < 100} for at in (0, 50, 100)][:num_pieces]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError(message)

    async with generating(simulated(**ENDLESS)) as server:
        await _call(server, receive, send)


# Who does not read


async def test_a_client_that_does_not_read_is_cut_off_and_holds_nothing() -> None:
    settings = simulated(simulated_answer="repeat", body_timeout=0.05)
    async with generating(settings) as server, connected(server.port) as client:
        _shrink_buffers(server.server)
        async with connected(server.port) as deaf:
            cast(asyncio.Transport, deaf.writer.transport).pause_reading()
            deaf.write(ask("x", max_tokens=LONG, stream=True))
            await until(lambda: server.count(Outcome.CANCELLED) == 1)
            await server.check_idle()
        assert_answer(await client.ask(ask("next")))


async def test_the_system_does_not_hide_who_does_not_read() -> None:
    """By itself it took megabytes of a stream that nobody read: most answers were over before anybody could tell, and until
    then they kept slots and blocks from others."""
    settings = simulated(simulated_answer="repeat", simulated_time_scale=0.02, body_timeout=0.05)
    async with generating(settings) as server, connected(server.port) as deaf:
        cast(asyncio.Transport, deaf.writer.transport).pause_reading()
        deaf.write(ask("x", max_tokens=LONG, stream=True))
        await until(lambda: server.count(Outcome.CANCELLED) + server.count(Outcome.OK) == 1)
        assert server.service.replica.meters.num_output_tokens < LONG / 3
        assert server.count(Outcome.CANCELLED) == 1


def _shrink_buffers(server: Server) -> None:
    """So that little need be generated to fill what the kernel would hold for a client."""
    with socket.socket(fileno=os.dup(server.servers[0].sockets[0].fileno())) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)


async def test_under_any_asgi_server_a_send_that_does_not_end_is_given_up() -> None:
    """Our own server cuts the connection off by itself; another one lets `send` wait for ever."""
    messages = [{"type": "http.request", "body": body(max_tokens=LONG, stream=True)}]

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    async with generating(simulated(**ENDLESS, body_timeout=0.05)) as server:
        await _call(server, receive, send)
        await server.check_idle()
        assert server.count(Outcome.CANCELLED) == 1


async def test_a_client_that_reads_late_gets_everything() -> None:
    """What came meanwhile is sent together, in order."""
    settings = simulated(simulated_answer="repeat", body_timeout=5.0)
    async with generating(settings) as server, connected(server.port) as client:
        _shrink_buffers(server.server)
        async with connected(server.port) as slow:
            transport = cast(asyncio.Transport, slow.writer.transport)
            stream = await opened(slow, ask("0123456789", max_tokens=5_000, stream=True))
            transport.pause_reading()
            await until(lambda: server.count(Outcome.OK) == 1)
            assert_answer(await client.ask(ask("next", max_tokens=10)))
            transport.resume_reading()
            text, reason, usage = assert_stream(await stream.rest(), stream.headers["x-request-id"])
        assert (text, reason, usage["output_tokens"]) == ("0123456789" * 500, "max_tokens", 5_000)


# What is silent (B71)


async def test_a_silent_stream_says_that_it_lives() -> None:
    settings = simulated(simulated_time_scale=20.0, ping_interval=0.02)
    async with generating(settings) as server, connected(server.port) as client:
        stream = await opened(client, ask("abc", stream=True))
        events = await stream.rest()
        names = [event.name for event in events]
        assert assert_stream(events, stream.headers["x-request-id"])[0] == "abc"
        assert names[:2] == ["message_start", "content_delta"]
        assert names.count("ping") >= 3
        assert names[-1] == "message_stop"
        ping = next(event for event in events if event.name == "ping")
        assert ping.data == {"type": "ping"}


# What fails


async def test_a_failure_after_the_first_token_is_an_event() -> None:
    """B68: the 200 is out, so it is told in the stream, in the shape that every error has; metrics count it as one."""
    async with generating(simulated(**ENDLESS)) as server, connected(server.port) as client, connected(server.port) as other:
        stream = await opened(client, ask(max_tokens=LONG, stream=True))
        for _ in range(3):
            assert (await stream.next()) is not None
        other.write(ask(max_tokens=LONG))
        await until(lambda: server.statistics.num_running == 2)
        server.service.replica.abandon()
        events = await stream.rest()
        assert {event.name for event in events[:-1]} <= {"content_delta"}
        assert events[-1].name == "error"
        assert events[-1].data["error"]["type"] == "overloaded_error"
        assert events[-1].data["request_id"] == stream.headers["x-request-id"]
        assert_error(await other.read(), 529, "overloaded_error")
        assert server.count(Outcome.REJECTED_SHUTDOWN) == 2


async def test_a_failure_before_the_first_token_has_its_status() -> None:
    async with generating(simulated(**ENDLESS, max_num_seqs=1)) as server, AsyncExitStack() as clients:
        first, whole, streamed = [await clients.enter_async_context(connected(server.port)) for _ in range(3)]
        await running(server, first)
        whole.write(ask("waits"))
        streamed.write(ask("waits", stream=True))
        await until(lambda: server.statistics.num_waiting == 2)
        server.service.replica.abandon()
        for client in (first, whole, streamed):
            assert_error(await client.read(), 529, "overloaded_error")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_over_capacity_a_request_is_refused_at_once(is_streamed: bool) -> None:
    async with generating(simulated(**ENDLESS, max_num_seqs=1, max_waiting=2)) as server, AsyncExitStack() as clients:
        first, second, third = [await clients.enter_async_context(connected(server.port)) for _ in range(3)]
        await running(server, first)
        for client in (second, third):
            client.write(ask("waits"))
        await until(lambda: server.statistics.num_waiting == 2)
        assert_error(await server.ask(ask("too many", stream=is_streamed)), 529, "overloaded_error")
        assert server.count(Outcome.REJECTED_CAPACITY) == 1
        for client in (first, second, third):
            client.leave()


async def test_a_request_that_does_not_start_in_time_is_told_so() -> None:
    """And one that has started goes on for as long as it takes."""
    settings = simulated(**ENDLESS, max_num_seqs=1, request_timeout=0.05)
    async with generating(settings) as server, connected(server.port) as first, connected(server.port) as second:
        stream = await opened(first, ask(max_tokens=1_000, stream=True))
        assert_error(await second.ask(ask("waits", stream=True)), 504, "timeout_error")
        assert len(assert_stream(await stream.rest(), stream.headers["x-request-id"])[0]) == 1_000
        assert (server.count(Outcome.EXPIRED), server.count(Outcome.OK)) == (1, 1)


async def test_who_runs_is_not_disturbed_by_who_is_refused() -> None:
    tiers = (TierConfig("paid", start_budget_s=3600.0), TierConfig("free", start_budget_s=3600.0))
    async with generating(simulated(simulated_time_scale=0.02, tiers=tiers)) as server:
        contents = [f"{number} " * 50 for number in range(12)]
        requests = [
            ask(content, max_tokens=1000, headers=FREE if number % 3 else KEY) for number, content in enumerate(contents)
        ]
        bad = [ask("x", max_tokens=0), ask("x", model="other"), request(path=MESSAGES, body=b"{")] * 4
        answers = await asyncio.gather(*(server.ask(data) for pair in zip(requests, bad, strict=True) for data in pair))
        assert [assert_answer(answer)[0] for answer in answers[::2]] == contents
        assert {answer.status for answer in answers[1::2]} == {400, 404}
