"""The gate: who is refused, with which words, and when to come back."""

from random import Random

import pytest

from batcher.config import DEFAULT_TIERS, TierConfig
from batcher.core.admission.gate import Gate, Refusal
from batcher.errors import ConfigError, Overloaded, ShuttingDown
from batcher.types import Outcome
from tests.core.examples import a_dispatcher, a_request, submit_all


def a_gate(*tiers: TierConfig, seed: int = 1) -> Gate:
    return Gate(tiers or DEFAULT_TIERS, jitter=Random(seed))


def retry_after_s(refusal: Refusal | None) -> int:
    assert refusal is not None
    seconds = refusal.error.retry_after_s
    assert type(seconds) is int
    return seconds


def test_within_the_budget_it_may_enter() -> None:
    gate = a_gate(TierConfig("paid", wait_budget_s=0.25))

    assert gate.admit("paid", num_ahead=0, capacity_rate=2000.0, now=1.0) is None
    assert gate.admit("paid", num_ahead=500, capacity_rate=2000.0, now=1.0) is None


def test_over_the_budget_it_is_refused_at_once_with_the_numbers() -> None:
    """SPEC S8.1: 529, with Retry-After from the estimate."""
    gate = a_gate(TierConfig("paid", wait_budget_s=0.25))

    refusal = gate.admit("paid", num_ahead=501, capacity_rate=2000.0, now=1.0)

    assert refusal is not None
    assert refusal.outcome is Outcome.REJECTED_CAPACITY
    assert type(refusal.error) is Overloaded
    assert refusal.error.status == 529
    assert refusal.error.message == "the estimated wait of 0.251 s is over this tier's budget of 0.25 s"
    assert refusal.error.retry_after_s == 1


def test_a_budget_of_zero_admits_whoever_has_nobody_before_him() -> None:
    """B12: the edges of the settings work, here a wait budget of zero."""
    gate = a_gate(TierConfig("paid", wait_budget_s=0.0))

    assert gate.admit("paid", num_ahead=0, capacity_rate=2000.0, now=1.0) is None
    assert gate.admit("paid", num_ahead=1, capacity_rate=2000.0, now=1.0) is not None


def test_free_is_refused_first() -> None:
    """SPEC S1.4: with the same work ahead, and no arrivals of paid, free's budget is the smaller one."""
    gate = a_gate()

    assert gate.admit("paid", num_ahead=350, capacity_rate=2000.0, now=1.0) is None
    assert gate.admit("free", num_ahead=350, capacity_rate=2000.0, now=1.0) is not None


def test_free_is_estimated_by_what_paid_leaves() -> None:
    gate = a_gate()
    for index in range(1000):
        assert gate.admit("paid", num_ahead=0, capacity_rate=200.0, now=index / 100.0) is None

    # Paid takes about 100 of 200 requests a second: 10 ahead take free 100 ms instead of 50.
    estimate_s = gate.estimate_wait_s("free", num_ahead=10, capacity_rate=200.0, now=10.0)
    assert estimate_s == pytest.approx(0.1, rel=0.02)
    assert gate.estimate_wait_s("paid", num_ahead=10, capacity_rate=200.0, now=10.0) == 0.05


def test_free_does_not_count_against_paid() -> None:
    gate = a_gate()
    for index in range(1000):
        gate.admit("free", num_ahead=0, capacity_rate=200.0, now=index / 100.0)

    assert gate.estimate_wait_s("paid", num_ahead=10, capacity_rate=200.0, now=10.0) == 0.05


def test_those_that_were_refused_do_not_count_as_arrivals() -> None:
    """Else a flood of refused paid requests would shut free out although it takes no capacity."""
    gate = a_gate()
    for _ in range(1000):
        assert gate.admit("paid", num_ahead=1000, capacity_rate=2000.0, now=1.0) is not None

    assert gate.estimate_wait_s("free", num_ahead=100, capacity_rate=2000.0, now=1.0) == 0.05


def test_without_a_ready_worker_nothing_enters() -> None:
    gate = a_gate(TierConfig("paid", wait_budget_s=3600.0))

    refusal = gate.admit("paid", num_ahead=0, capacity_rate=0.0, now=1.0)

    assert refusal is not None
    assert refusal.outcome is Outcome.REJECTED_CAPACITY
    assert refusal.error.message == "no worker is ready"
    assert refusal.error.retry_after_s == 2


@pytest.mark.parametrize("num_ahead", [51, 200, 1000, 5000, 10_000, 10**6])
def test_retry_after_is_whole_seconds_from_1_to_60_and_at_most_half_above_the_estimate(num_ahead: int) -> None:
    for seed in range(20):
        gate = a_gate(TierConfig("paid", wait_budget_s=0.5), seed=seed)
        excess_s = num_ahead / 100.0 - 0.5

        seconds = retry_after_s(gate.admit("paid", num_ahead=num_ahead, capacity_rate=100.0, now=1.0))

        assert 1 <= seconds <= 60
        assert min(excess_s, 60) <= seconds <= min(max(1.5 * excess_s + 1, 1), 60)


def test_those_who_are_told_to_come_back_do_not_come_back_together() -> None:
    gate = a_gate(TierConfig("paid", wait_budget_s=0.5))

    told = {retry_after_s(gate.admit("paid", num_ahead=2000, capacity_rate=100.0, now=1.0)) for _ in range(50)}

    assert min(told) >= 20
    assert max(told) <= 30
    assert len(told) >= 5


def test_the_same_seed_tells_the_same() -> None:
    first, second = a_gate(seed=7), a_gate(seed=7)

    for num_ahead in range(1000, 1020):
        refusal = first.admit("paid", num_ahead=num_ahead, capacity_rate=100.0, now=1.0)
        other = second.admit("paid", num_ahead=num_ahead, capacity_rate=100.0, now=1.0)
        assert retry_after_s(refusal) == retry_after_s(other)


def test_while_draining_everything_is_refused_as_a_shutdown() -> None:
    gate = a_gate()
    gate.drain()

    refusal = gate.admit("paid", num_ahead=0, capacity_rate=2000.0, now=1.0)

    assert refusal is not None
    assert refusal.outcome is Outcome.REJECTED_SHUTDOWN
    assert type(refusal.error) is ShuttingDown
    assert refusal.error.status == 529
    assert refusal.error.retry_after_s == 1


def test_a_gate_needs_tiers_that_can_serve_together() -> None:
    with pytest.raises(ConfigError):
        a_gate(TierConfig("paid"), TierConfig("paid"))
    with pytest.raises(ConfigError):
        Gate((), jitter=Random(1))


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
        return gate.admit("paid", num_ahead=num_ahead, capacity_rate=dispatcher.capacity_rate, now=1.0)

    assert admit("flood") is not None
    assert admit("t7") is None
    assert admit("new") is None
