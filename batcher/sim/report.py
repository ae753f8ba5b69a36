"""What a simulation measured: counted while it runs, frozen when it is over.

Latencies go into a histogram of linear buckets, since an hour has millions of them. Its error is one bucket's width, stated
in `RESOLUTION_S`; every quantile is rounded up, so quantiles rise with their share, and is cut at the largest sample, so none
is above it (a rounded bucket above the maximum: locustio/locust#331). Where nothing was measured a figure is None, never 0.
"""

from collections.abc import Iterable
from math import ceil

import msgspec

from batcher.types import BatchReason, Outcome, WorkerFault

RESOLUTION_S = 0.0001
"""Width of a bucket."""

MAX_BUCKETS = 100_000
"""Up to 10 s; what is longer shares the last bucket, and a quantile in it is the maximum."""


class Histogram:
    """Latencies in seconds. `_counts[i]` counts those from i to i + 1 resolutions; the rest is exact."""

    __slots__ = ("_counts", "max_s", "num", "total_s")

    def __init__(self) -> None:
        self._counts = [0] * MAX_BUCKETS
        self.num = 0
        self.total_s = 0.0
        self.max_s = 0.0

    def record(self, latency_s: float) -> None:
        bucket = int(latency_s * (1.0 / RESOLUTION_S))
        self._counts[bucket if bucket < MAX_BUCKETS else -1] += 1
        self.num += 1
        self.total_s += latency_s
        if latency_s > self.max_s:
            self.max_s = latency_s

    def merge(self, other: "Histogram") -> None:
        """Counts the other's samples too: percentiles of parts cannot be averaged, their counts can be added."""
        self._counts = [mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)]
        self.num += other.num
        self.total_s += other.total_s
        self.max_s = max(self.max_s, other.max_s)

    def quantiles(self, *shares: float) -> list[float]:
        """For each share, rising, the smallest value that at least so many samples do not exceed. There must be a sample."""
        assert self.num
        assert list(shares) == sorted(shares)
        found: list[float] = []
        num_below = 0
        filled = ((bucket, count) for bucket, count in enumerate(self._counts) if count)
        for bucket, count in filled:
            num_below += count
            while len(found) < len(shares) and num_below >= ceil(shares[len(found)] * self.num):
                is_last = bucket == MAX_BUCKETS - 1
                found.append(self.max_s if is_last else min((bucket + 1) * RESOLUTION_S, self.max_s))
        return found

    def summary(self) -> "Latencies | None":
        if not self.num:
            return None
        p50_s, p95_s, p99_s = self.quantiles(0.5, 0.95, 0.99)
        return Latencies(self.num, self.total_s / self.num, p50_s, p95_s, p99_s, self.max_s)


class Latencies(msgspec.Struct, frozen=True):
    """From the instant a request was meant to arrive to its answer; successes only."""

    num: int
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float


class TierReport(msgspec.Struct, frozen=True):
    name: str
    outcomes: dict[str, int]
    """Requests by how they ended; every request of the tier is in one."""
    latency: Latencies | None


class Report(msgspec.Struct, frozen=True):
    """One simulation."""

    duration_s: float
    """Of traffic."""
    num_workers: int
    tiers: tuple[TierReport, ...]
    outcomes: dict[str, int]
    latency: Latencies | None
    num_batches: int
    mean_batch: float | None
    busy_share: float
    """Part of the workers' time that was spent in `run_batch` while there was traffic, hung time included."""
    batches: dict[str, int]
    """Batches by the reason they left."""
    faults: dict[str, int]
    """Workers given up, by fault."""


class Recorder:
    """Counts what happens. The world calls it, nobody else changes it."""

    def __init__(self, tiers: tuple[str, ...], *, duration_s: float) -> None:
        self._duration_s = duration_s
        self._histograms = {tier: Histogram() for tier in tiers}
        self.answered = {tier: histogram.record for tier, histogram in self._histograms.items()}
        """By tier, what to call with the latency of an answer; a table and not a method, since it is asked for each request."""
        self._outcomes = {tier: dict.fromkeys(Outcome, 0) for tier in tiers}
        self._batches = dict.fromkeys(BatchReason, 0)
        self._faults: dict[str, int] = {}
        self._num_sent = 0
        self._busy_s = 0.0

    def ended(self, tier: str, outcome: Outcome) -> None:
        """It ended without an output."""
        self._outcomes[tier][outcome] += 1

    def departed(self, reason: BatchReason, num_requests: int) -> None:
        self._batches[reason] += 1
        self._num_sent += num_requests

    def landed(self, *, departed_at: float, now: float) -> None:
        """A run ended, or was given up."""
        self._busy_s += max(0.0, min(now, self._duration_s) - departed_at)

    def lost(self, fault: WorkerFault) -> None:
        self._faults[fault.value] = self._faults.get(fault.value, 0) + 1

    def report(self, *, num_workers: int) -> Report:
        tiers = []
        everything = Histogram()
        for name, histogram in self._histograms.items():
            everything.merge(histogram)
            outcomes = {Outcome.OK.value: histogram.num}
            outcomes |= {outcome.value: num for outcome, num in self._outcomes[name].items() if num}
            tiers.append(TierReport(name, outcomes, histogram.summary()))
        num_batches = sum(self._batches.values())
        return Report(
            duration_s=self._duration_s,
            num_workers=num_workers,
            tiers=tuple(tiers),
            outcomes=_sum(tier.outcomes for tier in tiers),
            latency=everything.summary(),
            num_batches=num_batches,
            mean_batch=self._num_sent / num_batches if num_batches else None,
            busy_share=self._busy_s / (num_workers * self._duration_s),
            batches={reason.value: num for reason, num in self._batches.items() if num},
            faults=dict(self._faults),
        )


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for count in counts:
        for key, num in count.items():
            total[key] = total.get(key, 0) + num
    return total
