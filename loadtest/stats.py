"""Exact statistics over raw samples.

A quantile is a sample that was measured, by nearest rank: the smallest that at least that part of all samples does not
exceed (numpy calls it `inverted_cdf`). So quantiles never fall as the part grows, and none is above the maximum.
Histograms were refused: their buckets round, and a rounded p99 can exceed the maximum. Without a sample there is no
number: None, which JSON writes as null, never 0.
"""

import math
from collections.abc import Sequence

import msgspec

from loadtest.samples import NOT_OUTCOMES, REJECTIONS, Ending, Samples


class Quantiles(msgspec.Struct, frozen=True):
    """Seconds. `count` is the number of samples; everything else is null when it is 0."""

    count: int = 0
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None
    max: float | None = None
    mean: float | None = None


def quantile(ordered: Sequence[float], permille: int) -> float:
    """The quantile of samples that are sorted and not empty. Thousandths as an integer, so that no rank is rounded."""
    return ordered[max(-(-len(ordered) * permille // 1000), 1) - 1]


def quantiles(samples: Sequence[float]) -> Quantiles:
    """All of them, in any order of the samples."""
    if not samples:
        return Quantiles()
    ordered = sorted(samples)
    p50, p90, p95, p99, p999 = (quantile(ordered, permille) for permille in (500, 900, 950, 990, 999))
    return Quantiles(len(ordered), p50, p90, p95, p99, p999, ordered[-1], _mean(ordered))


def _mean(ordered: Sequence[float]) -> float:
    """Within the samples' range also when rounding would have it a hair outside."""
    return min(max(math.fsum(ordered) / len(ordered), ordered[0]), ordered[-1])


class Window(msgspec.Struct, frozen=True):
    """The requests that were meant to leave in one span of time: [at_s, at_s + the width).

    Latency belongs to the moment of asking, so a stall shows where callers felt it. `completed` counts the good answers
    that arrived in the span, whenever they were asked for: the throughput. The quantiles are of good answers, from the
    intended instant, and null where there was none.
    """

    at_s: float
    offered: int
    ok: int
    rejected: int
    failed: int
    """All other outcomes, and what was dropped."""
    completed: int
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


def windows(samples: Samples, *, width_s: float, end_s: float) -> list[Window]:
    """The run from 0 to `end_s` in spans of `width_s`."""
    num = max(math.ceil(end_s / width_s - 1e-9), 1)
    offered, rejected, completed = [0] * num, [0] * num, [0] * num
    latencies_s: list[list[float]] = [[] for _ in range(num)]
    for planned_at, ended_at, code in zip(samples.planned_at, samples.ended_at, samples.ending, strict=True):
        slot = int(planned_at / width_s)
        if slot >= num or code == Ending.UNSENT:
            continue
        offered[slot] += 1
        if code == Ending.OK:
            latencies_s[slot].append(ended_at - planned_at)
            if (end_slot := int(ended_at / width_s)) < num:
                completed[end_slot] += 1
        elif code in REJECTIONS:
            rejected[slot] += 1
    made = []
    for slot, values in enumerate(latencies_s):
        values.sort()
        num_failed = offered[slot] - len(values) - rejected[slot]
        p50_s, p95_s, p99_s = (quantile(values, permille) if values else None for permille in (500, 950, 990))
        made.append(
            Window(slot * width_s, offered[slot], len(values), rejected[slot], num_failed, completed[slot], p50_s, p95_s, p99_s)
        )
    return made


def recovery_s(
    samples: Samples, *, permille: int, limit_s: float, since_s: float, until_s: float, width_s: float
) -> float | None:
    """Seconds from `since_s` until a quantile of latency stays within `limit_s`; 0 where it never left.

    Looks at the good answers that ARRIVE in each span of `width_s` after `since_s`, as somebody who watches would: those who
    waited when a fault struck had asked before it. A span without answers is not normal. None where it is still not normal in
    the last whole span before `until_s`.
    """
    num = int((until_s - since_s) / width_s + 1e-9)
    arrived_s: list[list[float]] = [[] for _ in range(num)]
    for planned_at, ended_at, code in zip(samples.planned_at, samples.ended_at, samples.ending, strict=True):
        slot = math.floor((ended_at - since_s) / width_s)
        if code == Ending.OK and 0 <= slot < num:
            arrived_s[slot].append(ended_at - planned_at)
    odd = [slot for slot, values in enumerate(arrived_s) if not values or quantile(sorted(values), permille) > limit_s]
    if not num or (odd and odd[-1] == num - 1):
        return None
    return (odd[-1] + 1) * width_s if odd else 0.0


def latencies(samples: Samples, *, from_s: float = 0.0, to_s: float = math.inf, tier: str | None = None) -> list[float]:
    """Seconds from the intended instant, of the good answers to requests meant to leave within [from_s, to_s)."""
    of_tier = [tier is None or sender.tier == tier for sender in samples.senders]
    rows = zip(samples.planned_at, samples.ended_at, samples.ending, samples.sender, strict=True)
    return [
        ended_at - planned_at
        for planned_at, ended_at, code, sender in rows
        if code == Ending.OK and from_s <= planned_at < to_s and of_tier[sender]
    ]


def send_lags(samples: Samples) -> list[float]:
    """Seconds that requests left late, of all that left."""
    rows = zip(samples.planned_at, samples.sent_at, samples.ending, strict=True)
    return [sent_at - planned_at for planned_at, sent_at, code in rows if code not in NOT_OUTCOMES]
