"""The search for a bad input beside fresh traffic: it must not take the fleet.

Two searches at once took eight of ten workers, and for half a second free was refused at 80 % of capacity.
"""

from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.effects import RunBatch
from batcher.types import BatchReason, WorkerFault
from tests.core.examples import a_dispatcher, a_request, echo, runs, submit_all, the_run


def a_busy_fleet(*, num_waiting: int) -> tuple[Dispatcher, list[RunBatch]]:
    """Six workers, each with a batch of eight; so many requests wait behind them. The batches come in order of departure."""
    dispatcher = a_dispatcher(num_ready=6, policy="static", max_batch_size=8)
    sent = runs(submit_all(dispatcher, [a_request(index) for index in range(48)], now=1.0))
    submit_all(dispatcher, [a_request(100 + index) for index in range(num_waiting)], now=1.0)
    return dispatcher, sent


def test_a_search_takes_every_free_worker_while_nobody_waits() -> None:
    dispatcher, sent = a_busy_fleet(num_waiting=0)
    left = runs(dispatcher.fail(sent[0].batch_id, 1, now=1.2))
    for run in sent[1:4]:
        left += runs(dispatcher.complete(run.batch_id, 1, echo(run), now=1.2))

    assert [(run.reason, len(run.requests)) for run in left] == [(BatchReason.SPLIT, 2)] * 4


def test_a_search_keeps_to_a_third_of_the_workers_while_others_wait() -> None:
    dispatcher, sent = a_busy_fleet(num_waiting=3)
    left = runs(dispatcher.fail(sent[0].batch_id, 1, now=1.2))
    for run in sent[1:3]:
        left += runs(dispatcher.complete(run.batch_id, 1, echo(run), now=1.2))

    assert [run.reason for run in left] == [BatchReason.SPLIT] * 2
    assert dispatcher.statistics().num_parked == 2
    dispatcher.check()


def test_a_worker_that_nobody_needs_may_search_beyond_the_share() -> None:
    """One free worker stays for the three that wait, and a second one has nothing better to do."""
    dispatcher, sent = a_busy_fleet(num_waiting=3)
    dispatcher.fail(sent[0].batch_id, 1, now=1.2)
    for run in sent[1:3]:
        dispatcher.complete(run.batch_id, 1, echo(run), now=1.2)

    assert the_run(dispatcher.complete(sent[3].batch_id, 1, echo(sent[3]), now=1.2)).reason is BatchReason.SPLIT
    assert dispatcher.statistics().workers["free"] == 1


def test_the_next_part_goes_when_one_of_the_search_is_back() -> None:
    dispatcher, sent = a_busy_fleet(num_waiting=3)
    part = the_run(dispatcher.fail(sent[0].batch_id, 1, now=1.2))
    for run in sent[1:3]:
        dispatcher.complete(run.batch_id, 1, echo(run), now=1.2)

    again = runs(dispatcher.complete(part.batch_id, 1, echo(part), now=1.4))
    assert [run.reason for run in again] == [BatchReason.SPLIT]


def test_a_search_goes_on_at_once_when_those_who_waited_are_gone() -> None:
    """The last one that waits hangs up. What is due then is due now, though no deadline had been set for it."""
    dispatcher, sent = a_busy_fleet(num_waiting=1)
    dispatcher.fail(sent[0].batch_id, 1, now=1.2)
    for run in sent[1:3]:
        dispatcher.complete(run.batch_id, 1, echo(run), now=1.2)

    assert dispatcher.cancel(100)

    dispatcher.check()
    deadline = dispatcher.next_deadline()
    assert deadline is not None
    assert deadline <= 1.3
    assert [run.reason for run in runs(dispatcher.tick(now=1.3, due_at=1.3))] == [BatchReason.SPLIT]


def test_what_a_lost_worker_held_does_not_wait_for_a_search() -> None:
    dispatcher, sent = a_busy_fleet(num_waiting=3)
    dispatcher.fail(sent[0].batch_id, 1, now=1.2)
    for run in sent[1:3]:
        dispatcher.complete(run.batch_id, 1, echo(run), now=1.2)

    lost = dispatcher.worker_lost(sent[5].worker_id, 1, WorkerFault.DIED, now=1.3)
    assert [run.reason for run in runs(lost)] == [BatchReason.RETRY]
