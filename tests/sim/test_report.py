"""The histogram against the sorted samples, and what a report says of nothing."""

from math import ceil
from random import Random

import pytest

from batcher.sim.report import MAX_BUCKETS, RESOLUTION_S, Histogram, Recorder
from batcher.sim.tables import compare, describe, table
from batcher.types import BatchReason, Outcome

SHARES = [num / 1000 for num in range(1, 1001)]


def histogram_of(samples: list[float]) -> Histogram:
    histogram = Histogram()
    for sample in samples:
        histogram.record(sample)
    return histogram


@pytest.mark.parametrize("num", [1, 2, 3, 50, 99, 1000])
def test_quantiles_are_within_a_bucket_of_the_sorted_samples_monotone_and_never_above_the_maximum(num: int) -> None:
    rng = Random(num)
    samples = [rng.lognormvariate(-1.6, 0.5) for _ in range(num)]
    histogram = histogram_of(samples)
    quantiles = histogram.quantiles(*SHARES)
    raw = sorted(samples)
    exact = [raw[ceil(share * num) - 1] for share in SHARES]
    assert all(0.0 <= told - true <= RESOLUTION_S + 1e-9 for told, true in zip(quantiles, exact, strict=True))
    assert quantiles == sorted(quantiles)
    assert quantiles[-1] == histogram.max_s == max(samples)


def test_a_single_sample_is_every_quantile() -> None:
    """B98: rounded buckets gave a p99 of 600 ms where the one sample was 596 (locustio/locust#331)."""
    assert histogram_of([0.596]).quantiles(0.5, 0.95, 0.99, 1.0) == [0.596] * 4


def test_what_is_beyond_the_buckets_is_the_maximum_and_never_less_than_what_is_below() -> None:
    longest_s = MAX_BUCKETS * RESOLUTION_S
    histogram = histogram_of([0.0, 1.0, longest_s + 5.0, longest_s + 9.0])
    assert histogram.quantiles(0.25, 0.5, 0.75, 1.0) == [
        RESOLUTION_S,
        pytest.approx(1.0, abs=RESOLUTION_S),
        *[longest_s + 9.0] * 2,
    ]


def test_merged_histograms_are_the_histogram_of_all_samples() -> None:
    rng = Random(1)
    fast, slow = [rng.random() for _ in range(300)], [5.0 + rng.random() for _ in range(30)]
    merged = histogram_of(fast)
    merged.merge(histogram_of(slow))
    together = histogram_of(fast + slow)
    assert merged.quantiles(*SHARES) == together.quantiles(*SHARES)
    assert (merged.num, merged.max_s) == (330, max(slow))
    assert merged.total_s == pytest.approx(sum(fast + slow))


def test_where_nothing_was_measured_there_is_no_figure() -> None:
    """B97: "no sample" is None, never 0."""
    report = Recorder(("paid",), duration_s=1.0).report(num_workers=2)
    assert (report.latency, report.mean_batch, report.busy_share) == (None, None, 0.0)
    assert "-" in describe(report)
    assert "-" in compare({"paced": report})


def test_every_request_is_in_one_outcome_and_a_refusal_is_no_latency() -> None:
    """B95: a fast refusal must not improve the median."""
    recorder = Recorder(("paid", "free"), duration_s=1.0)
    recorder.answered["paid"](0.25)
    recorder.answered["free"](0.35)
    recorder.ended("free", Outcome.REJECTED_CAPACITY)
    recorder.ended("free", Outcome.EXPIRED)
    recorder.departed(BatchReason.FULL, 3)
    recorder.landed(departed_at=0.5, now=0.75)
    recorder.landed(departed_at=0.9, now=1.4)
    report = recorder.report(num_workers=1)
    paid, free = report.tiers
    assert (paid.outcomes, free.outcomes) == ({"ok": 1}, {"ok": 1, "rejected_capacity": 1, "expired": 1})
    assert report.outcomes == {"ok": 2, "rejected_capacity": 1, "expired": 1}
    assert report.latency is not None
    assert (report.latency.num, report.latency.max_s) == (2, 0.35)
    assert report.latency.mean_s == pytest.approx(0.3)
    assert report.mean_batch == 3.0
    assert report.busy_share == pytest.approx(0.35)


def test_columns_are_as_wide_as_they_must_be() -> None:
    assert table((("", "p50"), ("paced", "1.0"), ("x", "1000.5"))).splitlines() == [
        "          p50",
        "paced     1.0",
        "x      1000.5",
    ]
