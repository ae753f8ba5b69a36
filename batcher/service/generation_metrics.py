"""What continuous mode has counted beside the front door, for `GET /metrics`. Every label is from a closed set (DESIGN D7)."""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from batcher.core.replica.statistics import ReplicaStatistics
from batcher.service.exposition import counters, counts, gauges, histograms, levels
from batcher.service.generation_meters import GenerationTierMeters
from batcher.service.meters import Histogram
from batcher.service.replica import Replica

_TIER_HISTOGRAMS: tuple[tuple[str, str, Callable[[GenerationTierMeters], Histogram]], ...] = (
    ("queue_seconds", "Until the first step that computes some of the prompt.", lambda meters: meters.queue_s),
    ("ttft_seconds", "Until the first token.", lambda meters: meters.ttft_s),
    ("tpot_seconds", "Mean time between the tokens of an answer.", lambda meters: meters.tpot_s),
    ("e2e_seconds", "Until the last token, of whole answers.", lambda meters: meters.e2e_s),
)


def replica_metrics(replica: Replica, model: str) -> Iterator[Metric]:
    """`model` is what callers call the replica's."""
    statistics = replica.statistics()
    yield from _requests(replica, model)
    yield from _scheduler(statistics)
    yield from _blocks(statistics)
    yield from _steps(replica)


def _requests(replica: Replica, model: str) -> Iterator[Metric]:
    yield counts(
        "requests",
        "Requests by tier and outcome.",
        ["tier", "outcome"],
        (((tier, outcome), num) for tier, outcomes in replica.outcomes.items() for outcome, num in outcomes.items()),
    )
    yield from gauges(("live_requests", "Accepted and not yet ended.", replica.num_live))
    for name, text, of in _TIER_HISTOGRAMS:
        rows = [((tier, model), of(meters)) for tier, meters in replica.meters.tiers.items()]
        yield histograms(name, text, ["tier", "model"], rows)


def _scheduler(statistics: ReplicaStatistics) -> Iterator[Metric]:
    tiers = statistics.tiers
    by = ["tier"]
    yield levels("waiting_requests", "Requests that wait.", by, (((tier.name,), tier.num_waiting) for tier in tiers))
    yield levels("waiting_tokens", "Prompt tokens that wait.", by, (((tier.name,), tier.num_waiting_tokens) for tier in tiers))
    yield levels("running_requests", "Sequences that run.", by, (((tier.name,), tier.num_running) for tier in tiers))
    yield from gauges(("slots", "Sequences that may run at once.", statistics.num_slots))
    counted = statistics.counters
    yield counts(
        "tokens",
        "Tokens by what was done for them.",
        ["kind"],
        (
            (("prefilled",), counted.num_prefill_tokens),
            (("decoded",), counted.num_decode_tokens),
            (("cached",), counted.num_cached_tokens),
        ),
    )
    yield from counters(
        ("steps", "Steps of the model.", counted.num_steps),
        ("preemptions", "Sequences that gave their blocks up, to be computed again.", counted.num_preemptions),
        ("overtakes", "Starts before a sequence that did not fit.", counted.num_overtakes),
        ("displaced", "Waiting sequences that gave way to another.", counted.num_displaced),
    )


def _blocks(statistics: ReplicaStatistics) -> Iterator[Metric]:
    yield levels(
        "kv_blocks",
        "KV blocks by state.",
        ["state"],
        (
            (("free",), statistics.num_free_blocks),
            (("held",), statistics.num_held_blocks),
            (("cached",), statistics.num_cached_blocks),
        ),
    )
    yield from counters(("evicted_kv_blocks", "Cached blocks given to others.", statistics.num_evicted_blocks))


def _steps(replica: Replica) -> Iterator[Metric]:
    meters = replica.meters
    yield histograms("step_seconds", "A step of the model.", [], [((), meters.step_s)])
    yield histograms("step_sequences", "Sequences of a step.", [], [((), meters.step_sequences)])
    yield from counters(
        ("input_tokens", "Prompt tokens of the sequences that have started.", meters.num_input_tokens),
        ("output_tokens", "Tokens sampled for answers.", meters.num_output_tokens),
        ("failed_steps", "Steps that failed.", meters.num_failed_steps),
        ("model_losses", "Times that the model was given up and started again.", meters.num_losses),
        ("failed_checks", "Laws of the scheduler found broken.", replica.num_failed_checks),
    )
