"""What becomes of a batch that failed. The one owner of retries: nothing else in batcher sends a request twice.

Two failures look alike from outside and are treated apart:

- the worker was lost: no verdict on the inputs. The batch goes whole to another worker with attempt + 1. If that one is lost
  too the batch itself is a suspect (an input that kills the process), and the last attempt runs it in four parts, so that
  such an input takes at most a quarter of its companions with it.
- `run_batch` raised: one of the inputs is bad and the worker is not. The batch is split in four and the parts run at the same
  time, again and again, until the culprit stands alone: 4 calls a level and log4(n) levels are 2 log2(n) calls, as many as
  halving takes, in half the time.

Both draw on one budget, filled by a share of the fresh batches, so that a backend that always fails costs a bounded share of
the fleet and not a multiple of it (Finagle's retry budget; tower: tower/src/retry/budget).
"""

from itertools import pairwise

from batcher.core.dispatch.inflight import Batch
from batcher.types import Request

NUM_PARTS = 4


class RetryBudget:
    """Extra calls that may be made now; `ratio` more for each fresh batch, never above `reserve`."""

    __slots__ = ("_ratio", "_reserve", "num_available")

    def __init__(self, *, ratio: float, reserve: int) -> None:
        self._ratio = ratio
        self._reserve = reserve
        self.num_available = float(reserve)

    def deposit(self) -> None:
        self.num_available = min(float(self._reserve), self.num_available + self._ratio)

    def withdraw(self, num_calls: int) -> bool:
        """Takes `num_calls`, or nothing and returns False."""
        if self.num_available < num_calls:
            return False
        self.num_available -= num_calls
        return True


def split(requests: tuple[Request, ...]) -> list[tuple[Request, ...]]:
    """Up to four parts of nearly equal size, in order; none is empty."""
    num_parts = min(NUM_PARTS, len(requests))
    bounds = [len(requests) * part // num_parts for part in range(num_parts + 1)]
    return [requests[start:end] for start, end in pairwise(bounds)]


def parts_after_loss(batch: Batch, requests: tuple[Request, ...], *, max_attempts: int) -> list[tuple[Request, ...]]:
    """How to run what is left of a batch whose worker was lost; empty when its attempts are used up."""
    if batch.attempt >= max_attempts:
        return []
    return split(requests) if batch.attempt >= 2 else [requests]


def parts_after_raise(requests: tuple[Request, ...]) -> list[tuple[Request, ...]]:
    """How to look for the input that made `run_batch` raise; empty when it stands alone."""
    return split(requests) if len(requests) > 1 else []
