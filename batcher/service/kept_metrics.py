"""What is kept of answers, for `GET /metrics`: the answers, for whoever asks again (SPEC S4), and who had how much (S5.3)."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from batcher.service.claims import MemoryClaimsStatistics, RedisClaimsStatistics
from batcher.service.exposition import counters, gauges
from batcher.service.idempotency import IdempotencyStatistics
from batcher.service.stores.usage_log import UsageLogStatistics


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
        yield from gauges(("redis_claims_away", "1 while idempotent requests cannot be asked of Redis.", store.is_away))
        return
    yield from gauges(
        ("idempotent_claims", "Claims held in this process.", store.num_claims),
        ("idempotent_answers", "Answers kept in this process.", store.num_answers),
        ("idempotent_answer_bytes", "Bytes of the answers kept in this process.", store.num_bytes),
    )


def usage_metrics(usage: UsageLogStatistics) -> Iterator[Metric]:
    yield from gauges(
        ("usage_failing", "1 while the usage log cannot be written.", usage.is_failing),
        ("usage_waiting_records", "Usage records in memory, for a disk that does not take them.", usage.num_waiting),
    )
    yield from counters(
        ("usage_records", "Usage records that were written.", usage.num_recorded),
        ("usage_unrecorded", "Usage records that are in no file and will not be.", usage.num_unrecorded),
        ("usage_failures", "Writes, fsyncs and new segments of the usage log that failed.", usage.num_failures),
        ("usage_segments", "Segments of the usage log that were begun.", usage.num_segments),
        ("usage_torn_segments", "Segments found at start with their last line cut off.", usage.num_torn),
    )
