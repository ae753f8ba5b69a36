"""How admission judges the load, for `GET /metrics`: the throttle and the promises of each tier (SPEC S8)."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import Metric

from batcher.core.admission.gate import GateStatistics
from batcher.core.admission.promises import LATE_BOUNDS_S
from batcher.service.exposition import counts, histograms, levels
from batcher.service.meters import Histogram

_LEVELS: tuple[tuple[str, str, Callable[[GateStatistics], float]], ...] = (
    ("admission_pressure", "Estimated wait over budget; above 1 there are refusals.", lambda tier: tier.pressure),
    ("admitted_share", "Of the tier's keys, those that are not shed.", lambda tier: tier.admitted_share),
    ("limit_factor", "What the tier's rate limits are multiplied by.", lambda tier: tier.limit_factor),
    ("open_promises", "Refusals whose Retry-After has not come.", lambda tier: tier.num_open_promises),
)
_COUNTS: tuple[tuple[str, str, Callable[[GateStatistics], float]], ...] = (
    ("promises", "Refusals that told when to come back.", lambda tier: tier.promises.num_made),
    ("unpromised_refusals", "Refusals without a promise: too many were open.", lambda tier: tier.promises.num_unpromised),
)
_ENDS: tuple[tuple[str, Callable[[GateStatistics], int]], ...] = (
    ("kept", lambda tier: tier.promises.num_kept),
    ("broken", lambda tier: tier.promises.num_broken),
    ("expired", lambda tier: tier.promises.num_expired),
)


def admission_metrics(tiers: Iterable[GateStatistics]) -> Iterator[Metric]:
    tiers = tuple(tiers)
    for name, text, of in _LEVELS:
        yield levels(name, text, ["tier"], [((tier.tier,), of(tier)) for tier in tiers])
    for name, text, of in _COUNTS:
        yield counts(name, text, ["tier"], [((tier.tier,), of(tier)) for tier in tiers])
    yield counts(
        "promises_ended",
        "Promises by their end: let in on coming back, refused again, or never come back for.",
        ["tier", "end"],
        [((tier.tier, end), of_end(tier)) for tier in tiers for end, of_end in _ENDS],
    )
    yield histograms(
        "promise_late_seconds",
        "How long after the promised time those came who were let in.",
        ["tier"],
        [((tier.tier,), _late(tier)) for tier in tiers],
    )


def _late(tier: GateStatistics) -> Histogram:
    late = Histogram(LATE_BOUNDS_S)
    promises = tier.promises
    late.counts = [*promises.late_counts, promises.num_kept - sum(promises.late_counts)]
    late.sum = promises.late_sum_s
    return late
