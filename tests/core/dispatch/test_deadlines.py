"""Deadlines deliver each live instant once, earliest first, and forget the others cheaply."""

from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from batcher.core.dispatch.deadlines import Deadlines


def test_nothing_is_due_when_nothing_is_set() -> None:
    deadlines = Deadlines()

    assert deadlines.first() == inf
    assert deadlines.pop_due(now=1e9) == []
    assert len(deadlines) == 0


def test_what_is_due_comes_earliest_first_and_once() -> None:
    deadlines = Deadlines()
    for key, at in [(1, 3.0), (2, 1.0), (3, 2.0), (4, 9.0)]:
        deadlines.set(key, at)

    assert deadlines.first() == 1.0
    assert deadlines.pop_due(now=3.0) == [2, 3, 1]
    assert deadlines.pop_due(now=3.0) == []
    assert deadlines.first() == 9.0


def test_an_instant_is_due_at_that_very_instant() -> None:
    deadlines = Deadlines()
    deadlines.set(1, 1.5)

    assert deadlines.pop_due(now=1.4999) == []
    assert deadlines.pop_due(now=1.5) == [1]


def test_one_that_is_called_off_is_never_delivered() -> None:
    deadlines = Deadlines()
    deadlines.set(1, 1.0)
    deadlines.set(2, 2.0)

    deadlines.discard(1)
    deadlines.discard(77)

    assert len(deadlines) == 1
    assert deadlines.first() == 2.0
    assert deadlines.pop_due(now=5.0) == [2]


def test_one_that_is_moved_counts_only_where_it_was_moved_to() -> None:
    deadlines = Deadlines()
    deadlines.set(1, 1.0)
    deadlines.set(1, 5.0)
    assert deadlines.first() == 5.0
    deadlines.set(1, 3.0)

    assert deadlines.pop_due(now=4.0) == [1]
    assert deadlines.pop_due(now=9.0) == []


def test_set_again_after_a_discard_at_the_same_instant_delivers_once() -> None:
    deadlines = Deadlines()
    deadlines.set(1, 1.0)
    deadlines.discard(1)
    deadlines.set(1, 1.0)

    assert deadlines.pop_due(now=1.0) == [1]
    assert deadlines.pop_due(now=1.0) == []
    deadlines.check()


def test_an_endless_deadline_is_never_due() -> None:
    deadlines = Deadlines()
    deadlines.set(1, inf)

    assert deadlines.first() == inf
    assert deadlines.pop_due(now=1e300) == []
    assert len(deadlines) == 1


def test_moving_one_for_ever_does_not_pile_entries_up() -> None:
    deadlines = Deadlines()
    for step in range(1000):
        deadlines.set(1, float(step))
        deadlines.check()

    assert deadlines.pop_due(now=1e9) == [1]


class DeadlinesMachine(RuleBasedStateMachine):
    """Against a plain dict and `min`."""

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = Deadlines()
        self.model: dict[int, float] = {}

    @rule(key=st.integers(0, 9), at=st.sampled_from([0.0, 0.1, 0.2, 0.3, 1.0, 2.0, inf]))
    def set(self, key: int, at: float) -> None:
        self.deadlines.set(key, at)
        self.model[key] = at

    @rule(key=st.integers(0, 9))
    def discard(self, key: int) -> None:
        self.deadlines.discard(key)
        self.model.pop(key, None)

    @rule(now=st.sampled_from([0.0, 0.1, 0.25, 0.3, 1.0, 5.0]))
    def pop_due(self, now: float) -> None:
        due = self.deadlines.pop_due(now=now)
        assert due == sorted((key for key, at in self.model.items() if at <= now), key=lambda key: (self.model[key], key))
        for key in due:
            del self.model[key]

    @rule()
    def first(self) -> None:
        assert self.deadlines.first() == min(self.model.values(), default=inf)

    @invariant()
    def laws(self) -> None:
        assert len(self.deadlines) == len(self.model)
        self.deadlines.check()


TestDeadlinesMachine = DeadlinesMachine.TestCase
TestDeadlinesMachine.settings = settings(derandomize=True, max_examples=60, stateful_step_count=50, deadline=None)
