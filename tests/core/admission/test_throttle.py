"""The throttle follows the queue: limits tighten with the pressure, and keys are shed as the gate refuses."""

from math import inf

import pytest

from batcher.core.admission.throttle import INTERVAL_S, MAX_PRESSURE, Throttle


def live(
    throttle: Throttle, *, from_s: float, to_s: float, wait_s: float, num_admitted: int, num_refused: int, limit_s: float = 0.2
) -> float:
    """So many are decided in each interval. Returns the end."""
    now = from_s
    while now < to_s:
        for _ in range(num_admitted + num_refused):
            throttle.observe(wait_s, limit_s, now=now)
        for number in range(num_admitted + num_refused):
            throttle.count(is_refused=number < num_refused)
        now += INTERVAL_S
    throttle.observe(wait_s, limit_s, now=now)
    throttle.check()
    return now


def test_a_short_queue_tightens_nothing() -> None:
    throttle = Throttle()
    now = live(throttle, from_s=1.0, to_s=10.0, wait_s=0.08, num_admitted=50, num_refused=0)
    assert throttle.pressure == pytest.approx(0.4, abs=0.01)
    assert throttle.limit_factor(now=now) == 1.0
    assert throttle.admitted_share == 1.0


@pytest.mark.parametrize(("wait_s", "factor"), [(0.1, 1.0), (0.15, 0.75), (0.2, 0.5), (5.0, 0.5), (inf, 0.5)])
def test_limits_fall_in_a_line_from_half_of_the_budget_to_all_of_it(wait_s: float, factor: float) -> None:
    throttle = Throttle()
    now = live(throttle, from_s=1.0, to_s=20.0, wait_s=wait_s, num_admitted=50, num_refused=0)
    assert throttle.limit_factor(now=now) == pytest.approx(factor, abs=0.01)
    assert throttle.pressure <= MAX_PRESSURE


def test_the_pressure_takes_about_a_second_to_follow() -> None:
    throttle = Throttle()
    live(throttle, from_s=1.0, to_s=2.0, wait_s=0.0, num_admitted=50, num_refused=0)
    live(throttle, from_s=2.0, to_s=3.0, wait_s=0.2, num_admitted=50, num_refused=0)
    assert throttle.pressure == pytest.approx(0.63, abs=0.03)


def test_when_nobody_asks_any_more_the_pressure_fades() -> None:
    throttle = Throttle()
    now = live(throttle, from_s=1.0, to_s=20.0, wait_s=0.2, num_admitted=50, num_refused=0)
    assert throttle.limit_factor(now=now + 10.0) == 1.0


def test_what_the_gate_refuses_becomes_a_share_of_keys_that_is_shed() -> None:
    """Half of them refused, and then as many as are meant to be: the share of keys stays."""
    throttle = Throttle()
    now = live(throttle, from_s=1.0, to_s=4.0, wait_s=0.2, num_admitted=50, num_refused=0)
    live(throttle, from_s=now, to_s=now + 0.1, wait_s=0.2, num_admitted=50, num_refused=50)
    assert throttle.admitted_share == pytest.approx(0.5 / 0.95)
    live(throttle, from_s=now + 0.25, to_s=9.0, wait_s=0.2, num_admitted=95, num_refused=5)
    assert throttle.admitted_share == pytest.approx(0.5 / 0.95, rel=0.05)


def test_one_interval_sheds_no_more_than_half_and_nothing_sheds_all() -> None:
    throttle = Throttle()
    now = live(throttle, from_s=1.0, to_s=1.1, wait_s=9.0, num_admitted=0, num_refused=100)
    assert throttle.admitted_share == 0.5
    live(throttle, from_s=now + 0.1, to_s=60.0, wait_s=9.0, num_admitted=0, num_refused=100)
    assert throttle.admitted_share == 0.02


def test_while_the_queue_is_long_keys_come_back_slowly_and_when_it_is_short_soon() -> None:
    slow, soon = Throttle(), Throttle()
    for throttle in (slow, soon):
        live(throttle, from_s=1.0, to_s=4.0, wait_s=0.2, num_admitted=50, num_refused=50)
    start = slow.admitted_share
    live(slow, from_s=4.5, to_s=6.5, wait_s=0.2, num_admitted=50, num_refused=0)
    live(soon, from_s=4.5, to_s=6.5, wait_s=0.0, num_admitted=50, num_refused=0)
    assert start < slow.admitted_share < 1.6 * start
    assert soon.admitted_share > 2.0 * start
    live(soon, from_s=7.0, to_s=12.0, wait_s=0.0, num_admitted=1, num_refused=0)
    assert soon.admitted_share == 1.0


def test_a_few_requests_are_gathered_before_they_count() -> None:
    """One that is refused of one is no share of 100 %."""
    throttle = Throttle()
    live(throttle, from_s=1.0, to_s=1.5, wait_s=0.2, num_admitted=2, num_refused=1)
    assert throttle.admitted_share == 1.0
    live(throttle, from_s=2.0, to_s=4.0, wait_s=0.2, num_admitted=2, num_refused=1)
    assert throttle.admitted_share == pytest.approx(2 / 3 / 0.95)


def test_a_budget_of_zero_is_under_pressure_by_any_wait() -> None:
    throttle = Throttle()
    live(throttle, from_s=1.0, to_s=10.0, wait_s=0.001, num_admitted=50, num_refused=0, limit_s=0.0)
    assert throttle.pressure == pytest.approx(MAX_PRESSURE, abs=0.01)
