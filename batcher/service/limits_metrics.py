"""How rate limits stand, for `GET /metrics`: by tier and kind, never by key (DESIGN D7)."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from batcher.core.admission.limits import LimitsStatistics
from batcher.service.exposition import counters, counts, gauges
from batcher.service.limiter import LimiterStatistics
from batcher.service.limits import RedisLimitsStatistics


def limiter_metrics(limiter: LimiterStatistics) -> Iterator[Metric]:
    yield counts(
        "limit_refusals",
        "Requests that a rate limit had no room for, by whose limit and of what.",
        ["tier", "kind"],
        limiter.num_refused.items(),
    )
    yield from gauges(("limit_reservations", "Reservations under a limit that have not ended.", limiter.num_open))
    yield counts(
        "limit_reservations_ended",
        "Reservations by how they ended: settled by what was used, or given back whole.",
        ["end"],
        ((("settled",), limiter.num_settled), (("given_back",), limiter.num_given_back)),
    )


def limit_store_metrics(store: LimitsStatistics | RedisLimitsStatistics) -> Iterator[Metric]:
    if isinstance(store, LimitsStatistics):
        yield from _memory(store)
    else:
        yield from _redis(store)


def _memory(store: LimitsStatistics) -> Iterator[Metric]:
    yield from gauges(("limited_subjects", "Keys and tiers whose last minute is held in this process.", store.num_subjects))
    yield from counters(
        ("limits_forgotten", "Subjects dropped for want of room while something of theirs counted.", store.num_forgotten)
    )


def _redis(store: RedisLimitsStatistics) -> Iterator[Metric]:
    yield from gauges(
        ("redis_limits_away", "1 while limits cannot be asked of Redis: it is away, or refuses.", store.is_failing),
        ("redis_limits_waiting", "Requests that wait for Redis.", store.num_waiting),
        ("redis_limits_leases", "Slices of limits that this gateway holds.", store.num_leases),
    )
    yield from counters(
        ("redis_limits_losses", "Times that Redis went away.", store.num_losses),
        ("redis_limits_calls", "Calls of Redis for limits.", store.num_calls),
        ("redis_limits_asked", "Requests that Redis was asked about.", store.num_asked),
        ("redis_limits_leased", "Requests admitted from a slice, without asking.", store.num_leased),
        ("redis_limits_alone", "Requests decided without Redis, as it was away.", store.num_alone),
        ("redis_limits_dropped", "Corrections lost while Redis was away.", store.num_dropped),
    )
