"""What the tests of the vendors' official clients share: a server of each mode, and the clients' waits, which are not waited.

The clients are as they come: nothing of them is replaced but the clock's sleep between two tries.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
import pytest

from tests.service.serving import Served, generating, quick, serving, simulated

T = TypeVar("T")

MODEL = "simulated"
KEY = "dev-paid"

GENERATE = {"backend": "generate", "model": MODEL, "simulated_time_scale": 0.0, "workers": 1}
MODES = ["continuous", "generate", "text"]
OVERHEAD = {"continuous": 3, "generate": 3, "text": 0}
"""Tokens of a prompt with one message beside its bytes."""
WAYS = ["sync", "async"]


@asynccontextmanager
async def served(mode: str, **settings: Any) -> AsyncIterator[Served]:
    """A server in continuous mode, or in batch mode with a backend that knows conversations, or only text. All echo."""
    if mode == "continuous":
        async with generating(simulated(**settings)) as continuous:
            yield continuous
    else:
        async with serving(quick(**(GENERATE if mode == "generate" else {}), **settings)) as batch:
            yield batch


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
