"""Clients that ask and never read: what they leave in the socket must not hold their connection for ever."""

import asyncio
import socket

import pytest

from batcher.types import Outcome
from tests.service.serving import quick, serving, until
from tests.service.wire_client import run

pytestmark = pytest.mark.anyio

BIG = "x" * 50_000
"""More than the sockets hold below, less than what makes a transport say that it is full."""


def deaf_client(port: int, data: bytes) -> socket.socket:
    """Has sent `data`, with as little room for replies as the system allows, and reads nothing."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    client.connect(("127.0.0.1", port))
    client.sendall(data)
    return client


async def assert_gone_in_the_end(data: bytes, *, keep_alive: float = 75.0) -> None:
    async with serving(quick(body_timeout=0.1, keep_alive=keep_alive)) as server:
        for listener in server.server.servers[0].sockets:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        loop = asyncio.get_running_loop()
        client = await loop.run_in_executor(None, deaf_client, server.port, data)
        try:
            await until(lambda: server.service.meters.tiers["paid"].outcomes[Outcome.OK] >= 1)
            await until(lambda: not server.server.server_state.connections)
        finally:
            client.close()


async def test_who_asked_to_close_and_takes_no_reply_is_cut_off() -> None:
    """`transport.close()` waits for its buffer to drain, and a client that reads nothing let it wait for ever."""
    await assert_gone_in_the_end(run(BIG, connection="close"))


async def test_who_idles_with_a_reply_untaken_is_cut_off() -> None:
    await assert_gone_in_the_end(run(BIG), keep_alive=0.05)
