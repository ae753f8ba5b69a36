"""Whose fault it is when run_batch raises: the inputs', unless one worker alone does it again and again."""

import pytest

from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.dispatch.workers import Worker, Workers, WorkerState
from batcher.core.effects import RunBatch, StopWorker
from batcher.errors import WorkerFailed
from batcher.types import BatchReason, Outcome, WorkerFault
from tests.core.examples import a_dispatcher, a_request, answers, echo, refusals, some_workers, the_refusal, the_run


def run_on(workers: Workers, outcomes: list[bool]) -> Worker:
    """Runs a batch on the next free worker for each outcome; the worker of the last."""
    for has_succeeded in outcomes:
        worker = workers.assign(longest_s=0.2, now=1.0)
        if not has_succeeded:
            workers.count_raise(worker)
        workers.release(worker, has_succeeded=has_succeeded)
    return worker


def test_a_worker_on_which_five_batches_in_a_row_raise_is_to_blame_while_the_other_succeeds() -> None:
    workers = some_workers(num_workers=2, num_ready=2)

    for _ in range(4):
        run_on(workers, [False, True])
        assert not workers.is_to_blame(workers[0])
    run_on(workers, [False])

    assert workers.is_to_blame(workers[0])
    assert not workers.is_to_blame(workers[1])


def test_one_success_shows_that_it_was_the_inputs() -> None:
    workers = some_workers(num_workers=2, num_ready=2)
    run_on(workers, [False, True] * 4 + [True, True])

    run_on(workers, [False, True] * 4)

    assert not workers.is_to_blame(workers[0])


@pytest.mark.parametrize("num_workers", [1, 3])
def test_where_everything_raises_everywhere_nobody_is_to_blame(num_workers: int) -> None:
    """Then the inputs are bad, or the whole backend: to stop workers would not help."""
    workers = some_workers(num_workers=num_workers, num_ready=num_workers)

    run_on(workers, [False] * 60)

    assert not any(workers.is_to_blame(worker) for worker in workers)


def test_where_as_much_raises_elsewhere_as_succeeds_the_inputs_are_to_blame() -> None:
    workers = some_workers(num_workers=3, num_ready=3)

    run_on(workers, [False, True, False] * 20)

    assert not any(workers.is_to_blame(worker) for worker in workers)


def test_the_worker_that_is_judged_is_still_busy() -> None:
    """It is given up with its batch, or released: the count comes before."""
    workers = some_workers(num_workers=2, num_ready=2)
    run_on(workers, [False, True] * 4)
    worker = workers.assign(longest_s=0.2, now=1.0)

    workers.count_raise(worker)

    assert (worker.state, workers.is_to_blame(worker)) == (WorkerState.BUSY, True)
    workers.lose(worker, now=1.0)
    workers.check()


def test_a_fresh_incarnation_is_not_blamed_for_the_last() -> None:
    workers = some_workers(num_workers=2, num_ready=2)
    run_on(workers, [False, True] * 5)
    assert workers.is_to_blame(workers[0])
    workers.lose(workers[0], now=2.0)
    workers.restart(workers[0], now=3.0)

    workers.ready(workers[0])

    assert not workers.is_to_blame(workers[0])


def nearly_blamed(**settings: int) -> tuple[Dispatcher, RunBatch]:
    """Two workers; four batches in a row raised on the first and four succeeded on the second. Now both are busy again, the
    second has just succeeded once more, and the first runs what is returned.
    """
    dispatcher = a_dispatcher(num_ready=2, policy="single", **settings)
    for turn in range(5):
        bad = the_run(dispatcher.submit(a_request(2 * turn, arrived_at=1.0), now=1.0))
        good = the_run(dispatcher.submit(a_request(2 * turn + 1, arrived_at=1.0), now=1.0))
        assert (bad.worker_id, good.worker_id) == (0, 1)
        if turn == 4:
            break
        assert refusals(dispatcher.fail(bad.batch_id, 1, now=1.1)) == {2 * turn: Outcome.FAILED}
        dispatcher.complete(good.batch_id, 1, echo(good), now=1.2)
    dispatcher.complete(good.batch_id, 1, echo(good), now=1.2)
    return dispatcher, bad


def test_what_raises_on_a_worker_that_is_to_blame_counts_as_lost_and_runs_elsewhere() -> None:
    """The input is innocent until a sound worker says so."""
    dispatcher, run = nearly_blamed()

    effects = dispatcher.fail(run.batch_id, 1, now=1.3)

    assert effects == [
        StopWorker(0, 1, WorkerFault.RAISING),
        RunBatch(1, 1, run.batch_id, 2, run.requests, BatchReason.RETRY),
    ]
    assert answers(dispatcher.complete(run.batch_id, 2, echo(run), now=1.5)) == {8: "<in-8>"}
    assert dispatcher.statistics().counters.faults[WorkerFault.RAISING] == 1
    assert dispatcher.statistics().counters.num_raised == 5
    dispatcher.check()


def test_who_has_no_attempt_left_is_not_told_that_the_input_was_bad() -> None:
    dispatcher, run = nearly_blamed(max_attempts=1)

    refusal = the_refusal(dispatcher.fail(run.batch_id, 1, now=1.3))

    assert type(refusal.error) is WorkerFailed
    assert refusal.error.is_retryable
    assert "raising" in refusal.error.message


def test_what_is_due_expires_before_the_blame_is_laid() -> None:
    dispatcher, run = nearly_blamed(max_attempts=1)

    effects = dispatcher.fail(run.batch_id, 1, now=1000.0)

    assert refusals(effects) == {8: Outcome.EXPIRED}
    assert effects[1:] == [StopWorker(0, 1, WorkerFault.RAISING)]
