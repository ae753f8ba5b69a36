"""The official `openai` client where something goes wrong: refusals, retries, streams that break."""

import openai
import pytest
from openai import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    RateLimitError,
)
from openai.types.chat import ChatCompletionChunk

from batcher import errors
from batcher.config import TierConfig
from batcher.service.wire.openai import OPENAI
from batcher.types import FinishReason, Usage
from tests.service.modes import MODES, served
from tests.service.sdk import ERRORS, WAYS, skip_naps
from tests.service.sdk_openai import chunks_of, create
from tests.service.stand_in import REQUEST_ID, SILENCE, refusal, standing_in, stream, whole
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
        with pytest.raises(BadRequestError, match="n is not supported"):
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


async def test_every_error_has_its_class(way: str) -> None:
    async with standing_in(*(refusal(OPENAI, error) for error, _ in ERRORS)) as stand_in:
        for error, name in ERRORS:
            with pytest.raises(getattr(openai, name)) as raised:
                await create(way, stand_in.port)
            assert (raised.value.status_code, raised.value.type) == (error.status, error.type)
            assert raised.value.request_id == REQUEST_ID
            assert "m" in raised.value.message


ANSWER = whole(OPENAI, OPENAI.encode_answer(HEAD, "hello", FinishReason.END_TURN, None, Usage(5, 2)))


async def test_the_client_comes_back_when_it_is_told_to(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    naps = skip_naps(monkeypatch)
    full = refusal(OPENAI, errors.Overloaded("full", retry_after_s=7))
    limited = refusal(OPENAI, errors.RateLimited("enough", retry_after_s=59))
    async with standing_in(full, limited, ANSWER) as stand_in:
        assert (await create(way, stand_in.port, {"max_retries": 2})).id == "chatcmpl-req_1"
        assert len(stand_in.heard) == 3
        assert len({heard.body for heard in stand_in.heard}) == 1
    assert [nap for nap in naps if nap] == [7.0, 59.0]


async def test_the_client_does_not_come_back_where_it_cannot_help(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    naps = skip_naps(monkeypatch)
    failing = [errors.InputFailed("m"), errors.IdempotencyMismatch("m"), errors.InvalidRequest("m")]
    async with standing_in(*(refusal(OPENAI, error) for error in failing)) as stand_in:
        for _ in failing:
            with pytest.raises(APIStatusError):
                await create(way, stand_in.port, {"max_retries": 2})
    assert not any(naps)


async def test_a_client_that_waits_no_longer_says_so(way: str) -> None:
    async with standing_in(SILENCE) as stand_in:
        with pytest.raises(APITimeoutError):
            await create(way, stand_in.port, {"timeout": 0.05})


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
