"""Quantiles are samples: monotone, never above the maximum, and absent where there is none (B97, B98)."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from loadtest.samples import Ending
from loadtest.stats import Quantiles, latencies, quantile, quantiles, recovery_s, send_lags, windows
from tests.loadtest.examples import end, make_plan, make_recording

SAMPLES = st.lists(st.floats(min_value=0.0, max_value=1e6), min_size=1, max_size=400)


@given(SAMPLES)
def test_quantiles_are_monotone_and_never_above_the_maximum(samples: list[float]) -> None:
    measured = quantiles(samples)
    row = [measured.p50, measured.p90, measured.p95, measured.p99, measured.p999, measured.max]
    values = [value for value in row if value is not None]
    assert len(values) == len(row)
    assert values == sorted(values)
    assert measured.max == max(samples)
    assert measured.count == len(samples)
    assert measured.mean is not None
    assert min(samples) <= measured.mean <= max(samples)


@given(SAMPLES, st.integers(1, 1000))
def test_a_quantile_is_the_smallest_sample_that_its_part_does_not_exceed(samples: list[float], permille: int) -> None:
    ordered = sorted(samples)
    value = quantile(ordered, permille)
    assert value in samples
    assert sum(sample <= value for sample in samples) * 1000 >= len(samples) * permille
    smaller = [sample for sample in samples if sample < value]
    assert len(smaller) * 1000 < len(samples) * permille


@given(SAMPLES, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter(samples: list[float], rng: random.Random) -> None:
    shuffled = samples[:]
    rng.shuffle(shuffled)
    assert quantiles(shuffled) == quantiles(samples)


def test_one_sample_is_every_quantile() -> None:
    assert quantiles([0.596]) == Quantiles(1, 0.596, 0.596, 0.596, 0.596, 0.596, 0.596, 0.596)


def test_ranks_are_not_rounded() -> None:
    ordered = [float(i) for i in range(1, 1001)]
    assert [quantile(ordered, permille) for permille in (500, 950, 990, 999, 1000)] == [500, 950, 990, 999, 1000]


def test_no_sample_is_no_number() -> None:
    assert quantiles([]) == Quantiles(0, None, None, None, None, None, None, None)


def test_windows_count_by_the_time_of_asking() -> None:
    recording = make_recording(make_plan(rate=10.0, duration_s=2.0))
    samples = recording.samples
    end(samples, 0, Ending.REJECTED_CAPACITY, latency_s=0.001, status=529)
    end(samples, 1, Ending.TRANSPORT, latency_s=0.1, status=0)
    end(samples, 9, Ending.OK, latency_s=0.7, status=200)
    first, second = windows(samples, width_s=1.0, end_s=2.0)
    assert (first.offered, first.ok, first.rejected, first.failed, first.completed) == (10, 8, 1, 1, 6)
    assert (second.offered, second.ok, second.completed) == (10, 10, 10)
    assert first.p99_s is not None
    assert math.isclose(first.p99_s, 0.7)


def test_a_window_without_answers_has_no_quantiles() -> None:
    recording = make_recording(make_plan(rate=10.0, duration_s=1.0))
    for row in range(10):
        end(recording.samples, row, Ending.FAILED, latency_s=0.1, status=500)
    (only,) = windows(recording.samples, width_s=1.0, end_s=1.0)
    assert (only.p50_s, only.p95_s, only.p99_s, only.failed) == (None, None, None, 10)


def test_recovery_is_judged_by_the_answers_that_arrive() -> None:
    samples = make_recording(make_plan(rate=100.0, duration_s=4.0)).samples
    for row, planned_at in enumerate(samples.planned_at):
        if 0.9 <= planned_at < 1.2:
            end(samples, row, Ending.OK, latency_s=0.8, status=200)
    for limit_s, expected_s in ((0.3, 1.0), (1.0, 0.0), (0.1, None)):
        measured_s = recovery_s(samples, permille=990, limit_s=limit_s, since_s=1.0, until_s=4.0, width_s=0.5)
        assert measured_s == expected_s


def test_silence_is_no_recovery() -> None:
    samples = make_recording(make_plan(rate=100.0, duration_s=1.0)).samples
    assert recovery_s(samples, permille=990, limit_s=1.0, since_s=0.0, until_s=3.0, width_s=0.5) is None


def test_latencies_are_of_good_answers_by_tier_and_time() -> None:
    samples = make_recording(make_plan(rate=100.0, duration_s=1.0)).samples
    end(samples, 0, Ending.FAILED, latency_s=0.0, status=500)
    assert len(latencies(samples)) == 99
    assert len(latencies(samples, tier="paid")) + len(latencies(samples, tier="free")) == 99
    assert len(latencies(samples, from_s=0.5, to_s=0.75)) == 25


def test_lags_are_of_what_was_sent() -> None:
    samples = make_recording(make_plan(rate=10.0, duration_s=1.0)).samples
    samples.sent_at[0] = samples.planned_at[0] + 0.25
    samples.ending[1] = Ending.DROPPED
    samples.ending[2] = Ending.UNSENT
    assert sorted(send_lags(samples)) == [0.0] * 7 + [0.25]
