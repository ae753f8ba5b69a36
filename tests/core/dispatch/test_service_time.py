"""The service time stays within what was seen, whatever is seen."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batcher.core.dispatch.service_time import ServiceTime


def test_without_a_sample_the_configured_time_counts() -> None:
    """B11: a cold start has no sample, and must not divide by none."""
    service_time = ServiceTime(0.2)

    assert service_time.mean_s == 0.2
    assert service_time.longest_s == 0.2
    assert service_time.num_samples == 0


def test_the_first_sample_replaces_the_configured_mean() -> None:
    """B11: the first batch takes 5 s."""
    service_time = ServiceTime(0.2)

    service_time.observe(5.0)

    assert service_time.mean_s == pytest.approx(5.0)
    assert service_time.longest_s == pytest.approx(5.0)


def test_the_first_batch_of_a_fresh_worker_tells_how_long_batches_may_take_and_nothing_of_the_mean() -> None:
    """Models warm up. And a fleet that becomes slower for good is only known by its first batches: all others are called
    hung, and never succeed.
    """
    service_time = ServiceTime(0.2)

    service_time.observe(10.0, is_first=True)
    assert (service_time.mean_s, service_time.longest_s, service_time.num_samples) == (0.2, 10.0, 0)
    service_time.observe(0.25)
    assert service_time.mean_s == pytest.approx(0.25)
    service_time.observe(20.0, is_first=True)
    service_time.observe(0.1, is_first=True)

    assert service_time.mean_s == pytest.approx(0.25)
    assert (service_time.longest_s, service_time.num_samples) == (20.0, 1)


def test_the_mean_moves_by_a_tenth_to_each_later_sample() -> None:
    service_time = ServiceTime(0.2)
    service_time.observe(1.0)

    service_time.observe(2.0)

    assert service_time.mean_s == pytest.approx(1.1)


def test_falling_times_never_become_negative() -> None:
    """B10: a line fitted through 400, 200, 100, 50 ms goes below zero, and then nothing is ever admitted."""
    service_time = ServiceTime(0.2)
    for duration_s in [0.4, 0.2, 0.1, 0.05]:
        service_time.observe(duration_s)
        assert 0.05 <= service_time.mean_s <= 0.4
        assert 0.2 <= service_time.longest_s <= 0.4

    for _ in range(1000):
        service_time.observe(0.05)

    assert service_time.mean_s == pytest.approx(0.05)


def test_the_longest_jumps_up_at_once_decays_slowly_and_never_below_the_expectation() -> None:
    service_time = ServiceTime(0.2)
    service_time.observe(0.2)
    service_time.observe(1.0)
    assert service_time.longest_s == 1.0

    service_time.observe(0.2)
    assert 0.9 < service_time.longest_s < 1.0
    for _ in range(500):
        service_time.observe(0.1)

    assert service_time.longest_s == 0.2


def test_a_clock_that_stands_still_gives_a_positive_mean() -> None:
    service_time = ServiceTime(0.2)
    for _ in range(100):
        service_time.observe(0.0)
    service_time.observe(-1.0)

    assert service_time.mean_s > 0.0


@settings(derandomize=True, max_examples=100, deadline=None)
@given(durations=st.lists(st.floats(1e-6, 3600.0), min_size=1, max_size=30))
def test_the_mean_lies_between_the_smallest_and_the_largest_sample(durations: list[float]) -> None:
    service_time = ServiceTime(0.2)
    for duration_s in durations:
        service_time.observe(duration_s)

    assert min(durations) * (1 - 1e-9) <= service_time.mean_s <= max(durations) * (1 + 1e-9)
    assert service_time.mean_s <= max(service_time.longest_s, 0.2) * (1 + 1e-9)
    assert service_time.longest_s <= max(0.2, *durations, 0.0)


def test_a_hang_lets_the_next_batch_take_longer_up_to_a_bound() -> None:
    """Full batches became slower than the limit while a batch of one stayed fast: each full batch was called a hang, its
    worker's canary of one succeeded, nothing was learnt, and workers were killed for ever.
    """
    time = ServiceTime(0.1, hang_cap_s=2.0)
    for taken_s in (0.2, 0.3, 0.45):
        time.observe_hang(taken_s)
        assert time.longest_s == taken_s
    time.observe_hang(60.0)
    assert time.longest_s == 2.0
    assert time.mean_s == 0.1
