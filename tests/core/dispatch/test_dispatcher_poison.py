"""The dispatcher when workers lie, and when inputs make run_batch raise or crash."""

from collections.abc import Sequence
from math import log2

import pytest

from batcher.core.effects import Refuse, RunBatch, StopWorker
from batcher.errors import BadOutput, InputFailed
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

# a worker that breaks the contract


@pytest.mark.parametrize(
    ("outputs", "returned"),
    [
        ([], "0 outputs for 2 inputs"),
        (["a"], "1 outputs for 2 inputs"),
        (["a", "b", "c"], "3 outputs for 2 inputs"),
        (["a", None], "an output of type NoneType, which is no str,"),
        (["a", 7], "an output of type int, which is no str,"),
        ([b"a", b"b"], "an output of type bytes, which is no str,"),
    ],
    ids=["0", "1", "3", "None", "int", "bytes"],
)
def test_wrong_outputs_reach_nobody_and_the_worker_is_replaced(outputs: Sequence[object], returned: str) -> None:
    dispatcher = a_dispatcher(num_ready=2, policy="static", max_batch_size=2)
    first = the_run(submit_all(dispatcher, [a_request(1), a_request(2)], now=1.0))

    effects = dispatcher.complete(first.batch_id, 1, outputs, now=1.2)

    assert effects == [
        StopWorker(0, 1, WorkerFault.BAD_OUTPUT, returned),
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
    # Only the third worker has not failed before the batch is in four parts; the others try each part with one request.
    assert [len(call) for call in played.calls] == [8, 8, 2, 1, 1, 1, 1, 1, 1]
    told = [effect.error.message.partition(" on attempt")[0] for effect in refused]
    numbers = ["run_batch returned 1 outputs for 2 inputs"] * 2 + ["run_batch returned 0 outputs for 1 inputs"] * 6
    assert told == numbers
    assert not any("in-" in effect.error.message for effect in refused)
    assert dispatcher.statistics().counters.num_bad_outputs == 9


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
    # Whole twice, then four parts, of which the two workers that were lost before try theirs with one request first.
    assert len(played.calls) == 1 + 1 + 4 + 2


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


def test_a_worker_that_dies_idle_takes_nothing_with_it() -> None:
    dispatcher = a_dispatcher(num_ready=2)

    assert dispatcher.worker_lost(1, 1, WorkerFault.DIED, now=1.0) == [StopWorker(1, 1, WorkerFault.DIED)]

    assert dispatcher.statistics().counters.faults[WorkerFault.DIED] == 1
    dispatcher.check()
