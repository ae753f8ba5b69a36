"""A lost worker's batch goes whole, then in parts; one that raised is searched for its culprit; all within a budget."""

from itertools import count
from math import ceil, log, log2
from typing import Any

import pytest

from batcher.config import DispatchConfig
from batcher.core.dispatch.inflight import Batch
from batcher.core.dispatch.ledger import Ledger
from batcher.core.dispatch.retry import NUM_PARTS, Retries, split
from batcher.types import BatchReason, Request
from tests.core.examples import a_request

EVERY_SIZE = range(1, 51)


def some_requests(num: int) -> tuple[Request, ...]:
    return tuple(a_request(request_id) for request_id in range(num))


# split


@pytest.mark.parametrize("num", EVERY_SIZE)
def test_a_split_keeps_everybody_in_order_in_up_to_four_nearly_equal_parts(num: int) -> None:
    requests = some_requests(num)

    parts = split(requests)

    assert tuple(request for part in parts for request in part) == requests
    assert len(parts) == min(NUM_PARTS, num)
    sizes = [len(part) for part in parts]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


def test_fifty_split_into_four() -> None:
    assert [len(part) for part in split(some_requests(50))] == [12, 13, 12, 13]


# a run_batch that raised


def some_retries(**settings: Any) -> Retries:
    return Retries(DispatchConfig(**settings), ids=count(100))


def a_batch(requests: tuple[Request, ...], *, attempt: int = 1) -> Batch:
    return Batch(1, attempt, requests, BatchReason.FULL)


def pop_all(retries: Retries, requests: tuple[Request, ...]) -> list[Batch]:
    """Everything that is parked, in order; all requests are live."""
    live = Ledger()
    for request in requests:
        live.open(request)
    batches = [retries.pop(live, max_size=50) for _ in range(len(retries))]
    return [batch for batch in batches if batch is not None]


def num_extra_calls(requests: tuple[Request, ...], culprit: Request) -> int:
    """Calls that the search for one culprit makes beyond the one that raised; only the culprit may be given up."""
    retries = some_retries()
    batch = a_batch(requests)
    num = 0
    while retries.park_after_raise(batch, batch.requests):
        num += len(retries)
        (batch,) = [part for part in pop_all(retries, requests) if culprit in part.requests]
    assert batch.requests == (culprit,)
    return num


@pytest.mark.parametrize("num", EVERY_SIZE)
def test_the_search_for_one_culprit_takes_about_two_log2_n_extra_calls(num: int) -> None:
    """Four calls a level, ceil(log4 n) levels: never more than 2 log2(n) + 2, wherever the culprit stands."""
    requests = some_requests(num)

    costs = [num_extra_calls(requests, culprit) for culprit in requests]

    assert max(costs) <= 2 * log2(num) + 2
    assert max(costs) <= NUM_PARTS * ceil(log(num, 4) - 1e-9)


def test_fifty_with_one_culprit_take_at_most_twelve_extra_calls() -> None:
    requests = some_requests(50)

    assert max(num_extra_calls(requests, culprit) for culprit in requests) == 12


def test_an_input_that_raised_alone_is_not_run_again() -> None:
    retries = some_retries()
    batch = a_batch(some_requests(1))

    assert not retries.park_after_raise(batch, batch.requests)
    assert len(retries) == 0
    assert retries.budget.num_available == 100.0


def test_the_parts_of_a_batch_that_raised_are_new_batches_of_the_same_attempt() -> None:
    retries = some_retries()
    batch = a_batch(some_requests(8), attempt=2)

    assert retries.park_after_raise(batch, batch.requests)

    parts = pop_all(retries, batch.requests)
    assert [part.id for part in parts] == [100, 101, 102, 103]
    assert {part.attempt for part in parts} == {2}
    assert {part.reason for part in parts} == {BatchReason.SPLIT}
    assert tuple(request for part in parts for request in part.requests) == batch.requests
    assert retries.num_splits == 4
    assert retries.num_retries == 0


# a lost worker


def test_the_first_loss_proves_nothing_against_the_batch_so_it_goes_whole() -> None:
    """And as the same batch, with the next attempt (SPEC S1.6)."""
    retries = some_retries()
    batch = a_batch(some_requests(8))

    assert retries.park_after_loss(batch, batch.requests)

    assert list(retries) == [Batch(1, 2, batch.requests, BatchReason.RETRY)]
    assert retries.num_retries == 1


def test_the_second_loss_makes_it_a_suspect_so_it_goes_in_four() -> None:
    retries = some_retries()
    batch = a_batch(some_requests(8), attempt=2)

    assert retries.park_after_loss(batch, batch.requests)

    assert [len(part.requests) for part in retries] == [2, 2, 2, 2]
    assert {part.attempt for part in retries} == {3}


@pytest.mark.parametrize(("attempt", "max_attempts"), [(1, 1), (2, 2), (3, 3), (10, 10)])
def test_the_last_loss_is_the_end(attempt: int, max_attempts: int) -> None:
    retries = some_retries(max_attempts=max_attempts)
    batch = a_batch(some_requests(8), attempt=attempt)

    assert not retries.park_after_loss(batch, batch.requests)
    assert len(retries) == 0


def test_only_what_is_left_of_a_lost_batch_runs_again() -> None:
    retries = some_retries()
    batch = a_batch(some_requests(8))

    assert retries.park_after_loss(batch, batch.requests[2:4])

    assert [again.requests for again in retries] == [batch.requests[2:4]]


def test_without_budget_nothing_is_parked() -> None:
    retries = some_retries(retry_reserve=3)
    batch = a_batch(some_requests(8), attempt=2)

    assert not retries.park_after_raise(batch, batch.requests)
    assert not retries.park_after_loss(batch, batch.requests)

    assert len(retries) == 0
    assert retries.budget.num_available == 3.0


# the order, and who is left


def test_the_batch_with_the_oldest_request_is_next_whenever_it_was_lost() -> None:
    retries = some_retries()
    batches = [Batch(at, 1, (a_request(at, arrived_at=float(at)),), BatchReason.FULL) for at in [3, 1, 2]]
    for batch in batches:
        assert retries.park_after_loss(batch, batch.requests)

    assert [batch.id for batch in retries] == [1, 2, 3]


def test_those_who_ended_meanwhile_do_not_come_out_and_a_batch_of_them_is_none() -> None:
    retries = some_retries()
    requests = some_requests(4)
    live = Ledger()
    live.open(requests[1])
    assert retries.park_after_loss(a_batch(requests[:2]), requests[:2])
    assert retries.park_after_loss(a_batch(requests[2:]), requests[2:])

    first, second = (retries.pop(live, max_size=50) for _ in range(2))

    assert first == Batch(1, 2, requests[1:2], BatchReason.RETRY)
    assert second is None
    assert len(retries) == 0


def test_what_is_too_large_for_a_canary_stays_parked_as_a_batch_of_its_own() -> None:
    retries = some_retries()
    requests = some_requests(4)
    live = Ledger()
    for request in requests:
        live.open(request)
    assert retries.park_after_loss(a_batch(requests), requests)

    assert retries.pop(live, max_size=1) == Batch(1, 2, requests[:1], BatchReason.RETRY)

    assert list(retries) == [Batch(100, 2, requests[1:], BatchReason.RETRY)]
    assert retries.budget.num_available == 98.0


def test_without_budget_a_batch_is_too_large_for_nobody() -> None:
    retries = some_retries(retry_reserve=1)
    requests = some_requests(4)
    live = Ledger()
    for request in requests:
        live.open(request)
    assert retries.park_after_loss(a_batch(requests), requests)

    assert retries.pop(live, max_size=1) == Batch(1, 2, requests, BatchReason.RETRY)

    assert len(retries) == 0


def test_only_those_who_are_left_count_for_the_size() -> None:
    """Of four that were lost one is left: it is a canary by itself and costs no call more."""
    retries = some_retries()
    requests = some_requests(4)
    live = Ledger()
    live.open(requests[2])
    assert retries.park_after_loss(a_batch(requests), requests)

    assert retries.pop(live, max_size=1) == Batch(1, 2, requests[2:3], BatchReason.RETRY)

    assert (len(retries), retries.budget.num_available) == (0, 99.0)


def test_the_search_for_bad_inputs_uses_half_of_the_reserve_and_losses_may_have_all_of_it() -> None:
    """Whoever sends many bad inputs must not use up what the loss of a worker needs."""
    retries = some_retries(retry_reserve=8)
    batch = a_batch(some_requests(8))
    assert retries.park_after_raise(batch, batch.requests)

    assert not retries.park_after_raise(batch, batch.requests)
    assert (retries.num_splits, retries.budget.num_available) == (4, 4.0)
    assert retries.park_after_loss(batch, batch.requests)
    assert retries.park_after_loss(a_batch(batch.requests[:3], attempt=2), batch.requests[:3])

    assert (retries.num_retries, retries.budget.num_available) == (4, 0.0)
