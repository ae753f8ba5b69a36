"""How long a device had a step: what the pace of prompts is learned from."""

from batcher.core.replica.flights import Flight, Flights
from batcher.types import Step


def launch(flights: Flights, *, now: float) -> None:
    flights.add(Flight(Step(1, (), 0), [], 0, 0, now))


def test_a_step_alone_takes_from_its_start_to_its_end() -> None:
    flights = Flights()
    launch(flights, now=1.0)
    assert flights.land(now=1.5) == 0.5
    launch(flights, now=4.0)
    assert flights.land(now=4.25) == 0.25


def test_one_that_was_launched_behind_another_takes_from_the_end_of_that_one() -> None:
    """It waited for the device until then: else every step with another in flight would seem twice as long."""
    flights = Flights()
    launch(flights, now=0.0)
    launch(flights, now=0.125)
    assert flights.land(now=1.0) == 1.0
    launch(flights, now=1.125)
    assert flights.land(now=2.0) == 1.0
    assert flights.land(now=3.0) == 1.0


def test_after_all_were_given_up_a_step_takes_from_its_start_again() -> None:
    flights = Flights()
    launch(flights, now=0.0)
    launch(flights, now=0.5)
    flights.clear()
    launch(flights, now=9.0)
    assert flights.land(now=9.5) == 0.5
