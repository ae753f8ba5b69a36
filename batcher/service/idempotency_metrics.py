"""Requests with an Idempotency-Key and the answers kept for them (SPEC S4), for `GET /metrics`."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from batcher.service.claims import MemoryClaimsStatistics, RedisClaimsStatistics
from batcher.service.exposition import counters, gauges
from batcher.service.idempotency import IdempotencyStatistics


def idempotency_metrics(kept: IdempotencyStatistics) -> Iterator[Metric]:
    yield from gauges(("idempotent_running", "Requests with an Idempotency-Key that are being answered.", kept.num_running))
    yield from counters(
        ("idempotent_replays", "Callers given an answer that was not made for them.", kept.num_replayed),
        ("idempotent_conflicts", "Callers told that the same request is still being answered.", kept.num_conflicts),
        ("idempotent_mismatches", "Callers whose key belongs to another body.", kept.num_mismatches),
        ("idempotent_unkept", "Answers that the store, being away, did not keep.", kept.num_unkept),
    )


def claims_metrics(store: MemoryClaimsStatistics | RedisClaimsStatistics) -> Iterator[Metric]:
    if isinstance(store, RedisClaimsStatistics):
        yield from gauges(("redis_claims_away", "1 while idempotent requests cannot be asked of Redis.", store.is_failing))
        yield from counters(("idempotent_too_large", "Answers too large to be kept in Redis.", store.num_too_large))
        return
    yield from gauges(
        ("idempotent_claims", "Claims held in this process.", store.num_claims),
        ("idempotent_answers", "Answers kept in this process.", store.num_answers),
        ("idempotent_answer_bytes", "Bytes of the answers kept in this process.", store.num_bytes),
    )
