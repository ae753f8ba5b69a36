"""Deadlines of what waits: the earliest first, and what no longer waits is passed over."""

from math import inf

from batcher.core.replica.deadlines import Deadlines
from batcher.core.replica.sequence import SequenceState
from tests.core.replica.fake_device import a_sequence


def test_the_earliest_of_those_that_still_wait() -> None:
    deadlines = Deadlines()
    first, second, third = (a_sequence(n, deadline_at=float(n)) for n in (1, 2, 3))
    for order, sequence in enumerate((third, first, second), 1):
        sequence.order = order
        deadlines.add(sequence, num_live=order)
    first.move_to(SequenceState.PREFILLING)
    assert deadlines.first() == 2.0
    assert deadlines.pop_due(now=1.9) == []
    assert deadlines.pop_due(now=3.0) == [second, third]
    assert deadlines.first() == inf


def test_one_without_a_deadline_is_not_kept() -> None:
    deadlines = Deadlines()
    deadlines.add(a_sequence(1, deadline_at=inf), num_live=1)
    assert deadlines.first() == inf


def test_what_has_started_does_not_pile_up_behind_one_that_waits() -> None:
    deadlines = Deadlines()
    deadlines.add(a_sequence(0, deadline_at=1.0), num_live=1)
    for order in range(1, 1000):
        sequence = a_sequence(order, deadline_at=5.0)
        sequence.order = order
        deadlines.add(sequence, num_live=2)
        sequence.move_to(SequenceState.PREFILLING)
    assert len(deadlines) <= 2 * 2 + 64 + 1
