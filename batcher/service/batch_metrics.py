"""What batch mode has counted beside the front door, for `GET /metrics`. Every label is from a closed set (DESIGN D7)."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.dispatch.statistics import DispatchStatistics
from batcher.service.exposition import counters, counts, gauges, histograms, levels
from batcher.service.meters import Histogram, Meters

_SIZE_BOUNDS = (1, 2, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50)


def batch_metrics(meters: Meters, dispatcher: Dispatcher, model: str) -> Iterator[Metric]:
    """`model` is what callers call that which `run_batch` computes."""
    statistics = dispatcher.statistics()
    yield from _requests(meters, model)
    yield from _queues(statistics)
    yield from _batches(statistics)
    yield from _workers(statistics)


def _requests(meters: Meters, model: str) -> Iterator[Metric]:
    tiers = meters.tiers.items()
    by = ["tier", "model"]
    yield counts(
        "requests",
        "Requests by tier and outcome.",
        ["tier", "outcome"],
        (((tier, outcome), num) for tier, metered in tiers for outcome, num in metered.outcomes.items()),
    )
    yield histograms(
        "queue_seconds", "Wait for a batch, of answered requests.", by, (((tier, model), its.queue_s) for tier, its in tiers)
    )
    yield histograms(
        "e2e_seconds", "From the whole request to its answer.", by, (((tier, model), its.e2e_s) for tier, its in tiers)
    )
    # No measure is better than zeros (CASES B97): there is no time between the tokens of an answer that comes whole.
    yield histograms("tpot_seconds", "None: an answer of run_batch comes whole.", by, ())
    yield histograms("overhead_seconds", "Neither in a batch nor waiting for one.", [], [((), meters.overhead_s)])
    yield histograms("run_seconds", "run_batch, where it is computed.", [], [((), meters.run_s)])
    yield histograms("batch_oldest_wait_seconds", "Of the oldest request of a batch.", [], [((), meters.oldest_wait_s)])


def _queues(statistics: DispatchStatistics) -> Iterator[Metric]:
    tiers = statistics.tiers
    by = ["tier"]
    yield levels("waiting_requests", "Requests that wait.", by, (((tier.name,), tier.num_waiting) for tier in tiers))
    yield levels("waiting_bytes", "Bytes of the requests that wait.", by, (((tier.name,), tier.num_bytes) for tier in tiers))
    yield levels("waiting_tenants", "Tenants with waiting requests.", by, (((tier.name,), tier.num_tenants) for tier in tiers))
    yield from gauges(
        ("live_requests", "Accepted and not yet ended.", statistics.num_live),
        ("running_requests", "Requests in batches that run.", statistics.num_running),
        ("inflight_batches", "Batches that run.", statistics.num_inflight),
        ("parked_batches", "Batches that wait to run again.", statistics.num_parked),
    )


def _batches(statistics: DispatchStatistics) -> Iterator[Metric]:
    counted = statistics.counters
    yield counts(
        "batches",
        "Batches sent, by the reason they left.",
        ["reason"],
        (((reason,), num) for reason, num in counted.batches.items()),
    )
    size = Histogram(_SIZE_BOUNDS)
    for num_requests, num in counted.batch_sizes.items():
        size.observe(num_requests, num)
    yield histograms("batch_size", "Requests in a batch when it left.", [], [((), size)])
    yield from gauges(
        ("service_time_seconds", "What a batch takes at present.", statistics.service_time_s),
        ("retry_budget_calls", "Extra run_batch calls that may be made now.", statistics.retry_budget),
    )
    yield from counters(
        ("retries", "Batches sent again because their worker was lost.", statistics.num_retries),
        ("splits", "Parts sent to find an input that made run_batch raise.", statistics.num_splits),
        ("run_batch_raised", "Calls of run_batch that raised.", counted.num_raised),
        ("batch_output_mismatch", "Calls of run_batch with outputs of the wrong number or type.", counted.num_bad_outputs),
        ("late_reports", "Reports of superseded attempts, ignored.", counted.num_late),
        ("queue_full", "Requests refused because the queue was full.", counted.num_no_room),
        ("displaced", "Waiting requests that gave way to a higher tier.", counted.num_displaced),
    )


def _workers(statistics: DispatchStatistics) -> Iterator[Metric]:
    yield levels("workers", "Workers by state.", ["state"], (((state,), num) for state, num in statistics.workers.items()))
    yield counts(
        "worker_faults",
        "Workers given up, by fault.",
        ["fault"],
        (((fault,), num) for fault, num in statistics.counters.faults.items()),
    )
    yield from gauges(("broken_workers", "Workers with an open circuit breaker.", statistics.num_broken_workers))
