"""How long would a request wait? Work ahead of it over the rate at which that work drains, in O(1).

Work is in whatever unit its owner counts: requests in batch mode, tokens in continuous mode. The rate is what the ready workers
serve in full batches, by the service time measured of late, or what starts while something waits (`core.admission.backlog`); a
count of recent answers was refused, for it measures the demand whenever demand is below capacity. A lower tier gets what the
higher ones leave: with priority served first its wait is work ahead / (capacity - arrivals of higher tiers), the mean of a
non-preemptive priority queue (Cobham, "Priority assignment in waiting line problems", 1954).
"""

from math import exp, inf

TIME_CONSTANT_S = 1.0
"""The memory of a measured rate: long beside a batch, short beside the budget of a caller who would retry."""

MIN_SHARE = 0.02
"""What a tier can count on in any case: one slot of fifty (see the starving in `core.dispatch.tiers`)."""


class ArrivalRate:
    """Work per second, exponentially weighted over about `time_constant_s`; 0 before the first event."""

    __slots__ = ("_at", "_rate", "_time_constant_s")

    def __init__(self, time_constant_s: float = TIME_CONSTANT_S) -> None:
        self._at = -inf
        self._rate = 0.0
        self._time_constant_s = time_constant_s

    def observe(self, work: float = 1.0, *, now: float) -> None:
        self._rate = self.rate(now=now) + work / self._time_constant_s
        self._at = now

    def rate(self, *, now: float) -> float:
        return self._rate * exp((self._at - now) / self._time_constant_s) if self._rate else 0.0


def left_rate(capacity_rate: float, higher_rate: float) -> float:
    """What higher tiers leave of the capacity; never nothing, while there is any."""
    return max(capacity_rate - higher_rate, capacity_rate * MIN_SHARE)


def estimate_wait_s(work_ahead: float, *, batch_size: int = 1, capacity_rate: float, higher_rate: float) -> float:
    """Seconds until a request with so much work before it leaves; infinity without capacity. Never negative.

    Work drains in batches: whoever still fits into the next one waits for nobody's work. Without that, one worker that takes a
    second a batch of fifty would be kept from ever having fifty by a budget of a fifth of a second.
    """
    if capacity_rate <= 0.0:
        return inf
    return (work_ahead - work_ahead % batch_size) / left_rate(capacity_rate, higher_rate)
