"""What the tests of the vendors' official clients share: whose errors they raise, and their waits, which are not waited.

The clients are as they come: nothing of them is replaced but the clock's sleep between two tries.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import anyio
import pytest

from batcher import errors

T = TypeVar("T")

MODEL = "simulated"
KEY = "dev-paid"

WAYS = ["sync", "async"]

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


async def in_thread(work: Callable[[], T]) -> T:
    """A synchronous client blocks its thread, and the server lives in this one."""
    return await asyncio.to_thread(work)


def skip_naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Lets clients try again at once, and tells how long they would have waited."""
    naps: list[float] = []
    sleep = anyio.sleep

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        await sleep(0)

    monkeypatch.setattr(anyio, "sleep", nap)
    monkeypatch.setattr(time, "sleep", naps.append)
    return naps
