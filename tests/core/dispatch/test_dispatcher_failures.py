"""The dispatcher when things go wrong: workers that die, hang or lie, and inputs that make run_batch raise or crash."""

from collections.abc import Sequence
from math import log2

import pytest

from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.effects import NOTHING, Refuse, RunBatch, StartWorker, StopWorker
from batcher.errors import BadOutput, InputFailed, WorkerFailed
from batcher.types import BatchReason, Outcome, WorkerFault
from tests.core.examples import (
    Crashed,
    Raised,
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


def test_a_worker_that_dies_idle_takes_nothing_with_it() -> None:
    dispatcher = a_dispatcher(num_ready=2)

    assert dispatcher.worker_lost(1, 1, WorkerFault.DIED, now=1.0) == [StopWorker(1, 1, WorkerFault.DIED)]

    assert dispatcher.statistics().counters.faults[WorkerFault.DIED] == 1
    dispatcher.check()


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


def test_hung_workers_are_out_and_a_canary_brings_them_back() -> None:
    """B90: a frozen backend stayed in rotation for an hour. After five hangs in a row the breaker opens for 30 s; then one
    single request tries the worker, and its success brings the worker back.
    """
    dispatcher = a_dispatcher(
        policy="static", max_batch_size=2, first_batch_timeout_s=1.0, restart_backoff_s=0.125, max_attempts=1
    )
    now = 1.0
    for incarnation in range(1, 6):
        submit_all(dispatcher, [a_request(10 * incarnation), a_request(10 * incarnation + 1)], now=now)
        assert len(refusals(dispatcher.tick(now=now + 1.0))) == 2
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


# a worker that breaks the contract


@pytest.mark.parametrize(
    "outputs", [[], ["a"], ["a", "b", "c"], ["a", None], ["a", 7], [b"a", b"b"]], ids=["0", "1", "3", "None", "int", "bytes"]
)
def test_wrong_outputs_reach_nobody_and_the_worker_is_replaced(outputs: Sequence[object]) -> None:
    dispatcher = a_dispatcher(num_ready=2, policy="static", max_batch_size=2)
    first = the_run(submit_all(dispatcher, [a_request(1), a_request(2)], now=1.0))

    effects = dispatcher.complete(first.batch_id, 1, outputs, now=1.2)

    assert effects == [
        StopWorker(0, 1, WorkerFault.BAD_OUTPUT),
        RunBatch(1, 1, first.batch_id, 2, first.requests, BatchReason.RETRY),
    ]
    assert dispatcher.statistics().counters.num_bad_outputs == 1
    dispatcher.check()


def test_a_wrong_count_on_every_attempt_ends_in_an_error_that_names_both_numbers() -> None:
    """B03: a worker returned n-1 outputs. Only warned about, it hung the callers; or the error did not say how many were
    asked for. The inputs themselves are in no message.
    """
    dispatcher = a_dispatcher(num_ready=3, policy="static", max_batch_size=8)
    effects = submit_all(dispatcher, [a_request(index) for index in range(8)], now=1.0)

    played = play(dispatcher, effects, lambda inputs: inputs[:-1], now=1.0)

    refused = [effect for effect in played.effects if isinstance(effect, Refuse)]
    assert {effect.outcome for effect in refused} == {Outcome.FAILED}
    assert {type(effect.error) for effect in refused} == {BadOutput}
    assert len(refusals(played.effects)) == 8
    assert [len(call) for call in played.calls] == [8, 8, 2, 2, 2, 2]
    assert all("returned 1 outputs for 2 inputs" in effect.error.message for effect in refused)
    assert not any("in-" in effect.error.message for effect in refused)
    assert dispatcher.statistics().counters.num_bad_outputs == 6


def test_a_wrong_count_now_and_then_costs_only_those_whom_it_meets_on_every_attempt() -> None:
    """B03: n-1 outputs on every third call while 200 requests run. Nobody hangs, and each answer is its owner's."""
    dispatcher = a_dispatcher(num_ready=4, policy="size-or-timeout", max_batch_size=10, restart_backoff_s=0.0)
    num_calls = 0

    def run_batch(inputs: list[str]) -> list[str]:
        nonlocal num_calls
        num_calls += 1
        return [f"<{text}>" for text in inputs][num_calls % 3 == 0 :]

    effects = submit_all(dispatcher, [a_request(index, arrived_at=1.0) for index in range(200)], now=1.0)
    played = play(dispatcher, effects, run_batch, now=1.0)

    answered, refused = answers(played.effects), refusals(played.effects)
    assert answered.keys() | refused.keys() == set(range(200))
    assert not answered.keys() & refused.keys()
    assert answered == {index: f"<in-{index}>" for index in answered}
    assert len(refused) <= 200 // 27
    assert {type(effect.error) for effect in played.effects if isinstance(effect, Refuse)} <= {BadOutput}


# an input that makes run_batch raise


def poisoned(*culprits: int) -> set[str]:
    return {f"in-{culprit}" for culprit in culprits}


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 16, 17, 49, 50])
@pytest.mark.parametrize("num_workers", [1, 4])
def test_only_the_culprit_gets_an_error_within_about_two_log2_n_extra_calls(num: int, num_workers: int) -> None:
    for culprit in {0, num // 2, num - 1}:
        dispatcher = a_dispatcher(num_ready=num_workers, policy="static", max_batch_size=num)
        poison = poisoned(culprit)

        def run_batch(inputs: list[str], poison: set[str] = poison) -> list[str]:
            if poison & set(inputs):
                raise Raised
            return [f"<{text}>" for text in inputs]

        effects = submit_all(dispatcher, [a_request(index) for index in range(num)], now=1.0)
        played = play(dispatcher, effects, run_batch, now=1.0)

        assert refusals(played.effects) == {culprit: Outcome.FAILED}
        assert answers(played.effects) == {index: f"<in-{index}>" for index in range(num) if index != culprit}
        assert len(played.calls) - 1 <= 2 * log2(num) + 2
        assert not any(isinstance(effect, StopWorker) for effect in played.effects)


def test_the_culprits_error_is_not_retryable_and_the_worker_is_not_blamed() -> None:
    dispatcher = a_dispatcher(policy="single")
    run = the_run(dispatcher.submit(a_request(1), now=1.0))

    effects = dispatcher.fail(run.batch_id, 1, now=1.1)

    refusal = the_refusal(effects)
    assert list(effects) == [refusal]
    assert refusal.outcome is Outcome.FAILED
    assert type(refusal.error) is InputFailed
    assert not refusal.error.is_retryable
    assert dispatcher.statistics().workers["free"] == 1
    assert dispatcher.statistics().counters.num_raised == 1


def test_many_culprits_in_one_batch_are_all_found_and_only_they_fail() -> None:
    dispatcher = a_dispatcher(num_ready=4, policy="static")
    culprits = {3, 4, 17, 31, 49}

    def run_batch(inputs: list[str]) -> list[str]:
        if poisoned(*culprits) & set(inputs):
            raise Raised
        return [f"<{text}>" for text in inputs]

    effects = submit_all(dispatcher, [a_request(index) for index in range(50)], now=1.0)
    played = play(dispatcher, effects, run_batch, now=1.0)

    assert set(refusals(played.effects)) == culprits
    assert len(answers(played.effects)) == 45


def test_the_search_goes_on_with_the_oldest_first() -> None:
    """The parts of a batch must not overtake one another, nor be overtaken by fresh requests."""
    dispatcher = a_dispatcher(policy="static", max_batch_size=8)
    run = the_run(submit_all(dispatcher, [a_request(index) for index in range(8)], now=1.0))
    submit_all(dispatcher, [a_request(index) for index in range(8, 16)], now=1.1)

    order = []
    effects = dispatcher.fail(run.batch_id, 1, now=1.2)
    for step in range(5):
        run = the_run(effects)
        order.append(ids(run))
        effects = dispatcher.complete(run.batch_id, run.attempt, echo(run), now=1.4 + step)

    assert order == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9, 10, 11, 12, 13, 14, 15]]


def test_a_member_that_left_is_not_searched_for() -> None:
    dispatcher = a_dispatcher(num_ready=1, policy="static", max_batch_size=3)
    run = the_run(submit_all(dispatcher, [a_request(1), a_request(2), a_request(3)], now=1.0))
    dispatcher.cancel(2)

    first = the_run(dispatcher.fail(run.batch_id, 1, now=1.1))
    second = the_run(dispatcher.complete(first.batch_id, 1, echo(first), now=1.3))

    assert (ids(first), ids(second)) == ([1], [3])


def test_the_survivor_of_a_batch_that_raised_is_not_blamed_for_those_who_left() -> None:
    """The culprit was cancelled while it ran. Its companion is the only one left, but it has never been tried alone: the
    error must not fall on it.
    """
    dispatcher = a_dispatcher(policy="static", max_batch_size=2)
    run = the_run(submit_all(dispatcher, [a_request(1), a_request(2)], now=1.0))
    dispatcher.cancel(1)

    alone = the_run(dispatcher.fail(run.batch_id, 1, now=1.1))

    assert ids(alone) == [2]
    assert answers(dispatcher.complete(alone.batch_id, alone.attempt, ["fine"], now=1.3)) == {2: "fine"}


def test_a_batch_that_raised_and_whose_members_all_left_is_over() -> None:
    dispatcher = a_dispatcher(policy="static", max_batch_size=2)
    run = the_run(submit_all(dispatcher, [a_request(1), a_request(2)], now=1.0))
    dispatcher.cancel(1)
    dispatcher.cancel(2)

    assert list(dispatcher.fail(run.batch_id, 1, now=1.1)) == []

    statistics = dispatcher.statistics()
    assert (statistics.num_parked, statistics.num_inflight, statistics.retry_budget) == (0, 0, 100.0)


def test_a_search_whose_worker_dies_goes_on_elsewhere() -> None:
    dispatcher = a_dispatcher(num_ready=2, policy="static", max_batch_size=2)
    run = the_run(submit_all(dispatcher, [a_request(1), a_request(2)], now=1.0))
    left, right = runs(dispatcher.fail(run.batch_id, 1, now=1.1))
    assert list(dispatcher.worker_lost(left.worker_id, 1, WorkerFault.DIED, now=1.2)) == [
        StopWorker(left.worker_id, 1, WorkerFault.DIED)
    ]

    again = the_run(dispatcher.complete(right.batch_id, 1, echo(right), now=1.3))

    assert (ids(again), again.batch_id, again.attempt) == ([1], left.batch_id, 2)
    dispatcher.check()


# an input that takes the process down


@pytest.mark.parametrize("culprit", [0, 24, 49])
def test_an_input_that_kills_its_worker_takes_at_most_a_quarter_with_it_and_at_most_three_workers(culprit: int) -> None:
    dispatcher = a_dispatcher(num_ready=4, policy="static", restart_backoff_s=0.125)

    def run_batch(inputs: list[str]) -> list[str]:
        if poisoned(culprit) & set(inputs):
            raise Crashed
        return [f"<{text}>" for text in inputs]

    effects = submit_all(dispatcher, [a_request(index) for index in range(50)], now=1.0)
    played = play(dispatcher, effects, run_batch, now=1.0)

    failed = refusals(played.effects)
    assert culprit in failed
    assert len(failed) <= 13
    assert len(answers(played.effects)) == 50 - len(failed)
    assert sum(isinstance(effect, StopWorker) for effect in played.effects) == 3
    assert len(played.calls) == 1 + 1 + 4


def test_the_loss_of_a_whole_fleet_loses_no_request() -> None:
    dispatcher = a_dispatcher(num_ready=8, policy="static", max_batch_size=5, restart_backoff_s=0.125)
    sent = runs(submit_all(dispatcher, [a_request(index) for index in range(40)], now=1.0))
    assert len(sent) == 8

    effects = [e for run in sent for e in dispatcher.worker_lost(run.worker_id, 1, WorkerFault.DIED, now=1.1)]
    assert dispatcher.num_ready_workers == 0
    assert dispatcher.statistics().num_parked == 8
    played = play(dispatcher, effects, lambda inputs: [f"<{text}>" for text in inputs], now=1.1)

    assert answers(played.effects) == {index: f"<in-{index}>" for index in range(40)}


def test_after_everything_failed_the_tables_are_empty_and_the_clock_may_rest() -> None:
    dispatcher = a_dispatcher(num_ready=2, policy="single", restart_backoff_s=0.0, breaker_threshold=3, breaker_rest_s=5.0)

    def run_batch(inputs: list[str]) -> list[str]:
        raise Crashed

    effects = submit_all(dispatcher, [a_request(index, deadline_at=20.0) for index in range(20)], now=1.0)
    played = play(dispatcher, effects, run_batch, now=1.0)

    assert len(refusals(played.effects)) == 20
    statistics = dispatcher.statistics()
    assert (statistics.num_live, statistics.num_parked, statistics.num_inflight, statistics.num_running) == (0, 0, 0, 0)
    dispatcher.check()
