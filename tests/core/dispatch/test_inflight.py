"""The inflight table finds a batch by its attempt and by its worker, and forgets both together."""

import pytest

from batcher.core.dispatch.inflight import Batch, Flight, Inflight
from batcher.types import BatchReason
from tests.core.examples import a_request


def a_flight(batch_id: int = 1, *, attempt: int = 1, worker_id: int = 0, num_requests: int = 2) -> Flight:
    requests = tuple(a_request(100 * batch_id + index) for index in range(num_requests))
    return Flight(Batch(batch_id, attempt, requests, BatchReason.FULL), worker_id, departed_at=1.0)


def test_a_flight_is_found_by_batch_and_attempt_and_by_worker() -> None:
    inflight = Inflight()
    flight = a_flight(7, attempt=2, worker_id=3)

    inflight.add(flight)

    assert inflight.find(7, 2) is flight
    assert inflight.on_worker(3) is flight
    assert list(inflight) == [flight]
    assert len(inflight) == 1
    assert inflight.num_requests == 2
    inflight.check()


def test_another_attempt_of_the_same_batch_is_not_found() -> None:
    """B47: the late word of a superseded attempt must not be taken for the live one's."""
    inflight = Inflight()
    inflight.add(a_flight(7, attempt=2))

    assert inflight.find(7, 1) is None
    assert inflight.find(7, 3) is None
    assert inflight.find(8, 2) is None


def test_a_removed_flight_is_found_nowhere() -> None:
    inflight = Inflight()
    flight = a_flight(7, worker_id=3, num_requests=5)
    other = a_flight(8, worker_id=4, num_requests=1)
    inflight.add(flight)
    inflight.add(other)

    inflight.remove(flight)

    assert inflight.find(7, 1) is None
    assert inflight.on_worker(3) is None
    assert list(inflight) == [other]
    assert inflight.num_requests == 1
    inflight.check()


@pytest.mark.parametrize("second", [a_flight(1, worker_id=1), a_flight(2, worker_id=0)])
def test_a_batch_runs_once_and_a_worker_runs_one_batch(second: Flight) -> None:
    inflight = Inflight()
    first = a_flight(1, worker_id=0)
    inflight.add(first)

    with pytest.raises(AssertionError):
        inflight.add(second)

    assert list(inflight) == [first]
    assert inflight.num_requests == 2
    inflight.check()
