"""What is kept of answers, for `GET /metrics`: answers for whoever asks again (SPEC S4)."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from batcher.service.claims import ClaimStore
from batcher.service.exposition import counters, gauges
from batcher.service.idempotency import IdempotencyStatistics
from batcher.service.stores.memory_claims import MemoryClaims


def idempotency_metrics(kept: IdempotencyStatistics) -> Iterator[Metric]:
    yield from gauges(("idempotent_running", "Requests with an Idempotency-Key that are being answered.", kept.num_running))
    yield from counters(
        ("idempotent_replays", "Callers given an answer that was not made for them.", kept.num_replayed),
        ("idempotent_conflicts", "Callers told that the same request is still being answered.", kept.num_conflicts),
        ("idempotent_mismatches", "Callers whose key belongs to another body.", kept.num_mismatches),
        ("idempotent_unkept", "Answers that the store, being away, did not keep.", kept.num_unkept),
    )


def claims_metrics(store: ClaimStore) -> Iterator[Metric]:
    """Of the store in this process; Redis tells of its own."""
    if isinstance(store, MemoryClaims):
        claims = store.statistics()
        yield from gauges(
            ("idempotent_claims", "Claims held in this process.", claims.num_claims),
            ("idempotent_answers", "Answers kept in this process.", claims.num_answers),
            ("idempotent_answer_bytes", "Bytes of the answers kept in this process.", claims.num_bytes),
        )
