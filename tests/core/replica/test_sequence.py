"""A sequence moves along its table of states, and says nothing of its content."""

import pytest

from batcher.core.replica.sequence import TRANSITIONS, SequenceState
from tests.core.replica.fake_device import a_sequence


def test_every_state_is_in_the_table_and_can_be_left_but_the_last() -> None:
    assert set(TRANSITIONS) == set(SequenceState)
    assert [state for state, following in TRANSITIONS.items() if not following] == [SequenceState.FINISHED]


@pytest.mark.parametrize("origin", list(SequenceState))
@pytest.mark.parametrize("target", list(SequenceState))
def test_a_transition_that_is_not_in_the_table_fails_and_changes_nothing(origin: SequenceState, target: SequenceState) -> None:
    sequence = a_sequence(1)
    sequence.state = origin
    if target in TRANSITIONS[origin]:
        sequence.move_to(target)
        assert sequence.state is target
    else:
        with pytest.raises(AssertionError, match="cannot become"):
            sequence.move_to(target)
        assert sequence.state is origin


def test_nobody_shares_a_cache_by_default() -> None:
    assert a_sequence(1, tenant="ann").salt == b"ann"
    assert a_sequence(1, tenant="ann", salt=b"").salt == b""


def test_its_repr_tells_counts_and_no_content() -> None:
    assert repr(a_sequence(1, 4, 9)) == "<Sequence 1 of paid/ann waiting: 4+0/9 tokens, 0 computed>"
