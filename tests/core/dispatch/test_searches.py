"""The search for a bad input beside fresh traffic: it must not take the fleet."""

from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.effects import RunBatch
from batcher.types import BatchReason, WorkerFault
from tests.core.examples import a_dispatcher, a_request, runs, submit_all, the_run


def a_fleet_with_a_raise(*, num_waiting: int) -> tuple[Dispatcher, list[RunBatch]]:
    """Six workers, of which one had a batch of eight that raised; so many requests wait behind it. And what left then."""
    dispatcher = a_dispatcher(num_ready=6, policy="static", max_batch_size=8)
    run = the_run(submit_all(dispatcher, [a_request(index) for index in range(8)], now=1.0))
    submit_all(dispatcher, [a_request(100 + index) for index in range(num_waiting)], now=1.0)
    return dispatcher, runs(dispatcher.fail(run.batch_id, 1, now=1.2))


def test_a_search_takes_every_free_worker_while_nobody_waits() -> None:
    _, left = a_fleet_with_a_raise(num_waiting=0)
    assert [(run.reason, len(run.requests)) for run in left] == [(BatchReason.SPLIT, 2)] * 4


def test_a_search_keeps_to_a_third_of_the_workers_while_others_wait() -> None:
    """Two searches at once took eight of ten workers, and for half a second free was refused at 80 % of capacity."""
    dispatcher, left = a_fleet_with_a_raise(num_waiting=3)
    assert [run.reason for run in left] == [BatchReason.SPLIT] * 2
    assert dispatcher.statistics().num_parked == 2
    dispatcher.check()


def test_the_next_part_goes_when_one_of_the_search_is_back() -> None:
    dispatcher, left = a_fleet_with_a_raise(num_waiting=3)
    again = dispatcher.complete(left[0].batch_id, 1, ["x", "y"], now=1.4)
    assert [run.reason for run in runs(again)] == [BatchReason.SPLIT]
    assert dispatcher.statistics().num_parked == 1


def test_what_a_lost_worker_held_does_not_wait_for_a_search() -> None:
    """And the search, now of five workers, keeps to one."""
    dispatcher, left = a_fleet_with_a_raise(num_waiting=3)
    lost = dispatcher.worker_lost(left[0].worker_id, 1, fault=WorkerFault.DIED, now=1.3)
    assert [run.reason for run in runs(lost)] == [BatchReason.RETRY]
