"""How long would a request wait? Work ahead of it over the rate at which that work drains, in O(1).

The rate is what the ready workers serve in full batches, by the service time measured of late; a count of recent answers was
refused, for it measures the demand whenever demand is below capacity. A lower tier gets what the higher ones leave: with
priority served first its wait is work ahead / (capacity - arrivals of higher tiers), the mean of a non-preemptive priority
queue (Cobham, "Priority assignment in waiting line problems", 1954).
"""

from math import exp, inf

_TIME_CONSTANT_S = 1.0
"""The memory of a measured rate: long beside a batch, short beside the budget of a caller who would retry."""

_MIN_SHARE = 0.02
"""What a tier can count on in any case: one slot of fifty (see the starving in `core.dispatch.tiers`)."""


class ArrivalRate:
    """Events per second, exponentially weighted over about a second; 0 before the first event."""

    __slots__ = ("_at", "_rate")

    def __init__(self) -> None:
        self._at = -inf
        self._rate = 0.0

    def observe(self, *, now: float) -> None:
        self._rate = self.rate(now=now) + 1.0 / _TIME_CONSTANT_S
        self._at = now

    def rate(self, *, now: float) -> float:
        return self._rate * exp((self._at - now) / _TIME_CONSTANT_S) if self._rate else 0.0


def estimate_wait_s(num_ahead: int, *, batch_size: int = 1, capacity_rate: float, higher_rate: float) -> float:
    """Seconds until a request with `num_ahead` before it leaves; infinity without capacity. Never negative.

    Work drains in batches: whoever still fits into the next one waits for nobody's work. Without that, one worker that takes a
    second a batch of fifty would be kept from ever having fifty by a budget of a fifth of a second.
    """
    if capacity_rate <= 0.0:
        return inf
    num_before = num_ahead - num_ahead % batch_size
    return num_before / max(capacity_rate - higher_rate, capacity_rate * _MIN_SHARE)
