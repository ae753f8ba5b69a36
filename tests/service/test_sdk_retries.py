"""Both official clients on errors: which class is raised, whether they ask again by themselves, and when.

Clients decide by the status and by the headers `retry-after` and `x-should-retry`, so they must be told the same in both
grammars.
"""

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anthropic
import openai
import pytest

from batcher import errors
from batcher.service.wire.anthropic import ANTHROPIC
from batcher.service.wire.dialect import Dialect
from batcher.service.wire.openai import OPENAI
from batcher.types import FinishReason, Usage
from tests.service import sdk_anthropic, sdk_openai
from tests.service.sdk import WAYS, skip_naps
from tests.service.stand_in import REQUEST_ID, SILENCE, refusal, standing_in, whole
from tests.service.wire.grammars import HEAD


class Vendor(NamedTuple):
    """One official client. It is typed by its own module; here both are asked in the same words."""

    module: Any
    dialect: Dialect
    create: Callable[..., Awaitable[Any]]
    answer_id: str
    """Of HEAD's answer."""


VENDORS = {
    "anthropic": Vendor(anthropic, ANTHROPIC, sdk_anthropic.create, "msg_req_1"),
    "openai": Vendor(openai, OPENAI, sdk_openai.create, "chatcmpl-req_1"),
}

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.parametrize("vendor", VENDORS.values(), ids=VENDORS),
    pytest.mark.parametrize("way", WAYS),
]

ERRORS: list[tuple[errors.ServiceError, str]] = [
    (errors.InvalidRequest("m"), "BadRequestError"),
    (errors.NotAuthenticated("m"), "AuthenticationError"),
    (errors.PermissionDenied("m"), "PermissionDeniedError"),
    (errors.NotFound("m"), "NotFoundError"),
    (errors.RequestTimeout("m"), "APIStatusError"),
    (errors.IdempotencyConflict("m", retry_after_s=1), "ConflictError"),
    (errors.IdempotencyMismatch("m"), "UnprocessableEntityError"),
    (errors.RateLimited("m", retry_after_s=1), "RateLimitError"),
    (errors.ServerFault("m"), "InternalServerError"),
    (errors.Expired("m"), "InternalServerError"),
    (errors.Overloaded("m", retry_after_s=1), "InternalServerError"),
]
"""And the class that is raised for each, which both clients call by the same name."""


async def test_every_error_has_its_class(vendor: Vendor, way: str) -> None:
    async with standing_in(*(refusal(vendor.dialect, error) for error, _ in ERRORS)) as stand_in:
        for error, name in ERRORS:
            with pytest.raises(getattr(vendor.module, name)) as raised:
                await vendor.create(way, stand_in.port)
            assert raised.value.status_code == error.status
            assert raised.value.request_id == REQUEST_ID
            # One client keeps the whole body, the other what stands under `error` in it.
            told = raised.value.body.get("error", raised.value.body)
            assert told["message"] == "m"
            has_word = vendor.module is openai or error.type != "idempotency_error"
            assert told["type"] == (error.type if has_word else "invalid_request_error")


async def test_the_client_comes_back_when_it_is_told_to(vendor: Vendor, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    naps = skip_naps(monkeypatch)
    full = refusal(vendor.dialect, errors.Overloaded("full", retry_after_s=7))
    limited = refusal(vendor.dialect, errors.RateLimited("enough", retry_after_s=59))
    answer = whole(vendor.dialect, vendor.dialect.encode_answer(HEAD, "hello", FinishReason.END_TURN, None, Usage(5, 2)))
    async with standing_in(full, limited, answer) as stand_in:
        assert (await vendor.create(way, stand_in.port, {"max_retries": 2})).id == vendor.answer_id
        assert len(stand_in.heard) == 3
        assert len({heard.body for heard in stand_in.heard}) == 1
    assert [nap for nap in naps if nap] == [7.0, 59.0]


async def test_the_client_does_not_come_back_where_it_cannot_help(
    vendor: Vendor, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps = skip_naps(monkeypatch)
    failing = [errors.InputFailed("m"), errors.IdempotencyMismatch("m"), errors.InvalidRequest("m")]
    async with standing_in(*(refusal(vendor.dialect, error) for error in failing)) as stand_in:
        for _ in failing:
            with pytest.raises(vendor.module.APIStatusError):
                await vendor.create(way, stand_in.port, {"max_retries": 2})
    assert not any(naps)


async def test_a_client_that_waits_no_longer_says_so(vendor: Vendor, way: str) -> None:
    async with standing_in(SILENCE) as stand_in:
        with pytest.raises(vendor.module.APITimeoutError):
            await vendor.create(way, stand_in.port, {"timeout": vendor.module.Timeout(10.0, read=0.5)})
