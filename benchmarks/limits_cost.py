"""What a gateway pays for a limit in Redis: CPU of this process and the wait, for so many requests at a time."""

import asyncio
import time
from statistics import median

from batcher.config import LimitsConfig, RateLimit
from batcher.core.admission.reservation import Reservation, Subject
from batcher.service.limits import Verdict
from batcher.service.stores.redis_limits import RedisLimits

NUM_REQUESTS = 10_000
AT_A_TIME = (1, 8, 64)


async def measure(url: str) -> list[str]:
    """A line for each of AT_A_TIME. Every request is a key's and a tier's, is admitted and is settled."""
    store = RedisLimits(LimitsConfig(redis_url=url))
    await store.start()
    lines = []
    for at_a_time in AT_A_TIME:
        waits: list[float] = []
        begun = time.process_time()
        await _Rounds(store, waits).run(at_a_time)
        cost_us = (time.process_time() - begun) / NUM_REQUESTS * 1e6
        lines.append(f"{at_a_time:>4} at a time: {cost_us:5.1f} us of CPU, {median(waits) * 1e6:6.0f} us until the verdict")
    await store.close()
    return lines


class _Rounds:
    """So many at a time, each followed by another."""

    def __init__(self, store: RedisLimits, waits: list[float]) -> None:
        self._store = store
        self._waits = waits
        self._num_left = NUM_REQUESTS
        self._subjects = (Subject("key:cost", RateLimit(10**9, 10**12)), Subject("tier:cost", RateLimit(10**9, 10**12)))
        self._is_over = asyncio.Event()

    async def run(self, at_a_time: int) -> None:
        for _ in range(at_a_time):
            self._ask()
        await self._is_over.wait()

    def _ask(self) -> None:
        if self._num_left:
            self._num_left -= 1
            asked_at = time.perf_counter()
            self._store.reserve(self._subjects, 500, lambda verdict: self._hear(verdict, asked_at))

    def _hear(self, verdict: Verdict, asked_at: float) -> None:
        assert isinstance(verdict, Reservation), verdict
        self._waits.append(time.perf_counter() - asked_at)
        self._store.settle(verdict, 300)
        if self._num_left:
            self._ask()
        else:
            self._is_over.set()
