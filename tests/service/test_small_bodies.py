"""Refusals by the headers alone, to clients that send a request's body after its head, as HTTP libraries do."""

import asyncio
import socket

import pytest
from starlette.types import Message, Receive, Scope, Send

from batcher.config import TierConfig
from batcher.service.small_bodies import SmallBodies
from tests.service.serving import in_mode
from tests.service.sse import ask
from tests.service.wire_client import KEY, connected, request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]

BODY = b'{"model": "simulated", "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}'
SPENT = (TierConfig("paid", requests_per_minute=1),)


@pytest.mark.parametrize("mode", ["batch", "continuous"])
@pytest.mark.parametrize("path", ["/v1/run?x", "/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens", "/nope"])
async def test_a_connection_goes_on_after_a_refusal_that_came_before_the_body(mode: str, path: str) -> None:
    """It ended, without a word of it in the reply: the next request on it was sent to nobody."""
    refused = request(path=path, body=BODY, headers={"x-api-key": "nobody's"})
    async with in_mode(mode) as server, connected(server.port) as client:
        client.write(refused.removesuffix(BODY))
        # By the time that another is answered the head has been read.
        assert (await server.ask(request("GET", "/health"))).status == 200
        assert (await client.ask(BODY)).status == 401
        assert (await client.ask(request("GET", "/health"))).status == 200


@pytest.mark.parametrize("mode", ["batch", "continuous"])
async def test_who_has_no_room_keeps_the_connection_too(mode: str) -> None:
    async with in_mode(mode, tiers=SPENT) as server, connected(server.port) as client:
        assert (await client.ask(ask("hello", max_tokens=1))).status == 200
        for _ in range(2):
            client.write(request(path="/v1/messages", body=BODY).removesuffix(BODY))
            assert (await server.ask(request("GET", "/health"))).status == 200
            assert (await client.ask(BODY)).status == 429


@pytest.mark.parametrize("mode", ["batch", "continuous"])
@pytest.mark.parametrize("framing", [{"content-length": "900000"}, {"transfer-encoding": "chunked"}])
@pytest.mark.parametrize("path", ["/v1/run?x", "/v1/messages", "/nope"])
async def test_behind_a_large_body_the_connection_ends_and_the_reply_says_so(
    mode: str, path: str, framing: dict[str, str]
) -> None:
    """And what the client still sends, while the reply is under way, does not make its system throw that away."""
    loop = asyncio.get_running_loop()
    async with in_mode(mode) as server:
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.setblocking(False)
            await loop.sock_sendall(client, request(path=path, headers={"x-api-key": "nobody's", **framing}))
            assert (await server.ask(request("GET", "/health"))).status == 200
            # Not read before all is sent: what a reset finds there it takes away.
            await loop.sock_sendall(client, b"800\r\n" + b"x" * 600_000)
            reply = b""
            while data := await loop.sock_recv(client, 65_536):
                reply += data
    assert reply.startswith(b"HTTP/1.1 401 ")
    assert reply.count(b"\r\nconnection: close\r\n") == 1


@pytest.mark.parametrize("mode", ["batch", "continuous"])
async def test_who_waits_to_be_let_in_is_refused_without_a_body(mode: str) -> None:
    headers = {"x-api-key": "nobody's", "expect": "100-continue", "content-length": "91"}
    async with in_mode(mode) as server, connected(server.port) as client:
        refusal = await client.ask(request(path="/v1/messages", headers=headers))
        assert (refusal.status, refusal.headers["connection"]) == (401, "close")


@pytest.mark.parametrize("mode", ["batch", "continuous"])
async def test_a_small_body_that_never_comes_is_not_waited_for_longer_than_any(mode: str) -> None:
    async with in_mode(mode, body_timeout=0.03) as server, connected(server.port) as client:
        refusal = await client.ask(request(path="/v1/messages", headers={"x-api-key": "nobody's", "content-length": "91"}))
        assert (refusal.status, refusal.headers["connection"]) == (401, "close")
        assert await client.read_to_end() == b""
        assert (await server.ask(request("GET", "/v1/models", headers=KEY))).status == 200


async def test_a_small_body_that_never_comes_is_waited_for_once() -> None:
    """It was for each message of the reply: twice as long, with the head of the refusal already sent."""
    num_waits = 0
    sent: list[Message] = []

    async def never() -> Message:
        nonlocal num_waits
        num_waits += 1
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    async def refusing(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})

    app = SmallBodies(refusing, body_timeout_s=0.01)
    await app({"type": "http", "headers": [(b"content-length", b"91")]}, never, send)
    assert num_waits == 1
    assert sent == [
        {"type": "http.response.start", "status": 401, "headers": [(b"connection", b"close")]},
        {"type": "http.response.body", "body": b"no"},
    ]
