"""The dispatcher when workers die or hang."""

import pytest

from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.effects import NOTHING, Refuse, RunBatch, StartWorker, StopWorker
from batcher.errors import WorkerFailed
from batcher.types import BatchReason, Outcome, WorkerFault
from tests.core.examples import (
    Crashed,
    a_dispatcher,
    a_request,
    answers,
    echo,
    ids,
    play,
    refusals,
    runs,
    submit_all,
    the_refusal,
    the_run,
)


def warm_up(dispatcher: Dispatcher, *, now: float) -> None:
    """Lets each worker complete a batch of 0.2 s, so that the next have the normal allowance. For `single` only."""
    sent = [
        the_run(dispatcher.submit(a_request(-1 - index, tenant=f"warm{index}", arrived_at=now), now=now))
        for index in range(dispatcher.num_ready_workers)
    ]
    for run in sent:
        dispatcher.complete(run.batch_id, 1, echo(run), now=now + 0.2)


# a worker that dies


def test_a_lost_workers_batch_goes_to_another_with_the_next_attempt() -> None:
    """SPEC S1.6. The lost one is stopped before anything else happens."""
    dispatcher = a_dispatcher(num_ready=2, policy="static", max_batch_size=2)
    first = the_run(submit_all(dispatcher, [a_request(1), a_request(2)], now=1.0))

    effects = dispatcher.worker_lost(first.worker_id, 1, WorkerFault.DIED, now=1.1)

    assert effects == [
        StopWorker(0, 1, WorkerFault.DIED),
        RunBatch(1, 1, first.batch_id, 2, first.requests, BatchReason.RETRY),
    ]
    assert answers(dispatcher.complete(first.batch_id, 2, echo(first), now=1.3)) == {1: "<in-1>", 2: "<in-2>"}
    dispatcher.check()


def test_a_dead_worker_is_not_chosen_until_it_is_back() -> None:
    """B82: a router went on choosing a dead worker out of a cache; 200 requests in the next second failed."""
    dispatcher = a_dispatcher(num_ready=2, policy="single", restart_backoff_s=0.5, max_waiting=1000)
    dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=1.0)

    chosen = set()
    for index in range(200):
        run = the_run(dispatcher.submit(a_request(index, arrived_at=1.0), now=1.0))
        chosen.add(run.worker_id)
        dispatcher.complete(run.batch_id, 1, echo(run), now=1.0)
    assert chosen == {1}

    assert dispatcher.next_deadline() == 1.5
    assert dispatcher.tick(now=1.5) == [StartWorker(0, 2)]
    dispatcher.worker_ready(0, 2, now=2.0)
    assert dispatcher.num_ready_workers == 2
    assert dispatcher.statistics().workers["free"] == 2


def test_a_worker_that_does_not_start_in_time_is_replaced() -> None:
    dispatcher = a_dispatcher(num_ready=0, start_timeout_s=60.0, restart_backoff_s=0.5)
    assert dispatcher.next_deadline() == 60.0

    assert dispatcher.tick(now=60.0) == [StopWorker(0, 1, WorkerFault.NOT_STARTED)]

    assert dispatcher.worker_ready(0, 1, now=60.1) == NOTHING
    assert dispatcher.tick(now=60.5) == [StartWorker(0, 2)]
    assert dispatcher.worker_ready(0, 1, now=61.0) == NOTHING
    assert dispatcher.num_ready_workers == 0
    dispatcher.worker_ready(0, 2, now=61.0)
    assert dispatcher.num_ready_workers == 1
    dispatcher.check()


def test_the_same_loss_reported_twice_counts_once() -> None:
    dispatcher = a_dispatcher(num_ready=2, policy="single")
    the_run(dispatcher.submit(a_request(1), now=1.0))
    dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=1.1)
    before = dispatcher.statistics()

    assert dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=1.2) == NOTHING

    after = dispatcher.statistics()
    assert after.counters.num_late == before.counters.num_late + 1
    assert (after.workers, after.num_inflight, after.retry_budget) == (before.workers, 1, before.retry_budget)
    dispatcher.check()


def test_batches_that_run_again_go_before_fresh_ones() -> None:
    dispatcher = a_dispatcher(policy="single", restart_backoff_s=0.0)
    dispatcher.submit(a_request(1, tier="free", arrived_at=1.0), now=1.0)
    dispatcher.submit(a_request(2, tier="paid", arrived_at=1.0), now=1.0)
    dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=1.1)
    dispatcher.tick(now=1.1)

    assert ids(the_run(dispatcher.worker_ready(0, 2, now=1.2))) == [1]


def test_what_waits_to_run_again_counts_as_ahead() -> None:
    dispatcher = a_dispatcher(policy="static", max_batch_size=3)
    submit_all(dispatcher, [a_request(index) for index in range(3)], now=1.0)
    assert dispatcher.num_ahead_of("paid", "new") == 0

    dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=1.1)

    assert dispatcher.num_ahead_of("paid", "new") == 3


def test_attempts_are_bounded_and_the_error_says_so() -> None:
    """B37: nested retries multiply. One owner, and no request is sent more than three times."""
    dispatcher = a_dispatcher(num_ready=3, policy="single", restart_backoff_s=0.0)
    run = the_run(dispatcher.submit(a_request(1), now=1.0))
    for attempt in (1, 2):
        assert run.attempt == attempt
        run = the_run(dispatcher.worker_lost(run.worker_id, run.incarnation, WorkerFault.DIED, now=1.0 + attempt))

    refusal = the_refusal(dispatcher.worker_lost(run.worker_id, run.incarnation, WorkerFault.DIED, now=5.0))

    assert refusal.outcome is Outcome.FAILED
    assert type(refusal.error) is WorkerFailed
    assert refusal.error.is_retryable
    assert "died" in refusal.error.message
    assert "attempt 3" in refusal.error.message
    assert dispatcher.statistics().num_live == 0


def test_a_backend_that_always_dies_costs_a_bounded_share() -> None:
    """B37: a retry budget stops storms. In the long run at most `retry_ratio` extra calls for each fresh one."""
    dispatcher = a_dispatcher(num_ready=4, policy="single", retry_reserve=10, retry_ratio=0.25, restart_backoff_s=0.0)

    def run_batch(inputs: list[str]) -> list[str]:
        raise Crashed

    effects = submit_all(dispatcher, [a_request(index, arrived_at=1.0) for index in range(60)], now=1.0)
    played = play(dispatcher, effects, run_batch, now=1.0)

    assert len(refusals(played.effects)) == 60
    assert 60 < len(played.calls) <= 60 + 10 + 60 * 0.25


def test_fresh_batches_earn_new_retries() -> None:
    dispatcher = a_dispatcher(num_ready=3, policy="single", retry_reserve=1, retry_ratio=0.5)
    first = the_run(dispatcher.submit(a_request(1), now=1.0))
    again = the_run(dispatcher.worker_lost(first.worker_id, 1, WorkerFault.DIED, now=1.1))
    assert dispatcher.statistics().retry_budget == 0.0
    dispatcher.complete(again.batch_id, 2, echo(again), now=1.3)

    for request_id in (2, 3):
        run = the_run(dispatcher.submit(a_request(request_id, arrived_at=2.0), now=2.0))
        dispatcher.complete(run.batch_id, 1, echo(run), now=2.2)

    assert dispatcher.statistics().retry_budget == 1.0


def test_without_any_budget_a_lost_batch_ends_at_once() -> None:
    dispatcher = a_dispatcher(num_ready=2, policy="single", retry_reserve=0)
    the_run(dispatcher.submit(a_request(1), now=1.0))

    effects = dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=1.1)

    assert [type(effect) for effect in effects] == [StopWorker, Refuse]
    assert type(the_refusal(effects).error) is WorkerFailed


def test_only_those_that_are_still_wanted_run_again() -> None:
    dispatcher = a_dispatcher(num_ready=2, policy="static", max_batch_size=3)
    submit_all(dispatcher, [a_request(1), a_request(2, deadline_at=1.05), a_request(3)], now=1.0)
    dispatcher.cancel(1)
    dispatcher.tick(now=1.05)

    again = the_run(dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=1.1))

    assert ids(again) == [3]
    assert answers(dispatcher.complete(again.batch_id, 2, ["x"], now=1.3)) == {3: "x"}


# a worker that hangs


def test_a_hung_worker_is_given_up_and_its_batch_runs_elsewhere() -> None:
    """1.3 times the expected 0.2 s would be 260 ms; less than 100 ms beyond the expectation is never called a hang."""
    dispatcher = a_dispatcher(num_ready=2, policy="single")
    warm_up(dispatcher, now=0.0)
    first = the_run(dispatcher.submit(a_request(1), now=1.0))
    assert dispatcher.next_deadline() == pytest.approx(1.3)
    assert dispatcher.tick(now=1.29) == []

    effects = dispatcher.tick(now=1.31)

    assert effects == [
        StopWorker(0, 1, WorkerFault.HUNG),
        RunBatch(1, 1, first.batch_id, 2, first.requests, BatchReason.RETRY),
    ]


def test_the_late_word_of_a_superseded_attempt_changes_nothing() -> None:
    """B47: attempt 1 stalls on A and goes to B; then A wakes up and reports. Its answer must reach nobody, and neither A's
    nor B's load may change.
    """
    dispatcher = a_dispatcher(num_ready=2, policy="single")
    warm_up(dispatcher, now=0.0)
    first = the_run(dispatcher.submit(a_request(1), now=1.0))
    dispatcher.tick(now=1.5)
    before = dispatcher.statistics()

    assert dispatcher.complete(first.batch_id, 1, ["late"], now=1.6) == NOTHING
    assert dispatcher.fail(first.batch_id, 1, now=1.6) == NOTHING
    assert dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=1.6) == NOTHING

    after = dispatcher.statistics()
    assert after.counters.num_late == 3
    assert (after.workers, after.num_inflight, after.num_running) == (before.workers, 1, 1)
    assert answers(dispatcher.complete(first.batch_id, 2, ["right"], now=1.7)) == {1: "right"}
    assert dispatcher.complete(first.batch_id, 2, ["again"], now=1.7) == NOTHING
    dispatcher.check()


def test_a_report_of_what_never_was_changes_nothing() -> None:
    dispatcher = a_dispatcher(policy="single")
    run = the_run(dispatcher.submit(a_request(1), now=1.0))

    assert dispatcher.complete(99, 1, ["x"], now=1.1) == NOTHING
    assert dispatcher.fail(run.batch_id, 2, now=1.1) == NOTHING
    assert dispatcher.worker_ready(0, 9, now=1.1) == NOTHING
    assert dispatcher.worker_lost(0, 9, WorkerFault.DIED, now=1.1) == NOTHING

    assert dispatcher.statistics().num_inflight == 1
    dispatcher.check()


def test_a_fresh_workers_first_batch_may_take_long() -> None:
    """B11: models warm up, and nothing has been measured of this worker."""
    dispatcher = a_dispatcher(policy="single", first_batch_timeout_s=30.0)
    run = the_run(dispatcher.submit(a_request(1), now=1.0))
    assert dispatcher.tick(now=30.9) == []

    assert answers(dispatcher.complete(run.batch_id, 1, ["x"], now=30.95)) == {1: "x"}


def test_after_a_slow_first_batch_all_others_are_served() -> None:
    """B11: a cold start whose first batch takes 5 s, and five clients one after another."""
    dispatcher = a_dispatcher()
    now = 1.0
    for request_id, took_s in enumerate([5.0, 0.2, 0.2, 0.2, 0.2]):
        effects = list(dispatcher.submit(a_request(request_id, arrived_at=now), now=now))
        while not runs(effects):
            due_at = dispatcher.next_deadline()
            assert due_at is not None
            now = due_at
            effects += dispatcher.tick(now=now)
        run = the_run(effects)
        now += took_s
        assert answers(dispatcher.complete(run.batch_id, 1, echo(run), now=now)) == {request_id: f"<in-{request_id}>"}

    assert dispatcher.capacity_rate > 0


def test_what_is_due_expires_before_a_loss_is_handled() -> None:
    """Else a request whose time is over would be parked, paid for out of the retry budget, or told that it failed."""
    dispatcher = a_dispatcher(num_ready=2, policy="single", max_attempts=1)
    dispatcher.submit(a_request(1, deadline_at=1.25), now=1.0)

    effects = dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=1.3)

    assert refusals(effects) == {1: Outcome.EXPIRED}
    assert [type(effect) for effect in effects] == [Refuse, StopWorker]
    assert (dispatcher.statistics().num_parked, dispatcher.statistics().retry_budget) == (0, 100.0)
    dispatcher.check()
