"""Gateways' stores of limits on one Redis, and how tests ask any store."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from batcher.config import LimitMode, LimitsConfig, OnFailure, RateLimit
from batcher.core.admission.reservation import Reservation, Subject
from batcher.service.limits import LimitStore, Verdict
from batcher.service.stores.redis_limits import RedisLimits
from benchmarks.redis_server import RedisServer

ANN = Subject("key:ann", RateLimit(1000, 100_000))


class Gateways:
    """Stores on one Redis, closed at the end."""

    def __init__(self, stack: AsyncExitStack, url: str) -> None:
        self._stack = stack
        self._url = url

    async def open(
        self,
        mode: LimitMode = LimitMode.SHARED,
        failure: OnFailure = OnFailure.CLOSED,
        timeout_s: float = 2.0,
        clock: Callable[[], float] | None = None,
    ) -> RedisLimits:
        config = LimitsConfig(redis_url=self._url, mode=mode, on_redis_failure=failure, redis_timeout_s=timeout_s)
        store = RedisLimits(config) if clock is None else RedisLimits(config, clock=clock)
        await store.start()
        self._stack.push_async_callback(store.close)
        return store


async def ask(store: LimitStore, *subjects: Subject, tokens: int = 0) -> Verdict:
    verdict: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
    store.reserve(subjects, tokens, verdict.set_result)
    return await verdict


async def admitted(store: LimitStore, *subjects: Subject, tokens: int = 0) -> Reservation:
    verdict = await ask(store, *subjects, tokens=tokens)
    assert isinstance(verdict, Reservation)
    return verdict


async def remaining(store: RedisLimits, subject: Subject) -> int | None:
    """Requests, this one not among them."""
    reservation = await admitted(store, subject)
    store.give_back(reservation)
    left = reservation.standing.requests_remaining
    return None if left is None else left + 1


async def until(condition: Callable[[], Awaitable[bool]] | Callable[[], bool]) -> None:
    """Looks again and again: what is waited for happens in a task that tells nobody, or in Redis."""
    async with asyncio.timeout(10):
        while True:
            is_met = condition()
            if is_met if isinstance(is_met, bool) else await is_met:
                return
            await asyncio.sleep(0.005)


async def start_again(server: RedisServer) -> None:
    await asyncio.get_running_loop().run_in_executor(None, server.start)
