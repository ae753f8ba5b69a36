"""What the tests of the vendors' official clients share: how they are called, and their waits, which are not waited.

The clients are as they come: nothing of them is replaced but the clock's sleep between two tries.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import anyio
import pytest

T = TypeVar("T")

MODEL = "simulated"
KEY = "dev-paid"

WAYS = ["sync", "async"]


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
