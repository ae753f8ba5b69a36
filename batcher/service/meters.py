"""Numbers counted on the path of every request, cheaply: plain integers and lists, turned into metrics when somebody asks.

prometheus-client's own objects were refused here for their cost (a lock and a label lookup each time, 3 microseconds for a
histogram); they do the exposition, in `exposition.py`.
"""

from bisect import bisect_left
from collections.abc import Iterable

from batcher.core.effects import Answer, Refuse
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
    """All that the service counts by itself; what the dispatcher counts is in its statistics."""

    def __init__(self, tiers: Iterable[str]) -> None:
        self.tiers = {tier: TierMeters() for tier in tiers}
        self.overhead_s = Histogram()
        """End to end, less the wait for a batch and the time in it."""
        self.run_s = Histogram()
        """A batch's time where it is computed."""
        self.oldest_wait_s = Histogram()
        """How long the oldest request of a batch had waited when the batch left."""

    def count(self, end: Answer | Refuse, run_s: float, *, now: float) -> None:
        """A request has ended; its batch took `run_s` where it was computed."""
        request = end.request
        meters = self.tiers[request.tier]
        if isinstance(end, Refuse):
            meters.outcomes[end.outcome] += 1
            return
        e2e_s = now - request.arrived_at
        queue_s = end.departed_at - request.arrived_at
        meters.outcomes[Outcome.OK] += 1
        meters.queue_s.observe(queue_s)
        meters.e2e_s.observe(e2e_s)
        self.overhead_s.observe(max(0.0, e2e_s - queue_s - run_s))
