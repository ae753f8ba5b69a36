"""Streams under hostile conditions, in every grammar: what is silent, what nobody reads, what a proxy would spoil. A test of a
fault tells its story."""

import asyncio
import json
import os
import socket
from typing import Any, cast

import pytest

from batcher.service import answering
from batcher.service.generation import Delta
from batcher.types import Outcome
from tests.service.errors import assert_error
from tests.service.serving import Generating, generating, in_mode, quick, serving, simulated, until
from tests.service.sse import MESSAGES, ask, assert_answer, assert_stream, body, opened
from tests.service.wire_client import KEY, Client, connected, request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]

GRAMMARS = ["native", "anthropic", "openai"]
LONG = 60_000
"""Tokens of an answer that no test waits for."""


def ask_in(grammar: str, content: str, *, headers: dict[str, str] = KEY, **fields: Any) -> bytes:
    if grammar == "anthropic":
        headers = {**headers, "anthropic-version": "2023-06-01"}
    path = "/v1/chat/completions" if grammar == "openai" else MESSAGES
    return request(path=path, body=body(content, **fields), headers=headers)


async def read_stream(client: Client) -> tuple[str, str]:
    """(head, what was chunked) of a streamed response."""
    async with asyncio.timeout(5.0):
        head = (await client.reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        said = b""
        while size := int(await client.reader.readuntil(b"\r\n"), 16):
            said += (await client.reader.readexactly(size + 2))[:-2]
        await client.reader.readexactly(2)
    return head, said.decode()


# What is silent (B71)

PINGS = {
    "native": 'event: ping\ndata: {"type":"ping"}',
    "anthropic": 'event: ping\ndata: {"type":"ping"}',
    "openai": ": ping",
}
ENDS = {"native": "event: message_stop", "anthropic": "event: message_stop", "openai": "data: [DONE]"}


@pytest.mark.parametrize("grammar", GRAMMARS)
async def test_a_silent_stream_pings_in_its_grammar_until_its_end(grammar: str) -> None:
    settings = simulated(simulated_time_scale=20.0, ping_interval=0.02)
    async with generating(settings) as server, connected(server.port) as client:
        client.write(ask_in(grammar, "abc", stream=True))
        _, said = await read_stream(client)
        blocks = said.removesuffix("\n\n").split("\n\n")
        assert blocks.count(PINGS[grammar]) >= 2
        assert PINGS[grammar] not in blocks[0]
        assert blocks[-1].startswith(ENDS[grammar])
        assert sum(block.startswith(ENDS[grammar]) for block in blocks) == 1
        # The connection is the next request's: nothing of the stream comes behind it, however long it is silent now.
        await asyncio.sleep(0.05)
        assert (await client.ask(request("GET", "/health"))).status == 200


async def test_nothing_is_said_before_the_first_text() -> None:
    """The 200 is held back until then, so that a refusal still has its status (B68): no ping comes before it."""
    settings = simulated(simulated_answer="repeat", simulated_time_scale=0.1, max_num_seqs=1, ping_interval=0.005)
    async with generating(settings) as server, connected(server.port) as first, connected(server.port) as second:
        first.write(ask(max_tokens=LONG))
        await until(lambda: server.statistics.num_running == 1)
        second.write(ask("waits", max_tokens=10, stream=True))
        await until(lambda: server.statistics.num_waiting == 1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await second.reader.read(1)
        server.service.replica.abandon()
        assert_error(await second.read(), 529, "overloaded_error")


# What a proxy would spoil (B72)


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("mode", ["continuous", "batch"])
async def test_a_stream_is_not_compressed_nor_kept(grammar: str, mode: str) -> None:
    headers = {**KEY, "accept-encoding": "gzip, deflate, br, zstd", "accept": "text/event-stream"}
    async with in_mode(mode) as server, connected(server.port) as client:
        client.write(ask_in(grammar, "compressible " * 20, headers=headers, stream=True, max_tokens=500))
        head, said = await read_stream(client)
    assert head.startswith("http/1.1 200 ")
    assert "content-type: text/event-stream; charset=utf-8\r\n" in head
    assert "cache-control: no-cache\r\n" in head
    assert "x-accel-buffering: no\r\n" in head
    assert "content-encoding" not in head
    assert "content-length" not in head
    assert "event: " in said or "data: " in said


# What nobody reads


async def test_a_long_answer_in_one_piece_was_not_left_untaken() -> None:
    """In batch mode an answer is one event. Of more than 262,144 characters it was taken for a heap that nobody read, and its
    client, which read everything, was told 500."""
    async with serving(quick()) as server, connected(server.port) as client:
        content = "x" * 600_000 + "é"
        stream = await opened(client, ask(content, stream=True, max_tokens=10**6))
        text, reason, usage = assert_stream(await stream.rest(), stream.headers["x-request-id"])
        assert (text == content, reason, usage["output_tokens"]) == (True, "end_turn", 600_002)


async def _until_given_up(server: Generating, client: Client) -> None:
    """A stream that is not read, until nothing is computed for it any more."""
    with socket.socket(fileno=os.dup(server.server.servers[0].sockets[0].fileno())) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    async with connected(server.port) as deaf:
        cast(asyncio.Transport, deaf.writer.transport).pause_reading()
        deaf.write(ask("x", max_tokens=LONG, stream=True))
        await until(lambda: server.count(Outcome.CANCELLED) == 1)
        await until(lambda: server.statistics.num_live == 0)
        connections = server.server.server_state.connections
        assert max(one.transport.get_write_buffer_size() for one in connections) < 200_000
        client.write(ask("next", max_tokens=10))
        assert_answer(await client.read())
        cast(asyncio.Transport, deaf.writer.transport).resume_reading()
        _, said = await read_stream(deaf)
    last = said.removesuffix("\n\n").split("\n\n")[-1]
    name, data = last.split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "timeout_error"


async def test_a_stream_that_is_not_read_costs_a_stated_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """And if it is read after all, it says why it ends. It used to count characters of text alone, and the events of single
    letters took a hundred times as much; and it broke off without a word."""
    monkeypatch.setattr(answering, "MAX_UNTAKEN_BYTES", 100_000)
    async with generating(simulated(simulated_answer="repeat", body_timeout=5.0)) as server:
        async with connected(server.port) as client:
            await _until_given_up(server, client)
        assert server.service.replica.meters.num_output_tokens < LONG / 3


def test_what_is_not_read_is_counted_as_it_is_in_memory() -> None:
    inbox = answering._Inbox()
    for _ in range(1000):
        inbox.put(Delta("x", 1))
    assert 100 * 1000 < inbox.num_bytes < 200 * 1000
    assert len(inbox.take()) == 1000
    assert inbox.num_bytes == 0


# Methods that are not asked (B78)


@pytest.mark.parametrize("path", ["/v1/run", MESSAGES, "/v1/messages/count_tokens", "/v1/chat/completions", "/v1/models"])
async def test_other_methods_need_a_key_and_are_405(path: str) -> None:
    async with serving(quick()) as server:
        for method in ("OPTIONS", "HEAD", "PUT", "DELETE", "PATCH", "TRACE"):
            for key, status in ((KEY, 405), ({}, 401)):
                async with connected(server.port) as client:
                    client.write(request(method, path, headers=key))
                    response = await client.read(is_head=method == "HEAD")
                    wanted = 200 if (path, method, key) == ("/v1/models", "HEAD", KEY) else status
                    assert response.status == wanted, (method, path)
                    if status == 405 and wanted == 405:
                        assert response.headers["allow"]
