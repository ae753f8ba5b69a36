"""What batch mode has counted beside the front door, for `GET /metrics`. Every label is from a closed set (DESIGN D7)."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.dispatch.statistics import DispatchStatistics
from batcher.service.exposition import add_histogram
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
    requests = CounterMetricFamily("batcher_requests", "Requests by tier and outcome.", labels=["tier", "outcome"])
    by = ["tier", "model"]
    queue = HistogramMetricFamily("batcher_queue_seconds", "Wait for a batch, of answered requests.", labels=by)
    e2e = HistogramMetricFamily("batcher_e2e_seconds", "From the whole request to its answer.", labels=by)
    for tier, metered in meters.tiers.items():
        for outcome, num in metered.outcomes.items():
            requests.add_metric([tier, outcome], num)
        add_histogram(queue, [tier, model], metered.queue_s)
        add_histogram(e2e, [tier, model], metered.e2e_s)
    yield from (requests, queue, e2e)
    # No measure is better than zeros (CASES B97): there is no time between the tokens of an answer that comes whole.
    yield HistogramMetricFamily("batcher_tpot_seconds", "None: an answer of run_batch comes whole.", labels=by)
    overhead = HistogramMetricFamily("batcher_overhead_seconds", "Neither in a batch nor waiting for one.", labels=[])
    add_histogram(overhead, [], meters.overhead_s)
    run = HistogramMetricFamily("batcher_run_seconds", "run_batch, where it is computed.", labels=[])
    add_histogram(run, [], meters.run_s)
    oldest = HistogramMetricFamily("batcher_batch_oldest_wait_seconds", "Of the oldest request of a batch.", labels=[])
    add_histogram(oldest, [], meters.oldest_wait_s)
    yield from (overhead, run, oldest)


def _queues(statistics: DispatchStatistics) -> Iterator[Metric]:
    waiting = GaugeMetricFamily("batcher_waiting_requests", "Requests that wait.", labels=["tier"])
    waiting_bytes = GaugeMetricFamily("batcher_waiting_bytes", "Bytes of the requests that wait.", labels=["tier"])
    tenants = GaugeMetricFamily("batcher_waiting_tenants", "Tenants with waiting requests.", labels=["tier"])
    for tier in statistics.tiers:
        waiting.add_metric([tier.name], tier.num_waiting)
        waiting_bytes.add_metric([tier.name], tier.num_bytes)
        tenants.add_metric([tier.name], tier.num_tenants)
    yield from (waiting, waiting_bytes, tenants)
    yield GaugeMetricFamily("batcher_live_requests", "Accepted and not yet ended.", statistics.num_live)
    yield GaugeMetricFamily("batcher_running_requests", "Requests in batches that run.", statistics.num_running)
    yield GaugeMetricFamily("batcher_inflight_batches", "Batches that run.", statistics.num_inflight)
    yield GaugeMetricFamily("batcher_parked_batches", "Batches that wait to run again.", statistics.num_parked)


def _batches(statistics: DispatchStatistics) -> Iterator[Metric]:
    counters = statistics.counters
    batches = CounterMetricFamily("batcher_batches", "Batches sent, by the reason they left.", labels=["reason"])
    for reason, num in counters.batches.items():
        batches.add_metric([reason], num)
    size = Histogram(_SIZE_BOUNDS)
    for num_requests, num in counters.batch_sizes.items():
        size.observe(num_requests, num)
    sizes = HistogramMetricFamily("batcher_batch_size", "Requests in a batch when it left.", labels=[])
    add_histogram(sizes, [], size)
    yield from (batches, sizes)
    yield GaugeMetricFamily("batcher_service_time_seconds", "What a batch takes at present.", statistics.service_time_s)
    yield GaugeMetricFamily(
        "batcher_retry_budget_calls", "Extra run_batch calls that may be made now.", statistics.retry_budget
    )
    for name, text, value in (
        ("retries", "Batches sent again because their worker was lost.", statistics.num_retries),
        ("splits", "Parts sent to find an input that made run_batch raise.", statistics.num_splits),
        ("run_batch_raised", "Calls of run_batch that raised.", counters.num_raised),
        ("batch_output_mismatch", "Calls of run_batch with outputs of the wrong number or type.", counters.num_bad_outputs),
        ("late_reports", "Reports of superseded attempts, ignored.", counters.num_late),
        ("queue_full", "Requests refused because the queue was full.", counters.num_no_room),
        ("displaced", "Waiting requests that gave way to a higher tier.", counters.num_displaced),
    ):
        yield CounterMetricFamily(f"batcher_{name}", text, value)


def _workers(statistics: DispatchStatistics) -> Iterator[Metric]:
    workers = GaugeMetricFamily("batcher_workers", "Workers by state.", labels=["state"])
    for state, num in statistics.workers.items():
        workers.add_metric([state], num)
    faults = CounterMetricFamily("batcher_worker_faults", "Workers given up, by fault.", labels=["fault"])
    for fault, num in statistics.counters.faults.items():
        faults.add_metric([fault], num)
    yield from (workers, faults)
    yield GaugeMetricFamily("batcher_broken_workers", "Workers with an open circuit breaker.", statistics.num_broken_workers)
