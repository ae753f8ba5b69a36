"""Steps that were scheduled and whose tokens are not known yet.

Two at most: one runs on the device and one is launched behind it, so that the device never waits for a decision. More would
only delay what a decision is made from.
"""

from collections import deque
from collections.abc import Iterator
from math import inf

import msgspec

from batcher.core.replica.sequence import Sequence
from batcher.types import ScheduledSequence, Step

MAX_INFLIGHT_STEPS = 2
"""backends.base.StepBackend: no backend has more."""


class Flight(msgspec.Struct, frozen=True):
    """A step and its sequences, in the same order. They may have ended or been preempted since, or have started again."""

    step: Step
    sequences: list[Sequence]
    num_sampled: int
    num_decodes: int
    scheduled_at: float

    def parts(self) -> Iterator[tuple[ScheduledSequence, Sequence]]:
        return zip(self.step.sequences, self.sequences, strict=True)


class Flights:
    """The steps in flight, the oldest first."""

    __slots__ = ("_flights", "_landed_at")

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()
        self._landed_at = -inf

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def is_full(self) -> bool:
        return len(self._flights) >= MAX_INFLIGHT_STEPS

    def add(self, flight: Flight) -> None:
        assert not self.is_full
        self._flights.append(flight)

    def oldest(self, step: Step) -> Flight:
        """Raises ValueError unless `step` is the oldest in flight."""
        if not self._flights or self._flights[0].step is not step:
            known = f"step {self._flights[0].step.step_id} is" if self._flights else "none is in flight"
            raise ValueError(f"step {step.step_id} ended and {known} the oldest")
        return self._flights[0]

    def land(self, *, now: float) -> float:
        """Forgets the oldest, and returns how long the device had it, in seconds: since the one before it ended, if that was
        later than its own start."""
        duration_s = now - max(self._flights.popleft().scheduled_at, self._landed_at)
        self._landed_at = now
        return duration_s

    def clear(self) -> None:
        self._flights.clear()
