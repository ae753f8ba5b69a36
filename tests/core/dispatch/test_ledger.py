"""Each accepted request is opened once and closed once."""

import pytest

from batcher.core.dispatch.ledger import Ledger
from tests.core.examples import a_request


def test_an_open_request_is_found_until_it_is_closed() -> None:
    ledger = Ledger()
    request = a_request(1, deadline_at=5.0)

    ledger.open(request)
    assert ledger.find(1) is request
    assert 1 in ledger
    assert len(ledger) == 1
    assert ledger.next_deadline() == 5.0
    ledger.check()

    ledger.close(request)
    assert ledger.find(1) is None
    assert 1 not in ledger
    assert list(ledger) == []
    assert ledger.next_deadline() == float("inf")
    ledger.check()


def test_a_second_end_cannot_pass() -> None:
    ledger = Ledger()
    ledger.open(a_request(1))
    ledger.open(a_request(2))
    ledger.close(a_request(1))

    with pytest.raises(KeyError):
        ledger.close(a_request(1))

    assert [request.id for request in ledger] == [2]
    ledger.check()


def test_what_is_due_is_closed_earliest_first() -> None:
    ledger = Ledger()
    for request_id, deadline_at in [(1, 3.0), (2, 1.0), (3, 9.0)]:
        ledger.open(a_request(request_id, deadline_at=deadline_at))

    assert [request.id for request in ledger.close_due(now=3.0)] == [2, 1]

    assert [request.id for request in ledger] == [3]
    assert ledger.close_due(now=3.0) == []
    ledger.check()


def test_those_of_a_batch_that_are_left_keep_their_order() -> None:
    ledger = Ledger()
    requests = tuple(a_request(request_id) for request_id in [5, 2, 8, 1])
    for request in requests:
        ledger.open(request)
    ledger.close(requests[1])

    assert ledger.still_live(requests) == (requests[0], requests[2], requests[3])
