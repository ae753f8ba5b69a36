"""The official `anthropic` client where something goes wrong: refusals, and streams that break."""

import asyncio

import httpx2
import pytest
from anthropic import (
    Anthropic,
    APIConnectionError,
    APIStatusError,
    AsyncAnthropic,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    RateLimitError,
)
from anthropic.types import RawMessageStreamEvent

from batcher import errors
from batcher.config import TierConfig
from batcher.service.wire.anthropic import ANTHROPIC
from tests.service.modes import MODES, served
from tests.service.sdk import WAYS, in_thread
from tests.service.sdk_anthropic import asked, create, events_of, settings
from tests.service.stand_in import standing_in, stream
from tests.service.wire.grammars import HEAD, body

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("way", WAYS)]

each_mode = pytest.mark.parametrize("mode", MODES)

# Errors


@each_mode
async def test_what_is_wrong_raises_the_class_for_it(way: str, mode: str) -> None:
    image = [{"type": "image", "source": {"type": "url", "url": "http://a"}}]
    async with served(mode, max_body_bytes=5000) as server:
        port = server.port
        with pytest.raises(AuthenticationError) as unknown:
            await create(way, port, {"api_key": "wrong"})
        with pytest.raises(BadRequestError, match="max_tokens"):
            await create(way, port, max_tokens=0)
        with pytest.raises(BadRequestError, match="other types than text"):
            await create(way, port, content=image)
        with pytest.raises(BadRequestError, match="tools is not supported"):
            await create(way, port, tools=[{"name": "f", "input_schema": {"type": "object"}}])
        with pytest.raises(NotFoundError, match="simulated"):
            await create(way, port, model="claude-of-another-world")
        with pytest.raises(APIStatusError) as large:
            await create(way, port, content="x" * 6000)
        with pytest.raises(BadRequestError):
            await events_of(way, port, [], max_tokens=0)
    assert unknown.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    assert unknown.value.request_id
    assert large.value.status_code == 413


@each_mode
async def test_over_its_limit_a_key_is_told_so(way: str, mode: str) -> None:
    tiers = (TierConfig("paid", requests_per_minute=1), TierConfig("free"))
    async with served(mode, tiers=tiers) as server:
        await create(way, server.port)
        with pytest.raises(RateLimitError) as refused:
            await create(way, server.port)
    headers = refused.value.response.headers
    assert 1 <= int(headers["retry-after"]) <= 60
    assert headers["anthropic-ratelimit-requests-limit"] == "1"
    assert headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert headers["anthropic-ratelimit-requests-reset"].endswith("Z")


# Streams that break

WRITER = ANTHROPIC.open_stream(HEAD, ANTHROPIC.decode(body(stream=True)))
BEGIN = WRITER.start() + WRITER.delta("hel") + WRITER.ping()


async def test_a_stream_that_ends_with_an_error_raises_it(way: str) -> None:
    told: list[RawMessageStreamEvent] = []
    failed = stream(ANTHROPIC, BEGIN, WRITER.error(errors.Overloaded("full", retry_after_s=3)))
    async with standing_in(failed) as stand_in:
        with pytest.raises(APIStatusError) as raised:
            await events_of(way, stand_in.port, told)
    assert [event.type for event in told] == ["message_start", "content_block_start", "content_block_delta"]
    assert raised.value.body["error"] == {"type": "overloaded_error", "message": "full", "retry_after_s": 3}  # type: ignore[index]


async def test_a_stream_that_is_cut_off_is_no_answer(way: str) -> None:
    told: list[RawMessageStreamEvent] = []
    async with standing_in(stream(ANTHROPIC, BEGIN, is_cut=True)) as stand_in:
        with pytest.raises((APIConnectionError, httpx2.RemoteProtocolError)):
            await events_of(way, stand_in.port, told)
    assert len(told) == 3


async def test_a_client_that_leaves_a_stream_leaves_nothing_behind(way: str) -> None:
    """The server's own check at its end: nothing lives on."""
    endless = {"simulated_answer": "repeat", "simulated_time_scale": 0.1}

    def ask(port: int) -> None:
        with Anthropic(**settings(port)) as client, client.messages.create(**asked(max_tokens=60_000), stream=True) as events:
            next(iter(events))

    async with served("continuous", **endless) as server:
        if way == "sync":
            await in_thread(lambda: ask(server.port))
        else:
            async with (
                AsyncAnthropic(**settings(server.port)) as client,
                await client.messages.create(**asked(max_tokens=60_000), stream=True) as events,
            ):
                async for _ in events:
                    break
        await asyncio.sleep(0)
