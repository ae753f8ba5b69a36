"""The gate: who is refused, with which words, and when to come back."""

import pytest

from batcher.config import DEFAULT_TIERS, TierConfig
from batcher.core.admission.gate import Gate, Refusal
from batcher.errors import ConfigError, Overloaded, ShuttingDown
from batcher.types import Outcome
from tests.core.examples import a_dispatcher, a_request, submit_all


def a_gate(*tiers: TierConfig) -> Gate:
    return Gate(tiers or DEFAULT_TIERS, secret=b"secret")


def retry_after_s(refusal: Refusal | None) -> int:
    assert refusal is not None
    seconds = refusal.error.retry_after_s
    assert type(seconds) is int
    return seconds


def test_within_the_budget_it_may_enter() -> None:
    gate = a_gate(TierConfig("paid", wait_budget_s=0.25))

    assert gate.admit("paid", work_ahead=0, capacity_rate=2000.0, now=1.0) is None
    assert gate.admit("paid", work_ahead=500, capacity_rate=2000.0, now=1.0) is None


def test_over_the_budget_it_is_refused_at_once_with_the_numbers() -> None:
    """SPEC S8.1: 529, with Retry-After from the estimate."""
    gate = a_gate(TierConfig("paid", wait_budget_s=0.25))

    refusal = gate.admit("paid", work_ahead=501, capacity_rate=2000.0, now=1.0)

    assert refusal is not None
    assert refusal.outcome is Outcome.REJECTED_CAPACITY
    assert type(refusal.error) is Overloaded
    assert refusal.error.status == 529
    assert refusal.error.message == "the estimated wait of 0.251 s is over the budget of 0.25 s"
    assert refusal.error.retry_after_s == 1


def test_a_budget_of_zero_admits_whoever_has_nobody_before_him() -> None:
    """B12: the edges of the settings work, here a wait budget of zero."""
    gate = a_gate(TierConfig("paid", wait_budget_s=0.0))

    assert gate.admit("paid", work_ahead=0, capacity_rate=2000.0, now=1.0) is None
    assert gate.admit("paid", work_ahead=1, capacity_rate=2000.0, now=1.0) is not None


def test_free_is_refused_first() -> None:
    """SPEC S1.4: with the same work ahead, and no arrivals of paid, free's budget is the smaller one."""
    gate = a_gate()

    assert gate.admit("paid", work_ahead=350, capacity_rate=2000.0, now=1.0) is None
    assert gate.admit("free", work_ahead=350, capacity_rate=2000.0, now=1.0) is not None


def test_free_is_estimated_by_what_paid_leaves() -> None:
    gate = a_gate()
    for index in range(1000):
        assert gate.admit("paid", work_ahead=0, capacity_rate=200.0, now=index / 100.0) is None

    # Paid takes about 100 of 200 requests a second: 10 ahead take free 100 ms instead of 50.
    estimate_s = gate.estimate_wait_s("free", work_ahead=10, capacity_rate=200.0, now=10.0)
    assert estimate_s == pytest.approx(0.1, rel=0.02)
    assert gate.estimate_wait_s("paid", work_ahead=10, capacity_rate=200.0, now=10.0) == 0.05


def test_free_does_not_count_against_paid() -> None:
    gate = a_gate()
    for index in range(1000):
        gate.admit("free", work_ahead=0, capacity_rate=200.0, now=index / 100.0)

    assert gate.estimate_wait_s("paid", work_ahead=10, capacity_rate=200.0, now=10.0) == 0.05


def test_those_that_were_refused_do_not_count_as_arrivals() -> None:
    """Else a flood of refused paid requests would shut free out although it takes no capacity."""
    gate = a_gate()
    for _ in range(1000):
        assert gate.admit("paid", work_ahead=1000, capacity_rate=2000.0, now=1.0) is not None

    assert gate.estimate_wait_s("free", work_ahead=100, capacity_rate=2000.0, now=1.0) == 0.05


def test_without_a_ready_worker_nothing_enters() -> None:
    gate = a_gate(TierConfig("paid", wait_budget_s=3600.0))

    refusal = gate.admit("paid", work_ahead=0, capacity_rate=0.0, now=1.0)

    assert refusal is not None
    assert refusal.outcome is Outcome.REJECTED_CAPACITY
    assert refusal.error.message == "no worker is ready"
    assert refusal.error.retry_after_s == 2


@pytest.mark.parametrize(("num_ahead", "seconds"), [(51, 1), (200, 2), (1000, 10), (5000, 50), (10_000, 60), (10**6, 60)])
def test_retry_after_is_when_the_queue_has_drained_in_whole_seconds_from_1_to_60(num_ahead: int, seconds: int) -> None:
    gate = a_gate(TierConfig("paid", wait_budget_s=0.5))

    assert retry_after_s(gate.admit("paid", work_ahead=num_ahead, capacity_rate=100.0, now=1.0)) == seconds


def test_those_who_are_told_to_come_back_do_not_come_back_together() -> None:
    """Half of the rate is promised: 12 fit into a quarter of a second."""
    gate = a_gate(TierConfig("paid", wait_budget_s=0.5))

    told = [retry_after_s(gate.admit("paid", work_ahead=2000, capacity_rate=100.0, now=1.0)) for _ in range(50)]

    assert told == [20] * 12 + [21] * 12 + [22] * 12 + [23] * 12 + [24] * 2


def test_while_draining_everything_is_refused_as_a_shutdown() -> None:
    gate = a_gate()
    gate.drain()

    refusal = gate.admit("paid", work_ahead=0, capacity_rate=2000.0, now=1.0)

    assert refusal is not None
    assert refusal.outcome is Outcome.REJECTED_SHUTDOWN
    assert type(refusal.error) is ShuttingDown
    assert refusal.error.status == 529
    assert refusal.error.retry_after_s == 1


def test_a_gate_needs_tiers_that_can_serve_together() -> None:
    with pytest.raises(ConfigError):
        a_gate(TierConfig("paid"), TierConfig("paid"))
    with pytest.raises(ConfigError):
        Gate((), secret=b"secret")


def test_a_flooding_tenant_is_refused_while_a_small_one_is_admitted() -> None:
    """S8.1 with fairness: the wait of a tenant is estimated from its own share, so a flood's excess is the flood's alone.

    Nine workers of 250/s are all busy; the flood has 500 waiting, twenty others one each.
    """
    gate = a_gate(TierConfig("paid", wait_budget_s=0.2))
    dispatcher = a_dispatcher(num_ready=9, policy="size-or-timeout", tiers=("paid",))
    submit_all(dispatcher, [a_request(index, tenant="flood", arrived_at=1.0) for index in range(950)], now=1.0)
    submit_all(dispatcher, [a_request(1000 + index, tenant=f"t{index}", arrived_at=1.0) for index in range(20)], now=1.0)
    assert dispatcher.capacity_rate == pytest.approx(2250.0)

    def admit(tenant: str) -> Refusal | None:
        num_ahead = dispatcher.num_ahead_of("paid", tenant)
        return gate.admit("paid", work_ahead=num_ahead, capacity_rate=dispatcher.capacity_rate, now=1.0)

    assert admit("flood") is not None
    assert admit("t7") is None
    assert admit("new") is None
