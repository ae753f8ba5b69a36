"""The estimate of a wait is finite, never negative, and cheap; the arrival rate forgets in about a second."""

from math import e, inf, isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batcher.core.admission.wait import ArrivalRate, estimate_wait_s


def test_the_wait_is_the_work_ahead_over_the_capacity() -> None:
    """SPEC S8.1."""
    assert estimate_wait_s(500, capacity_rate=2000.0, higher_rate=0.0) == 0.25


def test_with_nothing_ahead_there_is_no_wait() -> None:
    assert estimate_wait_s(0, capacity_rate=2000.0, higher_rate=1e9) == 0.0


def test_without_capacity_the_wait_is_endless_even_with_nothing_ahead() -> None:
    assert estimate_wait_s(0, capacity_rate=0.0, higher_rate=0.0) == inf
    assert estimate_wait_s(7, capacity_rate=0.0, higher_rate=0.0) == inf


def test_a_lower_tier_gets_what_the_higher_ones_leave() -> None:
    assert estimate_wait_s(100, capacity_rate=2000.0, higher_rate=1500.0) == 0.2


def test_when_the_higher_tiers_want_all_or_more_one_slot_of_fifty_is_counted_on() -> None:
    """B10: an estimate that fell below zero, or to a division by zero, would admit all or nothing for ever."""
    assert estimate_wait_s(10, capacity_rate=1000.0, higher_rate=1000.0) == 0.5
    assert estimate_wait_s(10, capacity_rate=1000.0, higher_rate=5000.0) == 0.5


@settings(derandomize=True, max_examples=200, deadline=None)
@given(num_ahead=st.integers(0, 10**6), capacity_rate=st.floats(1e-3, 1e9), higher_rate=st.floats(0.0, 1e12))
def test_the_estimate_is_finite_and_not_negative_while_a_worker_is_ready(
    num_ahead: int, capacity_rate: float, higher_rate: float
) -> None:
    wait_s = estimate_wait_s(num_ahead, capacity_rate=capacity_rate, higher_rate=higher_rate)

    assert isfinite(wait_s)
    assert wait_s >= num_ahead / capacity_rate * (1 - 1e-12)


def test_nothing_arrived_yet_is_a_rate_of_zero() -> None:
    assert ArrivalRate().rate(now=0.0) == 0.0
    assert ArrivalRate().rate(now=1e9) == 0.0


def test_a_steady_stream_is_measured_as_what_it_is() -> None:
    rate = ArrivalRate()
    for index in range(2000):
        rate.observe(now=index / 200.0)

    assert rate.rate(now=10.0) == pytest.approx(200.0, rel=0.01)


def test_the_rate_fades_by_a_factor_e_each_second() -> None:
    rate = ArrivalRate()
    rate.observe(now=1.0)

    assert rate.rate(now=1.0) == 1.0
    assert rate.rate(now=2.0) == pytest.approx(1.0 / e)
    assert rate.rate(now=1e6) == 0.0


def test_many_at_one_instant_all_count() -> None:
    rate = ArrivalRate()
    for _ in range(50):
        rate.observe(now=1.0)

    assert rate.rate(now=1.0) == 50.0


def test_to_ask_does_not_change_the_rate() -> None:
    rate = ArrivalRate()
    rate.observe(now=1.0)
    rate.rate(now=5.0)

    assert rate.rate(now=1.0) == 1.0


def test_whoever_fits_into_the_next_batch_waits_for_nobodys_work() -> None:
    """One worker, a second a batch of fifty, a budget of 0.2 s: a wait counted by requests let ten wait, batches never had
    more, and at half of capacity two thirds were refused.
    """
    assert estimate_wait_s(49, batch_size=50, capacity_rate=50.0, higher_rate=0.0) == 0.0
    assert estimate_wait_s(50, batch_size=50, capacity_rate=50.0, higher_rate=0.0) == 1.0
    assert estimate_wait_s(149, batch_size=50, capacity_rate=50.0, higher_rate=0.0) == 2.0
