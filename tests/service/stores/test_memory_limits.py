"""The limits of this process: verdicts at once, by a monotonic clock."""

import time

import pytest

from batcher.config import RateLimit
from batcher.core.admission.reservation import LimitRefusal, Reservation, Subject
from batcher.service.limits import LimitStore, Verdict
from batcher.service.stores.memory_limits import MemoryLimits

ANN = (Subject("key:ann", RateLimit(2, 100)), Subject("tier:paid", RateLimit(3, None)))


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def verdict_of(store: LimitStore, tokens: int) -> Verdict:
    verdicts: list[Verdict] = []
    store.reserve(ANN, tokens, verdicts.append)
    (verdict,) = verdicts
    return verdict


def test_a_verdict_is_there_at_once() -> None:
    clock = Clock()
    store = MemoryLimits(max_keys=10, clock=clock)

    first = verdict_of(store, 60)
    assert isinstance(first, Reservation)
    assert isinstance(refusal := verdict_of(store, 60), LimitRefusal)
    assert (refusal.is_tokens, refusal.retry_after_s) == (True, 60.0)
    store.settle(first, 40)
    second = verdict_of(store, 60)
    assert isinstance(second, Reservation)
    assert store.peek(ANN) is not None
    store.give_back(second)
    assert store.peek(ANN) is None
    clock.now += 60.0
    assert isinstance(verdict_of(store, 100), Reservation)
    assert repr(store) == "MemoryLimits(Limits(2 subjects, 1 open))"
    assert store.statistics().num_open == 1


def test_a_reservation_ends_once() -> None:
    store = MemoryLimits(max_keys=10)
    first = verdict_of(store, 60)
    assert isinstance(first, Reservation)
    store.give_back(first)

    with pytest.raises(ValueError, match="ended before"):
        store.settle(first, 10)


def test_the_wall_clock_may_step_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES B34: an hour back, and an hour forth again, between requests: nobody is locked out, nobody gets more."""
    store = MemoryLimits(max_keys=10)
    assert isinstance(verdict_of(store, 10), Reservation)
    wall_at = time.time()

    monkeypatch.setattr(time, "time", lambda: wall_at - 3600.0)
    assert isinstance(verdict_of(store, 10), Reservation)
    monkeypatch.setattr(time, "time", lambda: wall_at + 3600.0)
    assert isinstance(refusal := verdict_of(store, 10), LimitRefusal)
    assert 59.0 < refusal.retry_after_s <= 60.0
