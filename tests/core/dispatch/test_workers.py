"""A worker's life: the table of states, the backoff, the breaker."""

from collections.abc import Callable
from math import inf

import pytest

from batcher.core.dispatch.workers import Worker, Workers, WorkerState
from tests.core.examples import some_workers


def in_state(state: WorkerState) -> tuple[Workers, Worker]:
    """One worker, brought into the state by legal events alone."""
    workers = some_workers(num_workers=1)
    worker = workers[0]
    if state is WorkerState.RESTING:
        workers.lose(worker, now=1.0)
    elif state is not WorkerState.STARTING:
        workers.ready(worker)
        if state is WorkerState.BUSY:
            workers.assign(longest_s=0.2, now=1.0)
    assert worker.state is state
    return workers, worker


EVENTS: dict[str, Callable[[Workers, Worker], object]] = {
    "ready": lambda workers, worker: workers.ready(worker),
    "release": lambda workers, worker: workers.release(worker, has_succeeded=True),
    "lose": lambda workers, worker: workers.lose(worker, now=1.0),
    "restart": lambda workers, worker: workers.restart(worker, now=1.0),
}
TABLE = {
    (WorkerState.STARTING, "ready"): WorkerState.FREE,
    (WorkerState.STARTING, "lose"): WorkerState.RESTING,
    (WorkerState.FREE, "lose"): WorkerState.RESTING,
    (WorkerState.BUSY, "release"): WorkerState.FREE,
    (WorkerState.BUSY, "lose"): WorkerState.RESTING,
    (WorkerState.RESTING, "restart"): WorkerState.STARTING,
}
ILLEGAL = [(state, event) for state in WorkerState for event in EVENTS if (state, event) not in TABLE]


@pytest.mark.parametrize(("state", "event"), list(TABLE))
def test_a_legal_event_moves_the_worker(state: WorkerState, event: str) -> None:
    workers, worker = in_state(state)

    EVENTS[event](workers, worker)

    assert worker.state is TABLE[state, event]
    workers.check()


@pytest.mark.parametrize(("state", "event"), ILLEGAL)
def test_an_illegal_event_raises_and_leaves_the_state(state: WorkerState, event: str) -> None:
    workers, worker = in_state(state)
    before = (repr(worker), workers.num_ready, workers.num_free, workers.next_deadline())

    with pytest.raises(AssertionError, match="cannot take"):
        EVENTS[event](workers, worker)

    assert (repr(worker), workers.num_ready, workers.num_free, workers.next_deadline()) == before
    workers.check()


def test_nobody_is_assigned_when_nobody_is_free() -> None:
    workers = some_workers(num_workers=1)
    assert not workers.num_free

    with pytest.raises(IndexError):
        workers.assign(longest_s=0.2, now=1.0)

    workers.check()


def test_workers_are_used_in_turn_the_one_longest_free_first() -> None:
    workers = some_workers(num_workers=3, num_ready=3)
    first = workers.next_free()
    assert workers.assign(longest_s=0.2, now=1.0) is first is workers[0]
    assert workers.assign(longest_s=0.2, now=1.0) is workers[1]

    workers.release(workers[0], has_succeeded=True)

    assert workers.next_free() is workers[2]
    assert workers.assign(longest_s=0.2, now=1.0) is workers[2]
    assert workers.assign(longest_s=0.2, now=1.0) is workers[0]
    assert not workers.num_free


def test_ready_workers_are_those_that_are_free_or_busy() -> None:
    workers = some_workers(num_workers=4, num_ready=3)
    workers.assign(longest_s=0.2, now=1.0)
    workers.lose(workers[2], now=1.0)

    assert workers.num_ready == 2
    assert [workers.count(state) for state in WorkerState] == [1, 1, 1, 1]
    workers.check()


def test_only_the_current_incarnation_is_found_and_only_while_it_is_not_given_up() -> None:
    workers = some_workers(num_workers=2, num_ready=2)
    worker = workers[1]
    assert workers.find(1, 1) is worker
    assert workers.find(1, 2) is None

    workers.lose(worker, now=1.0)
    assert workers.find(1, 1) is None
    workers.restart(worker, now=2.0)

    assert workers.find(1, 1) is None
    assert workers.find(1, 2) is worker


def test_each_state_is_waited_for_until_its_own_instant() -> None:
    workers = some_workers(num_workers=1, start_timeout_s=60.0, first_batch_timeout_s=20.0, restart_backoff_s=0.5)
    worker = workers[0]
    assert workers.next_deadline() == 60.0
    workers.ready(worker)
    assert workers.next_deadline() == inf
    workers.assign(longest_s=0.2, now=1.0)
    assert workers.next_deadline() == 21.0
    workers.lose(worker, now=2.0)
    assert workers.next_deadline() == 2.5

    assert workers.pop_due(now=2.4) == []
    assert workers.pop_due(now=2.5) == [worker]
    workers.restart(worker, now=2.5)

    assert workers.next_deadline() == 62.5


@pytest.mark.parametrize(("longest_s", "allowance_s"), [(0.2, 0.3), (1.0, 1.5), (0.01, 0.11)])
def test_a_batch_may_take_a_factor_of_the_longest_and_never_less_than_100_ms_beyond_it(
    longest_s: float, allowance_s: float
) -> None:
    workers = some_workers(num_workers=1, num_ready=1, hang_factor=1.5)
    workers.assign(longest_s=0.2, now=1.0)
    workers.release(workers[0], has_succeeded=True)

    workers.assign(longest_s=longest_s, now=10.0)

    assert workers.next_deadline() == pytest.approx(10.0 + allowance_s)


def lose_times(workers: Workers, num: int, *, now: float = 0.0) -> list[float]:
    """Loses worker 0 again and again; its rests."""
    rests = []
    for _ in range(num):
        workers.lose(workers[0], now=now)
        rests.append(workers.next_deadline() - now)
        assert workers.pop_due(now=workers.next_deadline()) == [workers[0]]
        workers.restart(workers[0], now=now)
    return rests


def test_the_rest_doubles_for_each_failure_in_a_row_until_the_breaker_opens() -> None:
    workers = some_workers(num_workers=1, restart_backoff_s=0.125, breaker_threshold=5, breaker_rest_s=30.0)

    assert lose_times(workers, 7) == [0.125, 0.25, 0.5, 1.0, 30.0, 30.0, 30.0]
    assert workers.is_on_probation(workers[0])
    assert workers.num_broken() == 1


def test_the_rest_before_the_breaker_is_never_longer_than_the_breakers() -> None:
    workers = some_workers(num_workers=1, restart_backoff_s=8.0, breaker_threshold=5, breaker_rest_s=10.0)

    assert lose_times(workers, 4) == [8.0, 10.0, 10.0, 10.0]


def test_a_thousand_failures_do_not_overflow_the_backoff() -> None:
    workers = some_workers(num_workers=1, restart_backoff_s=60.0, breaker_threshold=1000, breaker_rest_s=3600.0)

    rests = lose_times(workers, 1001)

    assert max(rests) == 3600.0


def test_a_success_closes_the_breaker_and_forgives_every_failure() -> None:
    workers = some_workers(num_workers=1, breaker_threshold=2, restart_backoff_s=0.125)
    worker = workers[0]
    lose_times(workers, 2)
    workers.ready(worker)
    assert workers.is_on_probation(worker)

    workers.assign(longest_s=0.2, now=1.0)
    workers.release(worker, has_succeeded=True)

    assert not workers.is_on_probation(worker)
    assert worker.has_completed
    assert lose_times(workers, 1) == [0.125]


def test_one_failure_is_enough_for_probation_and_too_little_for_the_breaker() -> None:
    workers = some_workers(num_workers=1, breaker_threshold=2)
    worker = workers[0]
    assert not workers.is_on_probation(worker)

    lose_times(workers, 1)
    assert (workers.is_on_probation(worker), workers.is_broken(worker), workers.num_broken()) == (True, False, 0)
    lose_times(workers, 1)

    assert (workers.is_on_probation(worker), workers.is_broken(worker), workers.num_broken()) == (True, True, 1)


def test_a_batch_that_raised_neither_blames_nor_clears_the_worker() -> None:
    workers = some_workers(num_workers=1, breaker_threshold=2)
    worker = workers[0]
    lose_times(workers, 2)
    workers.ready(worker)
    workers.assign(longest_s=0.2, now=1.0)
    workers.count_raise(worker)

    workers.release(worker, has_succeeded=False)

    assert worker.num_failures == 2
    assert workers.is_on_probation(worker)
    assert worker.state is WorkerState.FREE


def test_a_fresh_incarnation_has_completed_nothing() -> None:
    workers = some_workers(num_workers=1, num_ready=1)
    worker = workers[0]
    workers.assign(longest_s=0.2, now=1.0)
    workers.release(worker, has_succeeded=True)
    workers.lose(worker, now=1.0)
    workers.restart(worker, now=2.0)

    workers.ready(worker)

    assert not worker.has_completed
    assert repr(worker) == "<Worker 0.2 FREE failures=1>"


def test_a_stall_of_the_shell_does_not_count_against_workers_that_it_waits_for() -> None:
    """Their answers may lie unread. A rest goes on meanwhile, and a free worker is waited for by nobody."""
    workers = some_workers(num_workers=4, num_ready=3, start_timeout_s=60.0, first_batch_timeout_s=20.0, restart_backoff_s=0.5)
    busy = workers.assign(longest_s=0.2, now=1.0)
    workers.lose(workers[1], now=1.0)

    workers.excuse(5.0)

    assert workers.pop_due(now=24.0) == [workers[1]]
    assert workers.pop_due(now=26.0) == [busy]
    assert workers.pop_due(now=64.0) == []
    assert workers.pop_due(now=65.0) == [workers[3]]
    assert workers.pop_due(now=1e9) == []
