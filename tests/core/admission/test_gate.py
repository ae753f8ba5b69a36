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


def test_the_fresh_share_is_of_what_higher_tiers_leave() -> None:
    gate = a_gate()
    assert gate.fresh_share("free", capacity_rate=200.0, now=0.0) == 0.0
    for index in range(1000):
        for tier in ("paid", "free"):
            assert gate.admit(tier, work_ahead=0, capacity_rate=250.0, now=index / 100.0) is None

    assert gate.fresh_share("paid", capacity_rate=200.0, now=10.0) == pytest.approx(0.5, rel=0.02)
    assert gate.fresh_share("free", capacity_rate=150.0, now=10.0) == pytest.approx(2.0, rel=0.02)
    assert gate.fresh_share("free", capacity_rate=0.0, now=10.0) == 1.0


def test_it_is_known_whether_callers_of_higher_tiers_are_to_come_back() -> None:
    gate = a_gate()
    assert not gate.has_promised_above("free", now=1.0)
    assert retry_after_s(gate.admit("paid", key="k", work_ahead=500, capacity_rate=200.0, now=1.0)) == 3
    assert gate.has_promised_above("free", now=1.0)
    assert not gate.has_promised_above("paid", now=1.0)
    assert not gate.has_promised_above("free", now=20.0)  # They did not.


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
    """Half of the rate is promised: two fit into a twentieth of a second."""
    gate = a_gate(TierConfig("paid", wait_budget_s=0.5))

    told = [retry_after_s(gate.admit("paid", work_ahead=2000, capacity_rate=100.0, now=1.0)) for _ in range(50)]

    assert told == [20 + number // 2 for number in range(50)]


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


# Shedding and promises. Capacity 1,000 a second, a budget of 0.2 s: 200 ahead are within it.


def ask(gate: Gate, key: str, num_ahead: int, *, now: float, tier: str = "free", is_early: bool = False) -> Refusal | None:
    return gate.admit(tier, key=key, work_ahead=num_ahead, capacity_rate=1000.0, now=now, is_early=is_early)


def a_gate_that_sheds(*, share: float = 0.5) -> Gate:
    gate = a_gate(TierConfig("free", wait_budget_s=0.2))
    throttle = gate._tiers["free"].throttle
    throttle.observe(0.0, 0.2, now=0.99)  # It moves next at 1.24.
    throttle.admitted_share = share
    return gate


def test_a_shed_key_may_wait_for_a_quarter_of_the_budget_and_the_others_for_all_of_it() -> None:
    gate = a_gate_that_sheds()
    keys = [f"key {number}" for number in range(100)]
    refused = {key for key in keys if ask(gate, key, 51, now=1.0) is not None}
    assert 25 < len(refused) < 75
    assert refused == {key for key in keys if gate._scores.score("free", key, now=1.0) >= 0.5}
    later = [key for key in keys if ask(gate, key, 51, now=1.1) is not None and key not in refused]
    assert not later
    assert all(ask(gate, f"other {number}", 50, now=1.2) is None for number in range(100))


def test_the_same_keys_stay_refused_while_it_lasts() -> None:
    """Twice the capacity for half a minute: after the first seconds few keys have a bad service, and none a lottery."""
    gate = a_gate(TierConfig("free", wait_budget_s=0.2))
    num_waiting = 0.0
    verdicts: dict[str, list[bool]] = {}
    for number in range(60_000):
        now = number / 2000.0
        num_waiting = max(0.0, num_waiting - 0.5)
        key = f"key {number % 200}"
        is_in = gate.admit("free", key=key, work_ahead=num_waiting, capacity_rate=1000.0, now=now, sure_rate=0.0) is None
        num_waiting += is_in
        if now > 10.0:
            verdicts.setdefault(key, []).append(is_in)
    shares = sorted(sum(each) / len(each) for each in verdicts.values())
    assert sum(share > 0.9 for share in shares) > 80
    assert sum(share < 0.1 for share in shares) > 80
    assert 0.45 * 200 < sum(shares) < 0.55 * 200  # And the capacity is used.


def test_who_comes_back_when_told_goes_before_fresh_arrivals() -> None:
    gate = a_gate_that_sheds(share=0.02)
    assert retry_after_s(ask(gate, "ann", 210, now=1.0)) == 1
    assert ask(gate, "ben", 210, now=2.0) is not None
    assert ask(gate, "ann", 210, now=2.0) is None
    assert ask(gate, "ann", 210, now=2.0) is not None  # Once.
    (free,) = gate.statistics(now=2.0)
    assert (free.promises.num_made, free.promises.num_kept, free.promises.num_broken) == (3, 1, 0)


def test_a_promise_is_no_use_before_its_time_or_long_after() -> None:
    gate = a_gate_that_sheds(share=0.02)
    ask(gate, "ann", 210, now=1.0)
    assert ask(gate, "ann", 210, now=1.9) is not None
    assert ask(gate, "ann", 210, now=9.0) is not None


def test_a_promise_is_broken_only_when_the_queue_is_longer_than_fresh_arrivals_may_make_it() -> None:
    gate = a_gate(TierConfig("free", wait_budget_s=0.2))
    ask(gate, "ann", 300, now=1.0)
    assert ask(gate, "ann", 252, now=2.0) is not None  # Capacity fell since: 1.25 budgets and one more.
    ask(gate, "ben", 300, now=3.0)
    assert ask(gate, "ben", 251, now=4.0) is None
    (free,) = gate.statistics(now=4.0)
    assert (free.promises.num_kept, free.promises.num_broken) == (1, 1)


def test_an_early_question_changes_nothing_when_the_answer_is_yes() -> None:
    gate = a_gate_that_sheds(share=0.02)
    ask(gate, "ann", 210, now=1.0)
    for _ in range(3):
        assert ask(gate, "ann", 210, now=2.0, is_early=True) is None
    assert ask(gate, "ann", 210, now=2.0) is None
    assert ask(gate, "ann", 210, now=2.0, is_early=True) is not None


def test_who_is_asked_about_twice_weighs_in_the_pressure_once() -> None:
    """Those let in have an early question each, and those refused do not come to the second: the queue looked shorter."""
    gate = a_gate_that_sheds(share=1.0)
    throttle = gate._tiers["free"].throttle
    assert ask(gate, "ann", 100, now=1.0, is_early=True) is None
    assert ask(gate, "ann", 100, now=1.0) is None
    assert ask(gate, "ben", 210, now=1.0, is_early=True) is not None
    assert throttle._num_asked == 1 + 2


def test_an_early_refusal_is_a_promise_too() -> None:
    gate = a_gate(TierConfig("free", wait_budget_s=0.2))
    assert retry_after_s(ask(gate, "ann", 210, now=1.0, is_early=True)) == 1
    assert ask(gate, "ann", 210, now=2.0, is_early=True) is None
    assert ask(gate, "ann", 210, now=2.0) is None


def test_of_a_reserve_nothing_is_promised_and_all_may_be_borrowed() -> None:
    gate = a_gate(TierConfig("paid", reserved_share=0.9), TierConfig("free", wait_budget_s=0.2))
    assert ask(gate, "ann", 200, now=1.0) is None
    told = [retry_after_s(ask(gate, f"key {number}", 210, now=1.0)) for number in range(100)]
    # Half of 100 a second: 2 or 3 in a slot.
    assert 30 <= max(told) <= 60


def test_what_higher_tiers_use_is_not_promised() -> None:
    gate = a_gate()
    for number in range(4000):
        gate.admit("paid", work_ahead=0, capacity_rate=1000.0, now=1.0 + number / 1000.0)
    told = [retry_after_s(ask(gate, f"key {number}", 210, now=5.0)) for number in range(5)]
    # Without a promise it is a guess, and another one for each: they were told a minute, and then the server was idle.
    assert len(set(told)) > 1
    assert all(drained <= retry_after <= 2 * drained + 4 for drained in [min(told)] for retry_after in told)
    assert gate.statistics(now=5.0)[1].promises.num_made == 0


def test_limits_of_lower_tiers_tighten_with_their_queue_and_the_first_ones_never() -> None:
    gate = a_gate()
    for number in range(4000):
        for tier in ("paid", "free"):
            ask(gate, f"key {number % 50}", 65, now=1.0 + number / 400.0, tier=tier)
    assert gate.limit_factor("free", now=11.0) == pytest.approx(0.78, abs=0.06)
    assert gate.limit_factor("paid", now=11.0) == 1.0
    gate.check()
