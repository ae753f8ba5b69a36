"""One gateway of the limits' benchmark: a process with a store of its own, callers far over their limits, and a log.

The callers are callbacks and timers, not tasks: what is measured is the store.
"""

import asyncio
import logging
import random
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

import msgspec
import uvloop

from batcher.config import LimitMode, LimitsConfig, RateLimit
from batcher.core.admission.reservation import LimitRefusal, Reservation, StoreAway, Subject
from batcher.service.limits import Verdict
from batcher.service.stores.redis_limits import RedisLimits

NUM_KEYS = 100
NUM_HOT_KEYS = 5
"""The first, which are asked for most: their slices are 100 requests each."""
NUM_CALLERS = 40
MEAN_PAUSE_S = 0.03
MAX_TOKENS = 400
MAX_SERVED_S = 0.3
GIVEN_BACK = 0.2
"""Share of the admitted that are not served."""
LAST_CORRECTIONS_S = 0.2
"""For these to leave before the store is closed."""
READY_S = 60.0
"""For all processes to import and to connect."""
TIER = Subject("tier:free", RateLimit(15_000, 2_500_000))
"""Of every second key."""


class Orders(msgspec.Struct, frozen=True):
    """What a gateway process is told to do."""

    url: str
    mode: LimitMode
    seconds: float
    seed: int
    log: str


class Admission(msgspec.Struct, array_like=True):
    """One that was let in. Instants are of the machine's monotonic clock, which its processes share."""

    key: int
    called_at: float
    told_at: float
    at: int
    """The second of the store's clock at which it was charged."""
    requests: int
    """1, or 0 if it was given back."""
    tokens: int
    """What it cost in the end."""


class Log(msgspec.Struct):
    admissions: list[Admission]
    num_refused: int
    num_away: int
    num_leased: int
    num_calls: int
    num_dropped: int
    last_admitted_at: float


def make_subjects(seed: int) -> list[tuple[Subject, ...]]:
    """Each key's: the same in every gateway. Limits from those that a second uses up to those that a minute does."""
    rng = random.Random(seed)
    subjects: list[tuple[Subject, ...]] = []
    for key in range(NUM_KEYS):
        limit = RateLimit(rng.choice([20, 60, 240, 600, None]), rng.choice([4_000, 20_000, 80_000, None]))
        if key < NUM_HOT_KEYS:
            limit = RateLimit(6_000, None)
        elif limit.is_unlimited:
            limit = RateLimit(120, None)
        own = Subject(f"key:{key}", limit)
        subjects.append((own, TIER) if key % 2 else (own,))
    return subjects


class Load:
    def __init__(self, store: RedisLimits, orders: Orders, index: int) -> None:
        self._store = store
        self._subjects = make_subjects(orders.seed)
        self._rng = random.Random(orders.seed * 1_000 + index)
        self._ends_at = time.monotonic() + orders.seconds
        self._loop = asyncio.get_running_loop()
        self.log = Log([], 0, 0, 0, 0, 0, 0.0)
        self.num_busy = NUM_CALLERS
        self.is_over = asyncio.Event()

    def call(self) -> None:
        now = time.monotonic()
        if now >= self._ends_at:
            self.num_busy -= 1
            if not self.num_busy:
                self.is_over.set()
            return
        # Some keys are asked for far more often than others.
        key = int(NUM_KEYS * self._rng.random() ** 3)
        tokens = self._rng.randrange(MAX_TOKENS)
        self._store.reserve(self._subjects[key], tokens, lambda verdict: self._hear(verdict, key, now))

    def _hear(self, verdict: Verdict, key: int, called_at: float) -> None:
        now = time.monotonic()
        match verdict:
            case Reservation():
                admission = Admission(key, called_at, now, verdict.at, 1, verdict.tokens)
                self.log.admissions.append(admission)
                self.log.last_admitted_at = now
                self._loop.call_later(self._rng.random() * MAX_SERVED_S, self._end, admission, verdict)
                return
            case LimitRefusal():
                self.log.num_refused += 1
            case StoreAway():
                self.log.num_away += 1
        self._pause()

    def _end(self, admission: Admission, reservation: Reservation) -> None:
        if self._rng.random() < GIVEN_BACK:
            admission.requests = admission.tokens = 0
            self._store.give_back(reservation)
        else:
            admission.tokens = self._rng.randint(0, reservation.tokens)
            self._store.settle(reservation, admission.tokens)
        self._pause()

    def _pause(self) -> None:
        self._loop.call_later(self._rng.expovariate(1 / MEAN_PAUSE_S), self.call)


async def _run(orders: Orders, index: int, are_ready: Barrier) -> Log:
    store = RedisLimits(LimitsConfig(redis_url=orders.url, mode=orders.mode))
    await store.start()
    are_ready.wait(READY_S)  # Nothing else is under way yet that the loop could keep waiting.
    load = Load(store, orders, index)
    for _ in range(NUM_CALLERS):
        load.call()
    await load.is_over.wait()
    await asyncio.sleep(LAST_CORRECTIONS_S)
    await store.close()
    statistics = store.statistics()
    load.log.num_leased = statistics.num_leased
    load.log.num_calls = statistics.num_calls
    load.log.num_dropped = statistics.num_dropped
    return load.log


def run_gateway(orders: Orders, index: int, are_ready: Barrier) -> None:
    """The process: what happened is in the file `orders.log` with its index at the end."""
    logging.getLogger("batcher").setLevel(logging.CRITICAL)  # That Redis goes away is what is tried here.
    log = uvloop.run(_run(orders, index, are_ready))
    Path(f"{orders.log}{index}").write_bytes(msgspec.msgpack.encode(log))
