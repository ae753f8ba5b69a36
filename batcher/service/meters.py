"""Numbers counted on the path of every request, cheaply: plain integers and lists, turned into metrics when somebody asks.

prometheus-client's own objects were refused here for their cost (a lock and a label lookup each time, 3 microseconds for a
histogram); they do the exposition, in `metrics.py`.
"""

from bisect import bisect_left
from collections.abc import Iterable

from batcher.types import Outcome

LATENCY_BOUNDS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15),
    *(0.2, 0.21, 0.22, 0.23, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)


class Histogram:
    """Counts by upper bound, the last for whatever is above all bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float, num: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += num
        self.sum += value * num


class TierMeters:
    """What is measured of one tier's requests (DESIGN D7)."""

    __slots__ = ("e2e_s", "outcomes", "queue_s")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.queue_s = Histogram()
        self.e2e_s = Histogram()


class Meters:
    def __init__(self, tiers: Iterable[str]) -> None:
        self.tiers = {tier: TierMeters() for tier in tiers}
        self.overhead_s = Histogram()
        """End to end, less the wait for a batch and the time in it."""
        self.run_s = Histogram()
        """A batch's time where it is computed."""
        self.invalid = 0
        """Requests that were refused before they had a tier: no key, no sense, too large."""
