"""What continuous mode has counted beside the front door, for `GET /metrics`. Every label is from a closed set (DESIGN D7)."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from batcher.core.replica.statistics import ReplicaStatistics
from batcher.service.exposition import add_histogram
from batcher.service.generation_meters import GenerationTierMeters
from batcher.service.meters import Histogram
from batcher.service.replica import Replica

_TIER_HISTOGRAMS: tuple[tuple[str, str, Callable[[GenerationTierMeters], Histogram]], ...] = (
    ("queue", "Until the first step that computes some of the prompt.", lambda meters: meters.queue_s),
    ("ttft", "Until the first token.", lambda meters: meters.ttft_s),
    ("tpot", "Mean time between the tokens of an answer.", lambda meters: meters.tpot_s),
    ("e2e", "Until the last token, of whole answers.", lambda meters: meters.e2e_s),
)


def replica_metrics(replica: Replica, model: str) -> Iterator[Metric]:
    """`model` is what callers call the replica's."""
    statistics = replica.statistics()
    yield from _requests(replica, model)
    yield from _scheduler(statistics)
    yield from _blocks(statistics)
    yield from _steps(replica)


def _requests(replica: Replica, model: str) -> Iterator[Metric]:
    requests = CounterMetricFamily("batcher_requests", "Requests by tier and outcome.", labels=["tier", "outcome"])
    for tier, outcomes in replica.outcomes.items():
        for outcome, num in outcomes.items():
            requests.add_metric([tier, outcome], num)
    yield requests
    yield GaugeMetricFamily("batcher_live_requests", "Accepted and not yet ended.", replica.num_live)
    for name, text, of in _TIER_HISTOGRAMS:
        family = HistogramMetricFamily(f"batcher_{name}_seconds", text, labels=["tier", "model"])
        for tier, meters in replica.meters.tiers.items():
            add_histogram(family, [tier, model], of(meters))
        yield family


def _scheduler(statistics: ReplicaStatistics) -> Iterator[Metric]:
    waiting = GaugeMetricFamily("batcher_waiting_requests", "Requests that wait.", labels=["tier"])
    waiting_tokens = GaugeMetricFamily("batcher_waiting_tokens", "Prompt tokens that wait.", labels=["tier"])
    running = GaugeMetricFamily("batcher_running_requests", "Sequences that run.", labels=["tier"])
    for tier in statistics.tiers:
        waiting.add_metric([tier.name], tier.num_waiting)
        waiting_tokens.add_metric([tier.name], tier.num_waiting_tokens)
        running.add_metric([tier.name], tier.num_running)
    yield from (waiting, waiting_tokens, running)
    yield GaugeMetricFamily("batcher_slots", "Sequences that may run at once.", statistics.num_slots)
    counters = statistics.counters
    tokens = CounterMetricFamily("batcher_tokens", "Tokens by what was done for them.", labels=["kind"])
    for kind, num in (
        ("prefilled", counters.num_prefill_tokens),
        ("decoded", counters.num_decode_tokens),
        ("cached", counters.num_cached_tokens),
    ):
        tokens.add_metric([kind], num)
    yield tokens
    for name, text, value in (
        ("steps", "Steps of the model.", counters.num_steps),
        ("preemptions", "Sequences that gave their blocks up, to be computed again.", counters.num_preemptions),
        ("overtakes", "Starts before a sequence that did not fit.", counters.num_overtakes),
        ("displaced", "Waiting sequences that gave way to another.", counters.num_displaced),
    ):
        yield CounterMetricFamily(f"batcher_{name}", text, value)


def _blocks(statistics: ReplicaStatistics) -> Iterator[Metric]:
    blocks = GaugeMetricFamily("batcher_kv_blocks", "KV blocks by state.", labels=["state"])
    for state, num in (
        ("free", statistics.num_free_blocks),
        ("held", statistics.num_held_blocks),
        ("cached", statistics.num_cached_blocks),
    ):
        blocks.add_metric([state], num)
    yield blocks
    yield CounterMetricFamily("batcher_evicted_kv_blocks", "Cached blocks given to others.", statistics.num_evicted_blocks)


def _steps(replica: Replica) -> Iterator[Metric]:
    meters = replica.meters
    step = HistogramMetricFamily("batcher_step_seconds", "A step of the model.", labels=[])
    add_histogram(step, [], meters.step_s)
    sequences = HistogramMetricFamily("batcher_step_sequences", "Sequences of a step.", labels=[])
    add_histogram(sequences, [], meters.step_sequences)
    yield from (step, sequences)
    for name, text, value in (
        ("input_tokens", "Prompt tokens of the sequences that have started.", meters.num_input_tokens),
        ("output_tokens", "Tokens sampled for answers.", meters.num_output_tokens),
        ("failed_steps", "Steps that failed.", meters.num_failed_steps),
        ("model_losses", "Times that the model was given up and started again.", meters.num_losses),
        ("failed_checks", "Laws of the scheduler found broken.", replica.num_failed_checks),
    ):
        yield CounterMetricFamily(f"batcher_{name}", text, value)
