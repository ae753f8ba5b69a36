"""The dispatcher forms batches and hands outputs to their owners."""

import pytest

from batcher.core.effects import NOTHING, Answer, StartWorker
from batcher.types import BatchReason, Outcome
from tests.core.examples import (
    a_dispatcher,
    a_request,
    answers,
    echo,
    hold_all_workers,
    ids,
    play,
    refusals,
    runs,
    submit_all,
    the_run,
)

# start


def test_the_first_effects_start_every_worker() -> None:
    dispatcher = a_dispatcher(num_ready=0, num_workers=3)

    assert dispatcher.start() == [StartWorker(0, 1), StartWorker(1, 1), StartWorker(2, 1)]
    assert dispatcher.num_ready_workers == 0
    assert dispatcher.capacity_rate == 0.0


def test_what_came_before_the_first_worker_was_ready_leaves_with_it() -> None:
    dispatcher = a_dispatcher(num_ready=0, policy="size-or-timeout", batch_timeout_s=0.1)
    assert dispatcher.submit(a_request(1, arrived_at=1.0), now=1.0) == NOTHING
    assert dispatcher.tick(now=1.1) == []

    effects = dispatcher.worker_ready(0, 1, now=2.0)

    assert ids(the_run(effects)) == [1]


def test_a_worker_that_reports_ready_twice_has_a_broken_shell() -> None:
    dispatcher = a_dispatcher()
    before = dispatcher.statistics()

    with pytest.raises(ValueError, match="reported ready twice"):
        dispatcher.worker_ready(0, 1, now=1.0)

    assert dispatcher.statistics() == before


# forming batches


def test_fifty_leave_at_once() -> None:
    """SPEC S1.3."""
    dispatcher = a_dispatcher(policy="size-or-timeout")
    assert submit_all(dispatcher, [a_request(index, arrived_at=1.0) for index in range(49)], now=1.0) == []

    run = the_run(dispatcher.submit(a_request(49, arrived_at=1.0), now=1.0))

    assert ids(run) == list(range(50))
    assert (run.worker_id, run.incarnation, run.attempt, run.reason) == (0, 1, 1, BatchReason.FULL)
    dispatcher.check()


def test_the_timer_counts_from_the_first_waiting_request() -> None:
    """B04: after an idle second, request 1 comes at t=0 and request 2 at t=20 ms; the timeout is 50 ms.

    A timer that counts from the end of the last batch sends request 1 alone at once and request 2 much later. Right is one
    batch of both at t=50 ms.
    """
    dispatcher = a_dispatcher(policy="size-or-timeout", batch_timeout_s=0.05)
    dispatcher.submit(a_request(1, arrived_at=1.0), now=1.0)
    dispatcher.submit(a_request(2, arrived_at=1.02), now=1.02)

    assert dispatcher.next_deadline() == pytest.approx(1.05)
    assert dispatcher.tick(now=1.049) == []
    run = the_run(dispatcher.tick(now=1.05))

    assert ids(run) == [1, 2]
    assert run.reason is BatchReason.TIMEOUT


def test_paced_sends_the_first_of_an_idle_system_at_once() -> None:
    """B04 again: the default policy says that it goes at once while workers are plenty."""
    dispatcher = a_dispatcher(num_ready=4)

    first = the_run(dispatcher.submit(a_request(1, arrived_at=1.0), now=1.0))
    second = the_run(dispatcher.submit(a_request(2, arrived_at=1.02), now=1.02))

    assert (ids(first), first.worker_id, first.reason) == ([1], 0, BatchReason.PACE)
    assert (ids(second), second.worker_id) == ([2], 1)


@pytest.mark.parametrize("policy", ["paced", "size-or-timeout"])
def test_the_whole_backlog_goes_with_the_next_batch(policy: str) -> None:
    """B07: one worker runs a batch of 200 ms; 49 more come meanwhile. They must leave together, not one by one."""
    dispatcher = a_dispatcher(policy=policy, batch_timeout_s=0.0)
    first = the_run(dispatcher.submit(a_request(0, arrived_at=1.0), now=1.0))
    assert submit_all(dispatcher, [a_request(index, arrived_at=1.1) for index in range(1, 50)], now=1.1) == []

    second = the_run(dispatcher.complete(first.batch_id, 1, echo(first), now=1.2))

    assert ids(second) == list(range(1, 50))


def test_fifty_requests_on_one_worker_take_two_batches() -> None:
    """B07 with the default policy: request 1 starts a batch of 200 ms, 49 more come during it; all take about 400 ms."""
    dispatcher = a_dispatcher()
    first = the_run(dispatcher.submit(a_request(0, arrived_at=1.0), now=1.0))
    submit_all(dispatcher, [a_request(index, arrived_at=1.1) for index in range(1, 50)], now=1.1)

    effects = dispatcher.complete(first.batch_id, 1, echo(first), now=1.2)
    played = play(dispatcher, effects, lambda inputs: inputs, now=1.2)

    assert [len(call) for call in played.calls] == [49]
    assert played.ended_at == pytest.approx(1.4)


def test_the_members_are_chosen_at_the_moment_of_leaving() -> None:
    """Late binding: a paid request that comes while every worker is busy still goes before free ones that came earlier."""
    dispatcher = a_dispatcher(policy="single")
    (held,) = hold_all_workers(dispatcher, now=1.0)
    dispatcher.submit(a_request(1, tier="free", arrived_at=1.0), now=1.0)
    dispatcher.submit(a_request(2, tier="paid", arrived_at=1.1), now=1.1)

    assert ids(the_run(dispatcher.complete(held.batch_id, 1, echo(held), now=1.2))) == [2]


def test_a_batch_is_of_paid_first_and_fills_with_free() -> None:
    """SPEC S1.4."""
    dispatcher = a_dispatcher(policy="static", max_batch_size=4)
    submit_all(dispatcher, [a_request(index, tier="free", arrived_at=1.0) for index in range(3)], now=1.0)

    run = the_run(dispatcher.submit(a_request(9, tier="paid", arrived_at=1.1), now=1.1))

    assert ids(run) == [9, 0, 1, 2]


@pytest.mark.parametrize("policy", ["single", "static", "size-or-timeout", "paced"])
@pytest.mark.parametrize("max_batch_size", [1, 2, 50])
def test_no_call_ever_has_no_inputs_or_more_than_the_limit(policy: str, max_batch_size: int) -> None:
    """B09, B12: whatever the policy and the size, also with one worker, a timeout of zero and a backlog of 120."""
    dispatcher = a_dispatcher(policy=policy, max_batch_size=max_batch_size, batch_timeout_s=0.0)
    effects = submit_all(dispatcher, [a_request(index, arrived_at=1.0) for index in range(120)], now=1.0)
    effects += dispatcher.drain(now=1.0)

    played = play(dispatcher, effects, lambda inputs: inputs, now=1.0)

    limit = 1 if policy == "single" else max_batch_size
    assert {1 <= len(call) <= limit for call in played.calls} == {True}
    assert len(answers(played.effects)) == 120


def test_every_free_worker_gets_a_batch_when_enough_wait() -> None:
    dispatcher = a_dispatcher(num_ready=0, num_workers=3, policy="size-or-timeout", max_batch_size=2)
    submit_all(dispatcher, [a_request(index, arrived_at=1.0) for index in range(6)], now=1.0)

    effects = [effect for worker_id in range(3) for effect in dispatcher.worker_ready(worker_id, 1, now=1.0)]

    assert [(run.worker_id, ids(run)) for run in runs(effects)] == [(0, [0, 1]), (1, [2, 3]), (2, [4, 5])]


# outputs


def test_outputs_reach_their_owners_in_order() -> None:
    """SPEC S1.5."""
    dispatcher = a_dispatcher(policy="static", max_batch_size=3)
    effects = submit_all(dispatcher, [a_request(index, arrived_at=1.0) for index in [7, 3, 5]], now=1.0)
    run = the_run(effects)

    ended = dispatcher.complete(run.batch_id, 1, ["a", "b", "c"], now=1.2)

    assert [(e.request.id, e.output, e.departed_at) for e in ended if isinstance(e, Answer)] == [
        (7, "a", 1.0),
        (3, "b", 1.0),
        (5, "c", 1.0),
    ]
    assert dispatcher.statistics().num_live == 0


def test_members_that_left_before_the_run_do_not_shift_the_outputs_of_the_others() -> None:
    """B15: outputs came back rotated by one after a member was cancelled."""
    dispatcher = a_dispatcher(policy="static", max_batch_size=4)
    submit_all(dispatcher, [a_request(index, arrived_at=1.0) for index in range(3)], now=1.0)
    dispatcher.cancel(1)

    effects = submit_all(dispatcher, [a_request(index, arrived_at=1.1) for index in [3, 4]], now=1.1)
    run = the_run(effects)

    assert ids(run) == [0, 2, 3, 4]
    ended = dispatcher.complete(run.batch_id, 1, echo(run), now=1.3)
    assert answers(ended) == {0: "<in-0>", 2: "<in-2>", 3: "<in-3>", 4: "<in-4>"}


def test_members_that_left_during_the_run_do_not_shift_the_outputs_of_the_others() -> None:
    """B15: one was cancelled and one expired while they ran; their outputs are dropped, and nobody gets them."""
    dispatcher = a_dispatcher(policy="static", max_batch_size=4)
    requests = [a_request(0), a_request(1), a_request(2, deadline_at=1.1), a_request(3)]
    run = the_run(submit_all(dispatcher, requests, now=1.0))
    assert dispatcher.cancel(0)
    assert refusals(dispatcher.tick(now=1.1)) == {2: Outcome.EXPIRED}

    ended = dispatcher.complete(run.batch_id, 1, echo(run), now=1.2)

    assert answers(ended) == {1: "<in-1>", 3: "<in-3>"}
    assert len(ended) == 2
    dispatcher.check()


def test_workers_that_finish_in_another_order_do_not_mix_outputs_up() -> None:
    """B15: outputs in the order of completion rather than of their own batch."""
    dispatcher = a_dispatcher(num_ready=3, policy="static", max_batch_size=2)
    sent = runs(submit_all(dispatcher, [a_request(index) for index in range(6)], now=1.0))

    found: dict[int, str] = {}
    for run in [sent[2], sent[0], sent[1]]:
        found |= answers(dispatcher.complete(run.batch_id, 1, echo(run), now=1.2))

    assert found == {index: f"<in-{index}>" for index in range(6)}


class Text(str):
    """A text of a kind of its own, as numpy's are."""

    __slots__ = ()


@pytest.mark.parametrize("kind", [list, tuple])
def test_texts_of_another_kind_are_answered_as_plain_ones(kind: type) -> None:
    """numpy's `str_` is a text, and is refused by encoders that look at the type."""
    dispatcher = a_dispatcher(policy="static", max_batch_size=2)
    run = the_run(submit_all(dispatcher, [a_request(1), a_request(2)], now=1.0))

    found = answers(dispatcher.complete(run.batch_id, 1, kind([Text("a"), "b"]), now=1.2))

    assert found == {1: "a", 2: "b"}
    assert {type(output) for output in found.values()} == {str}


# what it tells of itself


def test_nothing_is_due_in_an_idle_system() -> None:
    dispatcher = a_dispatcher(num_ready=2)

    assert dispatcher.next_deadline() is None
    assert dispatcher.tick(now=1.0) == []


def test_a_tick_that_comes_early_or_twice_does_nothing() -> None:
    dispatcher = a_dispatcher(policy="size-or-timeout", batch_timeout_s=0.1)
    dispatcher.submit(a_request(1, arrived_at=1.0), now=1.0)

    assert dispatcher.tick(now=1.0) == []
    assert len(dispatcher.tick(now=1.2)) == 1
    assert dispatcher.tick(now=1.2) == []


def test_it_tells_what_it_holds() -> None:
    dispatcher = a_dispatcher(num_ready=2, policy="static", max_batch_size=2)
    submit_all(dispatcher, [a_request(index, num_bytes=7, tenant=f"t{index}") for index in range(3)], now=1.0)

    statistics = dispatcher.statistics()

    assert repr(dispatcher) == "<Dispatcher live=3 waiting=1 inflight=1 parked=0 ready=2>"
    assert [(t.name, t.num_waiting, t.num_bytes, t.num_tenants) for t in statistics.tiers] == [
        ("paid", 1, 7, 1),
        ("free", 0, 0, 0),
    ]
    assert (statistics.num_live, statistics.num_running, statistics.num_inflight) == (3, 2, 1)
    assert statistics.workers == {"starting": 0, "free": 1, "busy": 1, "resting": 0}
    assert statistics.counters.batches[BatchReason.FULL] == 1
    assert [request.id for request in dispatcher.live_requests] == [0, 1, 2]
    assert dispatcher.capacity_rate == pytest.approx(2 * 2 / 0.2)


def test_a_snapshot_does_not_change_afterwards() -> None:
    dispatcher = a_dispatcher(policy="single")
    before = dispatcher.statistics()

    dispatcher.submit(a_request(1), now=1.0)

    assert before.counters.batches[BatchReason.FULL] == 0
    assert before.counters.batch_sizes == {}
    assert before.num_live == 0
