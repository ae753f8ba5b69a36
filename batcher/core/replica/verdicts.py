"""The words in which a caller is told why a sequence did not run, and after how long to come back."""

from math import ceil, exp

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

_MEMORY_S = 30.0
"""What ended so long ago counts about a third of what ends now."""


class DrainRate:
    """How quickly sequences end of late: how many ended, and how long that took, both fading with time.

    A mean of the intervals between ends was refused: sequences that start together end together, and then nearly all intervals
    are none (CASES B59 asks for an honest time).
    """

    __slots__ = ("_last_at", "_num", "_span_s")

    def __init__(self) -> None:
        self._num = 0.0
        self._span_s = 0.0
        self._last_at = 0.0

    def observe_end(self, *, now: float) -> None:
        interval_s = max(0.0, now - self._last_at)
        faded = exp(-interval_s / _MEMORY_S)
        self._num = self._num * faded + 1.0
        self._span_s = self._span_s * faded + interval_s
        self._last_at = now

    def restart(self, *, now: float) -> None:
        """The first comes after an idle time, which is no part of what an end takes."""
        self._last_at = now

    def retry_after_s(self, num_ahead: int) -> int:
        """Whole seconds until so many have ended, from 1 to 60."""
        if not self._num:
            return NO_WORKER_RETRY_AFTER_S
        return min(max(1, ceil(num_ahead * self._span_s / self._num)), MAX_RETRY_AFTER_S)


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
