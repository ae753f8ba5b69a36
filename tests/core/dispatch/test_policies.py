"""Each policy's promise, and its edges: batches of one, a timeout of zero, one worker, none."""

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batcher.config import DispatchConfig, PolicyName
from batcher.core.dispatch.policies import Load, Paced, Policy, Single, SizeOrTimeout, Static, create_policy
from batcher.types import BatchReason


def a_load(
    *, num_waiting: int = 1, oldest_at: float = 1.0, num_running: int = 0, num_workers: int = 4, service_time_s: float = 0.2
) -> Load:
    load = Load(service_time_s=service_time_s)
    load.num_waiting = num_waiting
    load.oldest_at = oldest_at
    load.num_running = num_running
    load.num_workers = num_workers
    return load


@pytest.mark.parametrize(
    ("name", "kind", "max_batch_size"),
    [
        (PolicyName.SINGLE, Single, 1),
        (PolicyName.STATIC, Static, 7),
        (PolicyName.SIZE_OR_TIMEOUT, SizeOrTimeout, 7),
        (PolicyName.PACED, Paced, 7),
    ],
)
def test_each_name_makes_its_policy(name: PolicyName, kind: type[object], max_batch_size: int) -> None:
    policy = create_policy(DispatchConfig(policy=name, max_batch_size=7))

    assert type(policy) is kind
    assert policy.max_batch_size == max_batch_size


# single


def test_single_lets_each_request_leave_alone_and_at_once() -> None:
    policy = Single()

    assert policy.max_batch_size == 1
    assert policy.leaves_at(a_load(num_waiting=30, oldest_at=1.0)) == 1.0
    policy.departed(a_load(num_waiting=30), now=1.0)
    assert policy.leaves_at(a_load(num_waiting=29, oldest_at=1.0)) == 1.0
    assert policy.reason(a_load(), now=1.0) is BatchReason.FULL


# static


def test_static_waits_for_a_full_batch_for_ever() -> None:
    policy = Static(50)

    assert policy.leaves_at(a_load(num_waiting=49)) == inf
    assert policy.leaves_at(a_load(num_waiting=50, oldest_at=1.0)) == 1.0
    assert policy.reason(a_load(num_waiting=50), now=9.0) is BatchReason.FULL


def test_static_with_batches_of_one_never_waits() -> None:
    policy = Static(1)

    assert policy.leaves_at(a_load(num_waiting=1, oldest_at=1.0)) == 1.0


# size-or-timeout


def test_size_or_timeout_lets_a_full_batch_leave_at_once() -> None:
    policy = SizeOrTimeout(50, 0.15)

    assert policy.leaves_at(a_load(num_waiting=50, oldest_at=1.0)) == 1.0
    assert policy.reason(a_load(num_waiting=50, oldest_at=1.0), now=1.01) is BatchReason.FULL


def test_size_or_timeout_lets_a_partial_batch_leave_when_its_oldest_has_waited() -> None:
    policy = SizeOrTimeout(50, 0.25)

    assert policy.leaves_at(a_load(num_waiting=49, oldest_at=1.0)) == 1.25
    assert policy.reason(a_load(num_waiting=49, oldest_at=1.0), now=1.25) is BatchReason.TIMEOUT


def test_neither_an_arrival_nor_a_departure_rearms_the_timeout() -> None:
    """B04: a timer that counted from the end of the last batch made the first request wait for nothing."""
    policy = SizeOrTimeout(50, 0.25)
    assert policy.leaves_at(a_load(num_waiting=1, oldest_at=1.0)) == 1.25

    assert policy.leaves_at(a_load(num_waiting=2, oldest_at=1.0)) == 1.25
    policy.departed(a_load(num_waiting=52, oldest_at=0.9), now=1.2)
    assert policy.leaves_at(a_load(num_waiting=2, oldest_at=1.0)) == 1.25


def test_a_timeout_of_zero_lets_whatever_waits_leave() -> None:
    assert SizeOrTimeout(50, 0.0).leaves_at(a_load(num_waiting=1, oldest_at=1.0)) == 1.0
    paced = Paced(50, 0.0)
    paced.departed(a_load(num_waiting=5), now=1.0)
    assert paced.leaves_at(a_load(num_waiting=5, oldest_at=1.0, num_running=5)) == 1.0


@pytest.mark.parametrize("policy", [SizeOrTimeout(1, 60.0), Paced(1, 60.0), Static(1)])
def test_with_batches_of_one_every_request_is_a_full_batch(policy: Policy) -> None:
    """B12: the edges of the settings work, here a batch size of one."""
    policy.departed(a_load(num_waiting=1), now=1.0)

    assert policy.leaves_at(a_load(num_waiting=1, oldest_at=1.0, num_running=4)) == 1.0
    assert policy.reason(a_load(num_waiting=1), now=1.0) is BatchReason.FULL


# paced


def test_paced_rule_1_a_full_batch_leaves_at_once() -> None:
    policy = Paced(50, 0.15)
    policy.departed(a_load(num_waiting=50), now=1.0)

    assert policy.leaves_at(a_load(num_waiting=50, oldest_at=1.0, num_running=50)) == 1.0
    assert policy.reason(a_load(num_waiting=50, oldest_at=1.0), now=1.0) is BatchReason.FULL


def test_paced_rule_2_a_partial_batch_leaves_one_pace_after_the_last_departure() -> None:
    policy = Paced(50, 10.0)
    policy.departed(a_load(num_waiting=50), now=1.0)

    # 0.2 s over 4 workers: one departure every 50 ms.
    assert policy.leaves_at(a_load(num_waiting=5, oldest_at=1.0, num_running=50)) == pytest.approx(1.05)
    assert policy.reason(a_load(num_waiting=5, oldest_at=1.0), now=1.05) is BatchReason.PACE


def test_paced_lets_the_first_batch_ever_leave_at_once() -> None:
    assert Paced(50, 10.0).leaves_at(a_load(num_waiting=30, oldest_at=1.0, num_workers=1)) == 1.0


def test_paced_waits_for_nothing_when_the_pace_is_already_over() -> None:
    policy = Paced(50, 10.0)
    policy.departed(a_load(num_waiting=50), now=1.0)

    assert policy.leaves_at(a_load(num_waiting=5, oldest_at=7.0, num_running=50)) == 7.0


def test_paced_rule_3_a_request_with_a_worker_of_its_own_leaves_at_once() -> None:
    policy = Paced(50, 10.0)
    policy.departed(a_load(), now=1.0)

    assert policy.leaves_at(a_load(num_waiting=1, num_running=3, num_workers=4, oldest_at=1.01)) == 1.01
    # One more than there are workers: somebody must share, and so it waits for the pace.
    assert policy.leaves_at(a_load(num_waiting=2, num_running=3, num_workers=4, oldest_at=1.01)) == pytest.approx(1.05)


def departures_of_single_requests(policy: Paced, num: int, *, now: float) -> list[float]:
    """When each of `num` requests leaves that come at once to 16 workers, each for a worker of its own."""
    leaves_at = []
    for num_running in range(num):
        load = a_load(num_waiting=1, num_running=num_running, num_workers=16, oldest_at=now)
        leaves_at.append(policy.leaves_at(load))
        policy.departed(load, now=leaves_at[-1])
    return leaves_at


def test_paced_gets_ahead_of_the_pace_by_three_workers_a_fifth_of_a_pace_apart() -> None:
    """The pace is 12.5 ms. A cold start must not spend every worker on a single request before the load is known."""
    leaves_at = departures_of_single_requests(Paced(50, 10.0), 6, now=1.0)

    assert leaves_at == pytest.approx([1.0, 1.0025, 1.005, 1.0075, 1.0125, 1.025])


def test_paced_does_not_save_credit_up_while_idle() -> None:
    """An hour without traffic must not allow a burst of single requests that uses every worker up."""
    policy = Paced(50, 10.0)
    policy.departed(a_load(num_workers=16), now=1.0)

    leaves_at = departures_of_single_requests(policy, 5, now=3600.0)

    assert [at - 3600.0 for at in leaves_at] == pytest.approx([0.0, 0.0025, 0.005, 0.0075, 0.0125])


def test_paced_caps_its_wait_by_the_timeout() -> None:
    policy = Paced(50, 0.125)
    load = a_load(num_waiting=5, oldest_at=1.0, num_running=50, num_workers=1, service_time_s=8.0)
    policy.departed(load, now=1.0)

    assert policy.leaves_at(load) == 1.125
    assert policy.reason(load, now=1.125) is BatchReason.TIMEOUT


def test_paced_without_any_worker_counts_as_one() -> None:
    """The dispatcher asks only beside a free worker; a division by zero would still be a crash of the service."""
    policy = Paced(50, 10.0)
    policy.departed(a_load(num_workers=0), now=1.0)

    assert policy.leaves_at(a_load(num_waiting=5, num_workers=0, oldest_at=1.0)) == pytest.approx(1.2)


def test_paced_follows_the_number_of_workers_and_the_service_time() -> None:
    policy = Paced(50, 10.0)
    policy.departed(a_load(num_workers=16), now=1.0)

    assert policy.leaves_at(a_load(num_waiting=30, oldest_at=1.0, num_workers=8)) == pytest.approx(1.025)
    assert policy.leaves_at(a_load(num_waiting=30, oldest_at=1.0, num_workers=1)) == pytest.approx(1.2)
    assert policy.leaves_at(a_load(num_waiting=30, oldest_at=1.0, num_workers=8, service_time_s=0.4)) == pytest.approx(1.05)


_departures = st.lists(
    st.tuples(st.integers(0, 20), st.floats(0.0, 0.5), st.floats(0.001, 1.0), st.integers(1, 60)), max_size=12
)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(
    departures=_departures,
    num_waiting=st.integers(1, 60),
    num_running=st.integers(0, 100),
    num_workers=st.integers(0, 20),
    service_time_s=st.floats(0.001, 2.0),
    timeout_s=st.floats(0.0, 1.0),
    waits_since_s=st.floats(0.0, 1.0),
)
def test_paced_is_never_later_than_size_or_timeout_nor_than_one_pace(
    departures: list[tuple[int, float, float, int]],
    num_waiting: int,
    num_running: int,
    num_workers: int,
    service_time_s: float,
    timeout_s: float,
    waits_since_s: float,
) -> None:
    """The bounds of its docstring, whatever happened before: the load and the service time may have changed at will."""
    policy = Paced(50, timeout_s)
    now = 1.0
    for workers, pause_s, took_s, waiting in departures:
        now += pause_s
        policy.departed(a_load(num_workers=workers, service_time_s=took_s, num_waiting=waiting), now=now)
    load = a_load(
        num_waiting=num_waiting,
        oldest_at=now + waits_since_s,
        num_running=num_running,
        num_workers=num_workers,
        service_time_s=service_time_s,
    )

    leaves_at = policy.leaves_at(load)

    assert load.oldest_at <= leaves_at <= SizeOrTimeout(50, timeout_s).leaves_at(load)
    assert leaves_at <= max(load.oldest_at, now + service_time_s / max(num_workers, 1))
