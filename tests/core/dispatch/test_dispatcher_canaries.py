"""Whoever failed is tried with one request, whatever waits: fresh ones, or a batch that must run again (B90)."""

from typing import Any

import pytest

from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.effects import Effects, StartWorker
from batcher.types import BatchReason, Outcome, WorkerFault
from tests.core.examples import a_dispatcher, a_request, answers, echo, ids, refusals, runs, submit_all, the_run


def bring_back(dispatcher: Dispatcher, worker_id: int, incarnation: int, *, now: float) -> Effects:
    """Its rest ends, and it is ready at once."""
    assert StartWorker(worker_id, incarnation) in dispatcher.tick(now=now)
    return dispatcher.worker_ready(worker_id, incarnation, now=now)


def on_probation(**settings: Any) -> Dispatcher:
    """One worker, that died idle once and is back at 1.0."""
    dispatcher = a_dispatcher(policy="static", max_batch_size=4, restart_backoff_s=0.5, **settings)
    dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=0.5)
    assert runs(bring_back(dispatcher, 0, 2, now=1.0)) == []
    return dispatcher


@pytest.mark.parametrize("fault", [WorkerFault.DIED, WorkerFault.NOT_STARTED])
def test_one_failure_of_any_kind_is_followed_by_a_canary_and_its_success_by_full_batches(fault: WorkerFault) -> None:
    dispatcher = a_dispatcher(policy="static", max_batch_size=4, restart_backoff_s=0.5)
    dispatcher.worker_lost(0, 1, fault, now=0.5)
    bring_back(dispatcher, 0, 2, now=1.0)

    canary = the_run(submit_all(dispatcher, [a_request(index) for index in range(5)], now=1.0))
    assert ids(canary) == [0]
    after = dispatcher.complete(canary.batch_id, 1, echo(canary), now=1.2)

    assert answers(after) == {0: "<in-0>"}
    assert ids(the_run(after)) == [1, 2, 3, 4]
    assert dispatcher.statistics().num_broken_workers == 0


@pytest.mark.parametrize("outputs", [["a"], None], ids=["too few", "none"])
def test_bad_outputs_put_a_worker_on_probation(outputs: object) -> None:
    dispatcher = a_dispatcher(policy="static", max_batch_size=2, restart_backoff_s=0.5, max_attempts=1)
    run = the_run(submit_all(dispatcher, [a_request(1), a_request(2)], now=1.0))
    dispatcher.complete(run.batch_id, 1, outputs, now=1.2)
    bring_back(dispatcher, 0, 2, now=1.7)

    assert ids(the_run(submit_all(dispatcher, [a_request(3), a_request(4)], now=1.8))) == [3]


def test_a_canary_that_raises_clears_nobody() -> None:
    dispatcher = on_probation()
    canary = the_run(submit_all(dispatcher, [a_request(index) for index in range(5)], now=1.0))

    effects = dispatcher.fail(canary.batch_id, 1, now=1.2)

    assert refusals(effects) == {0: Outcome.FAILED}
    assert ids(the_run(effects)) == [1]


def test_a_canary_of_a_batch_that_must_run_again_leaves_the_rest_as_a_batch_of_its_own_for_one_call_more() -> None:
    dispatcher = a_dispatcher(policy="static", max_batch_size=4, restart_backoff_s=0.5)
    lost = the_run(submit_all(dispatcher, [a_request(index) for index in range(4)], now=1.0))
    dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=1.1)
    assert dispatcher.statistics().retry_budget == 99.0

    canary = the_run(bring_back(dispatcher, 0, 2, now=1.6))

    assert (ids(canary), canary.batch_id, canary.attempt) == ([0], lost.batch_id, 2)
    assert (dispatcher.statistics().num_parked, dispatcher.statistics().retry_budget) == (1, 98.0)
    dispatcher.check()
    rest = the_run(dispatcher.complete(canary.batch_id, 2, echo(canary), now=1.8))
    assert (ids(rest), rest.attempt, rest.reason) == ([1, 2, 3], 2, BatchReason.RETRY)
    assert rest.batch_id != lost.batch_id
    assert answers(dispatcher.complete(rest.batch_id, 2, echo(rest), now=2.0)) == {i: f"<in-{i}>" for i in (1, 2, 3)}
    assert dispatcher.statistics().retry_budget == 98.0


def test_without_budget_for_a_canary_the_batch_goes_whole() -> None:
    """To wait for budget could mean to wait for ever: only fresh batches earn it, and retries go first."""
    dispatcher = a_dispatcher(policy="static", max_batch_size=4, restart_backoff_s=0.5, retry_reserve=1)
    submit_all(dispatcher, [a_request(index) for index in range(4)], now=1.0)
    dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=1.1)

    assert ids(the_run(bring_back(dispatcher, 0, 2, now=1.6))) == [0, 1, 2, 3]

    assert dispatcher.statistics().retry_budget == 0.0


def test_a_canary_earns_no_retries() -> None:
    """A worker that fails at every canary would pay for its own retries with them."""
    dispatcher = on_probation(retry_reserve=1, retry_ratio=0.5)
    canary = the_run(submit_all(dispatcher, [a_request(index) for index in range(4)], now=1.0))
    assert ids(canary) == [0]
    dispatcher.worker_lost(0, 2, WorkerFault.DIED, now=1.1)
    assert dispatcher.statistics().retry_budget == 0.0
    canary = the_run(bring_back(dispatcher, 0, 3, now=2.1))
    dispatcher.complete(canary.batch_id, 2, echo(canary), now=2.3)
    assert dispatcher.statistics().retry_budget == 0.0

    assert ids(the_run(dispatcher.submit(a_request(4), now=2.4))) == [1, 2, 3, 4]

    assert dispatcher.statistics().retry_budget == 0.5


@pytest.mark.parametrize(("has_failed", "leaves_at"), [(True, 1.001), (False, 1.02)])
def test_a_canary_leaves_beside_the_pace(has_failed: bool, leaves_at: float) -> None:
    """The next request leaves as if there had been none; after any other departure it waits for a fifth of a pace."""
    dispatcher = a_dispatcher(num_ready=2, policy="paced", service_time_s=0.2, restart_backoff_s=0.5)
    if has_failed:
        dispatcher.worker_lost(1, 1, WorkerFault.DIED, now=0.0)
        dispatcher.tick(now=0.5)
        dispatcher.worker_ready(1, 2, now=0.5)
        first = the_run(dispatcher.submit(a_request(1, arrived_at=0.5), now=0.5))
        dispatcher.complete(first.batch_id, 1, echo(first), now=0.7)
    assert runs(dispatcher.submit(a_request(2, arrived_at=1.0), now=1.0))

    effects = list(dispatcher.submit(a_request(3, arrived_at=1.001), now=1.001))

    if leaves_at == 1.001:
        assert ids(the_run(effects)) == [3]
    else:
        assert effects == []
        assert dispatcher.next_deadline() == pytest.approx(leaves_at)


def test_while_one_is_tried_the_sound_ones_take_whole_batches() -> None:
    dispatcher = a_dispatcher(num_ready=2, policy="static", max_batch_size=4, restart_backoff_s=0.5)
    dispatcher.worker_lost(0, 1, WorkerFault.DIED, now=0.5)
    bring_back(dispatcher, 0, 2, now=1.0)

    effects = submit_all(dispatcher, [a_request(index) for index in range(9)], now=1.0)

    assert [(run.worker_id, ids(run)) for run in runs(effects)] == [(1, [0, 1, 2, 3]), (0, [4])]


def test_hung_workers_are_out_and_a_canary_brings_them_back() -> None:
    """B90: a frozen backend stayed in rotation for an hour. Its first hang costs a batch, each further one a single request;
    after five in a row the breaker opens for 30 s. Then one more request tries it, and its success brings the worker back.
    """
    dispatcher = a_dispatcher(
        policy="static", max_batch_size=2, first_batch_timeout_s=1.0, restart_backoff_s=0.125, max_attempts=1
    )
    now = 1.0
    for incarnation in range(1, 6):
        run = the_run(submit_all(dispatcher, [a_request(10 * incarnation), a_request(10 * incarnation + 1)], now=now))
        assert len(run.requests) == (2 if incarnation == 1 else 1)
        assert list(refusals(dispatcher.tick(now=now + 1.0))) == ids(run)
        for request in dispatcher.live_requests:
            dispatcher.cancel(request.id)
        due_at = dispatcher.next_deadline()
        assert due_at is not None
        assert due_at - (now + 1.0) == (30.0 if incarnation == 5 else 0.125 * 2 ** (incarnation - 1))
        assert dispatcher.tick(now=due_at) == [StartWorker(0, incarnation + 1)]
        dispatcher.worker_ready(0, incarnation + 1, now=due_at)
        now = due_at
    assert dispatcher.statistics().num_broken_workers == 1

    canary = the_run(submit_all(dispatcher, [a_request(100), a_request(101)], now=now))
    assert ids(canary) == [100]
    dispatcher.complete(canary.batch_id, 1, echo(canary), now=now + 0.2)

    assert dispatcher.statistics().num_broken_workers == 0
    assert ids(the_run(dispatcher.submit(a_request(102), now=now + 0.2))) == [101, 102]
