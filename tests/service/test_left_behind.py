"""What a request leaves in memory when it is over: nothing, at once.

The collector of cycles looks seldom (`server.py`), and what waits for it may be a prompt of a megabyte: 250 refused ones held
400 MB, and clients that were cut off left theirs for hours.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import cast
from unittest.mock import patch

import pytest

from batcher.config import TierConfig
from batcher.core.admission.gate import Refusal
from batcher.errors import Overloaded
from batcher.service.conversation import Conversation
from batcher.types import Outcome
from tests.service.serving import Generating, Serving, generating, quick, serving, simulated, until
from tests.service.sse import ask, opened
from tests.service.wire_client import KEY, connected, request, run

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet", "no_collector")]

LONG = 60_000

RUN_KEPT = ("RunCycle", "_Call", "Account", "Passage", "Conversation", "FastPathProtocol")
"""What knows of a request on the short way."""


def num_conversations() -> int:
    return sum(type(thing) is Conversation for thing in gc.get_objects())


async def is_answered(server: Generating) -> None:
    assert (await server.ask(ask("hello"))).status == 200


async def is_too_long(server: Generating) -> None:
    assert (await server.ask(ask("x" * 5_000, max_tokens=10**9))).status == 400


async def is_refused_by_the_engine(server: Generating) -> None:
    """What it is told with was kept by the frames that it came through, and those by what it came in: no collector saw it."""
    replica = server.service.replica
    error = Overloaded("as if it were busy", retry_after_s=1)
    refusal = Refusal(Outcome.REJECTED_CAPACITY, error)
    with patch.object(replica, "_refusal", lambda tier, tenant, key_id, asked, *, now: asked and refusal):
        for is_streamed in (False, True):
            assert (await server.ask(ask("hello", stream=is_streamed))).status == 529


async def leaves(server: Generating) -> None:
    async with connected(server.port) as client:
        await (await opened(client, ask("x", max_tokens=LONG, stream=True))).next()
        assert num_conversations() == 1


async def does_not_read(server: Generating) -> None:
    async with connected(server.port) as client:
        cast(asyncio.Transport, client.writer.transport).pause_reading()
        client.write(ask("x", max_tokens=LONG, stream=True))
        await until(lambda: server.count(Outcome.CANCELLED) == 1)


@pytest.mark.parametrize("case", [is_answered, is_too_long, is_refused_by_the_engine, leaves, does_not_read])
async def test_nothing_of_a_request_waits_for_the_collector(case: Callable[[Generating], Awaitable[None]]) -> None:
    async with generating(simulated(simulated_answer="repeat", body_timeout=0.05)) as server:
        for _ in range(1 if case in (leaves, does_not_read) else 3):
            await case(server)
        await until(lambda: num_conversations() == 0)


def num_kept() -> int:
    return sum(type(thing).__name__ in RUN_KEPT for thing in gc.get_objects())


async def is_run(server: Serving, path: str) -> None:
    assert (await server.ask(_of(path, "hello"))).status == 200


async def is_run_after_others(server: Serving, path: str) -> None:
    async with connected(server.port) as client:
        client.write(_of(path, "hello") * 5)
        assert [(await client.read()).status for _ in range(5)] == [200] * 5


async def is_no_text(server: Serving, path: str) -> None:
    assert (await server.ask(request(path=path, body=b"{}"))).status == 400


async def is_over_its_limit(server: Serving, path: str) -> None:
    assert (await server.ask(_of(path, "hello", x_api_key="dev-free"))).status in (200, 429)


async def leaves_in_the_middle(server: Serving, path: str) -> None:
    async with connected(server.port) as client:
        client.write(_of(path, "hello") * 3)
        await until(lambda: server.statistics.num_live >= 1)


async def is_too_slow(server: Serving, path: str) -> None:
    assert (await server.ask(_of(path, "hello")[:-1])).status == 408


def _of(path: str, text: str, **headers: str) -> bytes:
    if path == "/v1/run":
        return run(text, **headers)
    own = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(text, headers={**KEY, **own})


@pytest.mark.parametrize("path", ["/v1/run", "/v1/messages"])
@pytest.mark.parametrize(
    "case", [is_run, is_run_after_others, is_no_text, is_over_its_limit, leaves_in_the_middle, is_too_slow]
)
async def test_nothing_of_a_request_on_the_short_way_waits_for_the_collector(
    case: Callable[[Serving, str], Awaitable[None]], path: str
) -> None:
    """A request and what it was submitted as knew each other for ever: a megabyte of input was kept for each of thousands."""
    tiers = (TierConfig("paid", wait_budget_s=3600.0), TierConfig("free", wait_budget_s=3600.0, requests_per_minute=1))
    async with serving(quick(tiers=tiers, body_timeout=0.1, service_time=0.005)) as server:
        for _ in range(3):
            await case(server, path)
        await until(lambda: num_kept() == 0)
