"""The words in which a caller is told why a sequence did not run, and after how long to come back."""

from math import ceil

from batcher.config import ReplicaConfig
from batcher.core.effects import EndSequence
from batcher.core.replica.sequence import Sequence
from batcher.errors import (
    MAX_RETRY_AFTER_S,
    NO_WORKER_RETRY_AFTER_S,
    Expired,
    InvalidRequest,
    Overloaded,
    ServiceError,
    ShuttingDown,
)
from batcher.types import BLOCK_SIZE, Outcome

_WEIGHT = 0.1
"""Of the newest interval in the mean: the last ten or so count."""


class DrainRate:
    """How quickly sequences end of late: a moving mean of the intervals between ends."""

    __slots__ = ("_interval_s", "_last_at")

    def __init__(self) -> None:
        self._interval_s: float | None = None
        self._last_at: float | None = None

    def observe_end(self, *, now: float) -> None:
        if self._last_at is not None:
            interval_s = now - self._last_at
            known = self._interval_s
            self._interval_s = interval_s if known is None else known + _WEIGHT * (interval_s - known)
        self._last_at = now

    def restart(self) -> None:
        """Forgets when the last one ended: what follows an idle time is no interval."""
        self._last_at = None

    def retry_after_s(self, num_ahead: int) -> int:
        """Whole seconds until so many have ended, from 1 to 60."""
        if self._interval_s is None:
            return NO_WORKER_RETRY_AFTER_S
        return min(max(1, ceil(num_ahead * self._interval_s)), MAX_RETRY_AFTER_S)


def too_long(sequence: Sequence, config: ReplicaConfig) -> EndSequence | None:
    """The refusal of one that could never run here, with the numbers; None if it could (CASES B75)."""
    asked = f"a prompt of {sequence.num_prompt_tokens} tokens and max_tokens of {sequence.max_tokens}"
    if sequence.max_len > config.max_model_len:
        limit = f"{sequence.max_len} tokens, more than the context of {config.max_model_len}"
    elif sequence.max_len - 1 > config.num_blocks * BLOCK_SIZE:
        limit = f"{sequence.max_len} tokens, more than the {config.num_blocks * BLOCK_SIZE} that this replica has memory for"
    else:
        return None
    return EndSequence(sequence.id, Outcome.FAILED, InvalidRequest(f"{asked} are {limit}"))


def no_room(sequence: Sequence, rate: DrainRate, *, num_ahead: int) -> EndSequence:
    error = Overloaded("the queue is full", retry_after_s=rate.retry_after_s(num_ahead))
    return EndSequence(sequence.id, Outcome.REJECTED_CAPACITY, error)


def shutting_down(sequence: Sequence) -> EndSequence:
    error = ShuttingDown("this replica is shutting down", retry_after_s=1)
    return EndSequence(sequence.id, Outcome.REJECTED_SHUTDOWN, error)


def expired(sequence: Sequence) -> EndSequence:
    waited_s = sequence.deadline_at - sequence.arrived_at
    return EndSequence(sequence.id, Outcome.EXPIRED, Expired(f"no place became free within the request's {waited_s:g} s"))


def failed(sequence: Sequence, error: ServiceError) -> EndSequence:
    return EndSequence(sequence.id, Outcome.FAILED, error)
