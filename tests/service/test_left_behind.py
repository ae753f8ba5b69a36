"""What a request leaves in memory when it is over: nothing, at once.

The collector of cycles looks seldom (`server.py`), and what waits for it may be a prompt of a megabyte: 250 refused ones held
400 MB, and clients that were cut off left theirs for hours.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from batcher.service.conversation import Conversation
from batcher.types import Outcome
from tests.service.serving import Generating, generating, simulated, until
from tests.service.sse import ask, opened
from tests.service.wire_client import connected

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet", "no_collector")]

LONG = 60_000


def num_conversations() -> int:
    return sum(type(thing) is Conversation for thing in gc.get_objects())


async def is_answered(server: Generating) -> None:
    assert (await server.ask(ask("hello"))).status == 200


async def is_too_long(server: Generating) -> None:
    assert (await server.ask(ask("x" * 5_000, max_tokens=10**9))).status == 400


async def leaves(server: Generating) -> None:
    async with connected(server.port) as client:
        await (await opened(client, ask("x", max_tokens=LONG, stream=True))).next()
        assert num_conversations() == 1


async def does_not_read(server: Generating) -> None:
    async with connected(server.port) as client:
        cast(asyncio.Transport, client.writer.transport).pause_reading()
        client.write(ask("x", max_tokens=LONG, stream=True))
        await until(lambda: server.count(Outcome.CANCELLED) == 1)


@pytest.mark.parametrize("case", [is_answered, is_too_long, leaves, does_not_read])
async def test_nothing_of_a_request_waits_for_the_collector(case: Callable[[Generating], Awaitable[None]]) -> None:
    async with generating(simulated(simulated_answer="repeat", body_timeout=0.05)) as server:
        for _ in range(3 if case in (is_answered, is_too_long) else 1):
            await case(server)
        await until(lambda: num_conversations() == 0)
