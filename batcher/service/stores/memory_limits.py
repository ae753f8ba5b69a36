"""Rate limits counted in this process, exactly: a clock around `core.admission.limits`. All that one gateway alone needs."""

import time
from collections.abc import Callable

from batcher.core.admission.limits import Limits, LimitsStatistics
from batcher.core.admission.reservation import LimitRefusal, Reservation, Subject
from batcher.service.limits import OnVerdict


class MemoryLimits:
    """A LimitStore whose verdicts are there at once. By a monotonic clock: steps of the wall clock are not seen (CASES B34)."""

    def __init__(self, *, max_keys: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._limits = Limits(max_subjects=max_keys, now=clock())

    def __repr__(self) -> str:
        return f"MemoryLimits({self._limits!r})"

    def reserve(self, subjects: tuple[Subject, ...], tokens: int, on_verdict: OnVerdict) -> None:
        on_verdict(self._limits.reserve(subjects, tokens, now=self._clock()))

    def settle(self, reservation: Reservation, tokens: int) -> None:
        """Raises ValueError if the reservation has ended or is not ours."""
        self._limits.settle(reservation, tokens, now=self._clock())

    def give_back(self, reservation: Reservation) -> None:
        """Raises ValueError if the reservation has ended or is not ours."""
        self._limits.give_back(reservation, now=self._clock())

    def peek(self, subjects: tuple[Subject, ...]) -> LimitRefusal | None:
        return self._limits.peek(subjects, now=self._clock())

    def statistics(self) -> LimitsStatistics:
        return self._limits.statistics()

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do."""
