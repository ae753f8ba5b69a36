"""The official `openai` client where something goes wrong: refusals, and streams that break."""

import pytest
from openai import (
    APIConnectionError,
    APIError,
    APIStatusError,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    RateLimitError,
)
from openai.types.chat import ChatCompletionChunk

from batcher import errors
from batcher.config import TierConfig
from batcher.service.wire.openai import OPENAI
from tests.service.modes import MODES, served
from tests.service.sdk import WAYS
from tests.service.sdk_openai import chunks_of, create
from tests.service.stand_in import standing_in, stream
from tests.service.wire.grammars import HEAD, body

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("way", WAYS)]

each_mode = pytest.mark.parametrize("mode", MODES)

# Errors


@each_mode
async def test_what_is_wrong_raises_the_class_for_it(way: str, mode: str) -> None:
    image = [{"type": "image_url", "image_url": {"url": "http://a"}}]
    async with served(mode, max_body_bytes=5000) as server:
        port = server.port
        with pytest.raises(AuthenticationError) as unknown:
            await create(way, port, {"api_key": "wrong"})
        with pytest.raises(BadRequestError, match="max_tokens"):
            await create(way, port, max_tokens=0)
        with pytest.raises(BadRequestError, match="other types than text"):
            await create(way, port, content=image)
        with pytest.raises(BadRequestError, match="n: only 1 is supported"):
            await create(way, port, n=2)
        with pytest.raises(NotFoundError, match="simulated") as missing:
            await create(way, port, model="gpt-of-another-world")
        with pytest.raises(APIStatusError) as large:
            await create(way, port, content="x" * 6000)
        with pytest.raises(BadRequestError):
            await chunks_of(way, port, [], max_tokens=0)
    assert (unknown.value.type, unknown.value.code) == ("authentication_error", "invalid_api_key")
    assert unknown.value.request_id
    assert missing.value.code == "model_not_found"
    assert large.value.status_code == 413


@each_mode
async def test_over_its_limit_a_key_is_told_so(way: str, mode: str) -> None:
    tiers = (TierConfig("paid", requests_per_minute=1), TierConfig("free"))
    async with served(mode, tiers=tiers) as server:
        await create(way, server.port)
        with pytest.raises(RateLimitError) as refused:
            await create(way, server.port)
    headers = refused.value.response.headers
    assert refused.value.code == "rate_limit_exceeded"
    assert 1 <= int(headers["retry-after"]) <= 60
    assert headers["x-ratelimit-limit-requests"] == "1"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-reset-requests"].endswith("s")


# Streams that break

WRITER = OPENAI.open_stream(HEAD, OPENAI.decode(body(stream=True)))
BEGIN = WRITER.start() + WRITER.ping() + WRITER.delta("hel")


async def test_a_stream_that_ends_with_an_error_raises_it(way: str) -> None:
    told: list[ChatCompletionChunk] = []
    failed = stream(OPENAI, BEGIN, WRITER.error(errors.Overloaded("full", retry_after_s=3)))
    async with standing_in(failed) as stand_in:
        with pytest.raises(APIError, match="full") as raised:
            await chunks_of(way, stand_in.port, told)
    assert [chunk.choices[0].delta.content for chunk in told] == ["", "hel"]
    assert raised.value.type == "overloaded_error"


async def test_a_stream_that_is_cut_off_is_no_answer(way: str) -> None:
    told: list[ChatCompletionChunk] = []
    async with standing_in(stream(OPENAI, BEGIN, is_cut=True)) as stand_in:
        with pytest.raises(APIConnectionError):
            await chunks_of(way, stand_in.port, told)
    assert len(told) == 2
