"""What becomes of a batch that failed. The one owner of retries: nothing else in batcher sends a request twice.

Two failures look alike from outside and are treated apart:

- the worker was lost: no verdict on the inputs. The batch goes whole to another worker with attempt + 1. If that one is lost
  too the batch itself is a suspect (an input that kills the process), and the last attempt runs it in four parts, so that
  such an input takes at most a quarter of its companions with it.
- `run_batch` raised: one of the inputs is bad and the worker is not. The batch is split in four and the parts run at the same
  time, again and again, until the culprit stands alone: 4 calls a level and log4(n) levels are 2 log2(n) calls, as many as
  halving takes, in half the time. While others wait, such searches keep to a third of the workers.

Both draw on one budget, filled by a share of the fresh batches, so that a backend that always fails costs a bounded share of
the fleet and not a multiple of it (Finagle's retry budget; tower: tower/src/retry/budget).
"""

from bisect import insort
from collections.abc import Iterator
from itertools import chain, pairwise

from batcher.config import DispatchConfig
from batcher.core.dispatch.inflight import Batch
from batcher.core.dispatch.ledger import Ledger
from batcher.types import BatchReason, Request

NUM_PARTS = 4

_SEARCH_SHARE = 3
"""One worker in so many, and at least one, may look for bad inputs while others wait."""

_SPLITS_SHARE = 0.5
"""Of the budget may go into the search for bad inputs: whoever sends many of them must not use up what losses need."""


class RetryBudget:
    """Extra calls that may be made now; `ratio` more for each fresh batch, never above `reserve`."""

    __slots__ = ("_ratio", "_reserve", "num_available")

    def __init__(self, *, ratio: float, reserve: int) -> None:
        self._ratio = ratio
        self._reserve = reserve
        self.num_available = float(reserve)

    def deposit(self) -> None:
        self.num_available = min(float(self._reserve), self.num_available + self._ratio)

    def withdraw(self, num_calls: int, *, share: float = 1.0) -> bool:
        """Takes `num_calls`, or nothing and returns False. With a `share` below 1 the rest of the reserve stays untouched."""
        if self.num_available < num_calls + self._reserve * (1.0 - share):
            return False
        self.num_available -= num_calls
        return True


def split(requests: tuple[Request, ...]) -> list[tuple[Request, ...]]:
    """Up to four parts of nearly equal size, in order; none is empty."""
    num_parts = min(NUM_PARTS, len(requests))
    bounds = [len(requests) * part // num_parts for part in range(num_parts + 1)]
    return [requests[start:end] for start, end in pairwise(bounds)]


class Retries:
    """The batches that must run again, and the budget they draw on.

    `_lost` holds those whose worker was lost, `_suspects` the parts of those that raised, in each the one with the oldest
    request first. `num_requests` are theirs, those included that ended meanwhile. The retry budget bounds them: each has drawn
    on it. `_ids` is where the owner's batch ids come from.
    """

    __slots__ = ("_ids", "_lost", "_max_attempts", "_suspects", "budget", "num_requests", "num_retries", "num_splits")

    def __init__(self, config: DispatchConfig, *, ids: Iterator[int]) -> None:
        self._max_attempts = config.max_attempts
        self._ids = ids
        self._lost: list[Batch] = []
        self._suspects: list[Batch] = []
        self.budget = RetryBudget(ratio=config.retry_ratio, reserve=config.retry_reserve)
        self.num_requests = 0
        self.num_retries = 0
        self.num_splits = 0

    def __len__(self) -> int:
        return len(self._lost) + len(self._suspects)

    def __iter__(self) -> Iterator[Batch]:
        return chain(self._lost, self._suspects)

    @property
    def num_lost(self) -> int:
        return len(self._lost)

    def is_due(self, num_searching: int, num_workers: int, *, is_alone: bool) -> bool:
        """Whether a parked batch may go now: a lost one always; a part of a search beside `num_searching` others only up to its
        share of the workers, unless it is alone, which is when nobody else waits or another worker is free, too."""
        if self._lost or not self._suspects:
            return bool(self._lost)
        return is_alone or num_searching < max(1, num_workers // _SEARCH_SHARE)

    def pop(self, live: Ledger, *, max_size: int) -> Batch | None:
        """The next batch, less the members that ended meanwhile; None if none is left of it.

        What is over `max_size` stays parked as a batch of its own, which is one more call: without budget all of it goes.
        """
        batch = (self._lost or self._suspects).pop(0)
        self.num_requests -= len(batch.requests)
        requests = live.still_live(batch.requests)
        if len(requests) > max_size and self.budget.withdraw(1):
            self._park(Batch(next(self._ids), batch.attempt, requests[max_size:], batch.reason))
            requests = requests[:max_size]
        return Batch(batch.id, batch.attempt, requests, batch.reason) if requests else None

    def park_after_loss(self, batch: Batch, remaining: tuple[Request, ...]) -> bool:
        """Parks what is left of a batch whose worker was lost; False when its attempts or the budget are used up."""
        if batch.attempt >= self._max_attempts:
            return False
        parts = split(remaining) if batch.attempt >= 2 else [remaining]
        if not self.budget.withdraw(len(parts)):
            return False
        self.num_retries += len(parts)
        if len(parts) == 1:
            self._park(Batch(batch.id, batch.attempt + 1, remaining, BatchReason.RETRY))
        else:
            self._park(*(Batch(next(self._ids), batch.attempt + 1, part, BatchReason.RETRY) for part in parts))
        return True

    def park_after_raise(self, batch: Batch, remaining: tuple[Request, ...]) -> bool:
        """Parks the parts in which to look for the bad input; False when it stands alone or the budget is used up."""
        if len(batch.requests) == 1:
            return False
        parts = split(remaining)
        if not self.budget.withdraw(len(parts), share=_SPLITS_SHARE):
            return False
        self.num_splits += len(parts)
        self._park(*(Batch(next(self._ids), batch.attempt, part, BatchReason.SPLIT) for part in parts))
        return True

    def _park(self, *batches: Batch) -> None:
        for batch in batches:
            self.num_requests += len(batch.requests)
            insort(self._suspects if batch.reason is BatchReason.SPLIT else self._lost, batch, key=_oldest_at)


def _oldest_at(batch: Batch) -> float:
    return min(request.arrived_at for request in batch.requests)
