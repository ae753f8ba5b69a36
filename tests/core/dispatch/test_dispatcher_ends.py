"""The dispatcher ends what is due, called off or has no room, and drains."""

from collections.abc import Callable

import pytest

from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.errors import Expired, Overloaded
from batcher.types import BatchReason, Outcome, Request, WorkerFault
from tests.core.examples import (
    a_dispatcher,
    a_request,
    echo,
    hold_all_workers,
    ids,
    refusals,
    runs,
    submit_all,
    the_refusal,
    the_run,
)


def lose_worker(dispatcher: Dispatcher, *, now: float) -> None:
    dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=now)


# deadlines


def test_a_request_expires_on_time_while_every_worker_is_busy_and_never_runs_later() -> None:
    """B08: a worker is blocked for 10 s; a request with 300 ms joins the queue. Its deadline was only looked at when the
    worker came free.
    """
    dispatcher = a_dispatcher(policy="single")
    (held,) = hold_all_workers(dispatcher, now=1.0)
    dispatcher.submit(a_request(1, arrived_at=1.0, deadline_at=1.25), now=1.0)

    assert dispatcher.next_deadline() == 1.25
    assert dispatcher.tick(now=1.2499) == []
    refusal = the_refusal(dispatcher.tick(now=1.25))

    assert refusal.outcome is Outcome.EXPIRED
    assert type(refusal.error) is Expired
    assert refusal.error.message == "no answer within the request's 0.25 s"
    assert runs(dispatcher.complete(held.batch_id, 1, echo(held), now=11.0)) == []
    assert dispatcher.statistics().num_live == 0
    dispatcher.check()


def test_a_running_request_expires_on_time_and_its_late_output_is_dropped() -> None:
    dispatcher = a_dispatcher(policy="single")
    run = the_run(dispatcher.submit(a_request(1, deadline_at=1.25), now=1.0))

    assert refusals(dispatcher.tick(now=1.25)) == {1: Outcome.EXPIRED}

    assert dispatcher.complete(run.batch_id, 1, ["late"], now=1.3) == []
    assert dispatcher.statistics().workers["free"] == 1


def test_a_request_that_waits_to_run_again_expires_on_time() -> None:
    dispatcher = a_dispatcher(policy="single")
    dispatcher.submit(a_request(1, deadline_at=1.25), now=1.0)
    lose_worker(dispatcher, now=1.1)
    assert dispatcher.statistics().num_parked == 1

    assert refusals(dispatcher.tick(now=1.25)) == {1: Outcome.EXPIRED}
    assert list(dispatcher.worker_ready(0, 2, now=1.3)) == []

    assert dispatcher.statistics().num_parked == 0
    assert dispatcher.statistics().num_inflight == 0
    dispatcher.check()


@pytest.mark.parametrize("deadline_at", [1.0, 0.5])
def test_a_deadline_that_has_passed_already_is_the_callers_fault(deadline_at: float) -> None:
    dispatcher = a_dispatcher()
    before = dispatcher.statistics()

    with pytest.raises(ValueError, match="deadline in the past"):
        dispatcher.submit(a_request(1, deadline_at=deadline_at), now=1.0)

    assert dispatcher.statistics() == before
    dispatcher.check()


@pytest.mark.parametrize(
    "bad", [lambda: a_request(1), lambda: a_request(2, tier="gold")], ids=["an id that is live", "an unknown tier"]
)
def test_a_request_that_cannot_be_is_the_callers_fault_and_changes_nothing(bad: Callable[[], Request]) -> None:
    dispatcher = a_dispatcher(policy="static")
    dispatcher.submit(a_request(1), now=1.0)
    before = dispatcher.statistics()

    with pytest.raises(ValueError, match=r"live id|unknown tier"):
        dispatcher.submit(bad(), now=1.0)

    assert dispatcher.statistics() == before
    dispatcher.check()


def test_when_many_expire_at_once_the_earliest_is_told_first() -> None:
    dispatcher = a_dispatcher(policy="static")
    for request_id, deadline_at in [(1, 3.0), (2, 1.5), (3, 2.0), (4, 9.0)]:
        dispatcher.submit(a_request(request_id, deadline_at=deadline_at), now=1.0)

    assert list(refusals(dispatcher.tick(now=5.0))) == [2, 3, 1]
    assert dispatcher.next_deadline() == 9.0


# cancellation


def test_one_that_is_cancelled_while_it_waits_never_runs() -> None:
    """B22 in batch mode: the client left while its request was still in our queue."""
    dispatcher = a_dispatcher(policy="single")
    (held,) = hold_all_workers(dispatcher, now=1.0)
    dispatcher.submit(a_request(1), now=1.0)

    assert dispatcher.cancel(1)

    assert dispatcher.complete(held.batch_id, 1, echo(held), now=1.2)[1:] == []
    assert dispatcher.statistics().num_live == 0
    assert dispatcher.next_deadline() is None


def test_to_cancel_what_has_ended_is_no_error() -> None:
    dispatcher = a_dispatcher(policy="single")
    run = the_run(dispatcher.submit(a_request(1), now=1.0))
    dispatcher.complete(run.batch_id, 1, ["x"], now=1.2)

    assert not dispatcher.cancel(1)
    assert not dispatcher.cancel(77)
    assert dispatcher.statistics().counters.num_cancelled == 0


def test_cancelling_around_the_hand_off_leaks_no_slot() -> None:
    """B20: a client that left just before or after the start of its work kept the slot busy for ever; capacity eroded."""
    dispatcher = a_dispatcher(num_ready=2, policy="size-or-timeout", batch_timeout_s=0.1, restart_backoff_s=0.0)
    now = 1.0
    for request_id in range(100):
        dispatcher.submit(a_request(request_id, arrived_at=now), now=now)
        if request_id % 2:
            assert dispatcher.cancel(request_id)
            assert runs(dispatcher.tick(now=now + 0.1)) == []
        else:
            run = the_run(dispatcher.tick(now=now + 0.1))
            assert dispatcher.cancel(request_id)
            assert dispatcher.complete(run.batch_id, 1, echo(run), now=now + 0.3) == []
        now += 1.0

    statistics = dispatcher.statistics()
    assert (statistics.num_live, statistics.num_inflight, statistics.num_running) == (0, 0, 0)
    assert statistics.workers == {"starting": 0, "free": 2, "busy": 0, "resting": 0}
    assert dispatcher.next_deadline() is None
    dispatcher.check()


def test_a_batch_all_of_whose_members_are_gone_does_not_run_again() -> None:
    dispatcher = a_dispatcher(num_ready=2, policy="static", max_batch_size=2)
    the_run(submit_all(dispatcher, [a_request(1), a_request(2)], now=1.0))
    dispatcher.cancel(1)
    dispatcher.cancel(2)

    lose_worker(dispatcher, now=1.1)

    statistics = dispatcher.statistics()
    assert (statistics.num_live, statistics.num_parked, statistics.num_inflight) == (0, 0, 0)
    assert statistics.retry_budget == 100.0


def test_a_parked_batch_all_of_whose_members_left_vanishes_with_the_next_free_worker() -> None:
    dispatcher = a_dispatcher(policy="static", max_batch_size=2)
    the_run(submit_all(dispatcher, [a_request(1), a_request(2)], now=1.0))
    lose_worker(dispatcher, now=1.1)
    dispatcher.cancel(1)
    dispatcher.cancel(2)
    dispatcher.tick(now=1.3)

    assert list(dispatcher.worker_ready(0, 2, now=1.4)) == []

    assert dispatcher.statistics().num_parked == 0
    assert dispatcher.next_deadline() is None


# room


def test_when_the_queue_is_full_a_request_is_refused_and_not_accepted() -> None:
    """B39."""
    dispatcher = a_dispatcher(policy="size-or-timeout", max_waiting=2, tiers=("paid",))
    dispatcher.submit(a_request(1, arrived_at=1.0), now=1.0)

    refusal = the_refusal(dispatcher.submit(a_request(2, arrived_at=1.0), now=1.0))

    assert refusal.outcome is Outcome.REJECTED_CAPACITY
    assert type(refusal.error) is Overloaded
    assert refusal.error.retry_after_s == 1
    assert dispatcher.statistics().num_live == 1
    assert not dispatcher.cancel(2)
    assert dispatcher.statistics().counters.num_no_room == 1


@pytest.mark.parametrize(("service_time_s", "seconds"), [(0.01, 1), (0.25, 2), (2.0, 10), (20.0, 60)])
def test_who_finds_the_queue_full_is_told_when_those_that_wait_will_have_left(service_time_s: float, seconds: int) -> None:
    dispatcher = a_dispatcher(policy="single", max_waiting=10, service_time_s=service_time_s)
    hold_all_workers(dispatcher, now=1.0)
    submit_all(dispatcher, [a_request(index) for index in range(5)], now=1.0)

    refusal = the_refusal(dispatcher.submit(a_request(5), now=1.0))

    assert refusal.outcome is Outcome.REJECTED_CAPACITY
    assert refusal.error.message == "the queue is full"
    assert refusal.error.retry_after_s == seconds


def test_who_gives_way_is_told_when_to_come_back_and_without_any_worker_soon() -> None:
    dispatcher = a_dispatcher(num_ready=0, policy="single", max_waiting=2)
    for index, tenant in enumerate(["ann", "bob"]):
        dispatcher.submit(a_request(index, tier="free", tenant=tenant), now=1.0)

    refusal = the_refusal(dispatcher.submit(a_request(3), now=1.1))

    assert (refusal.request.id, refusal.error.retry_after_s) == (1, 2)


def test_a_displaced_request_ends_there_and_then_and_has_no_deadline_left() -> None:
    dispatcher = a_dispatcher(policy="single", max_waiting=2)
    (held,) = hold_all_workers(dispatcher, now=1.0)
    dispatcher.submit(a_request(1, tier="free", tenant="ann", deadline_at=5.0), now=1.0)
    dispatcher.submit(a_request(2, tier="free", tenant="bob", deadline_at=6.0), now=1.0)

    assert refusals(dispatcher.submit(a_request(3), now=1.1)) == {2: Outcome.REJECTED_CAPACITY}

    assert dispatcher.statistics().num_live == 3
    assert dispatcher.statistics().counters.num_displaced == 1
    assert refusals(dispatcher.tick(now=7.0)) == {1: Outcome.EXPIRED}
    assert ids(the_run(dispatcher.complete(held.batch_id, 1, echo(held), now=7.0))) == [3]
    dispatcher.check()


# drain


@pytest.mark.parametrize("policy", ["static", "size-or-timeout", "paced"])
def test_draining_sends_partial_batches_at_once(policy: str) -> None:
    dispatcher = a_dispatcher(num_ready=0, num_workers=2, policy=policy, batch_timeout_s=60.0)
    submit_all(dispatcher, [a_request(index, arrived_at=1.0) for index in range(60)], now=1.0)
    assert dispatcher.drain(now=1.1) == []

    effects = [effect for worker_id in range(2) for effect in dispatcher.worker_ready(worker_id, 1, now=1.2)]

    assert [(len(run.requests), run.reason) for run in runs(effects)] == [(50, BatchReason.DRAIN), (10, BatchReason.DRAIN)]


def test_a_drain_sends_what_waits_beside_a_free_worker() -> None:
    dispatcher = a_dispatcher(policy="static")
    dispatcher.submit(a_request(1), now=1.0)

    run = the_run(dispatcher.drain(now=1.1))

    assert ids(run) == [1]
    assert dispatcher.drain(now=1.1) == []
    dispatcher.complete(run.batch_id, 1, echo(run), now=1.3)
    assert dispatcher.next_deadline() is None


def test_what_is_accepted_while_draining_leaves_at_once() -> None:
    dispatcher = a_dispatcher(policy="static")
    dispatcher.drain(now=1.0)

    assert ids(the_run(dispatcher.submit(a_request(1, arrived_at=1.0), now=1.0))) == [1]
