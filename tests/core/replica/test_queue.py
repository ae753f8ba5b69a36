"""The waiting queue by itself."""

import pytest

from batcher.core.replica.queue import WaitingQueue
from batcher.core.replica.sequence import Sequence, SequenceState
from tests.core.replica.fake_device import a_sequence


def a_queue(*sequences: Sequence, max_waiting: int = 100, max_tokens: int = 10_000) -> WaitingQueue:
    queue = WaitingQueue(("paid", "free"), max_waiting=max_waiting, max_tokens=max_tokens)
    for sequence in sequences:
        queue.push(placed(sequence))
    return queue


def placed(sequence: Sequence) -> Sequence:
    """As a scheduler hands it over."""
    sequence.order = sequence.id
    sequence.tier_index = ("paid", "free").index(sequence.tier)
    return sequence


def preempted(sequence: Sequence) -> Sequence:
    sequence.state = SequenceState.PREEMPTED
    return sequence


def test_candidates_are_the_preempted_by_age_and_then_tenants_in_turn() -> None:
    queue = a_queue(
        a_sequence(4, tenant="ann"),
        a_sequence(5, tenant="ann"),
        a_sequence(6, tenant="bob"),
        a_sequence(7, tenant="ann"),
        a_sequence(8, tenant="bob"),
        preempted(a_sequence(3)),
        preempted(a_sequence(1)),
        preempted(a_sequence(2)),
    )
    tier = queue.tiers[0]
    assert [s.id for s in tier.candidates()] == [1, 2, 3, 4, 6, 5, 8, 7]
    tier.take(next(s for s in tier.candidates() if s.id == 4))
    assert [s.id for s in tier.candidates()] == [1, 2, 3, 6, 5, 8, 7]
    assert (len(queue), queue.num_fresh, queue.num_tokens) == (7, 4, 16)
    queue.check()


def test_the_oldest_is_found_among_both_kinds() -> None:
    queue = a_queue(a_sequence(2, arrived_at=2.0), preempted(a_sequence(1, arrived_at=1.0)))
    assert queue.oldest_at() == 1.0
    assert a_queue(a_sequence(2, arrived_at=2.0)).oldest_at() == 2.0
    assert a_queue(preempted(a_sequence(1, arrived_at=1.0, tier="free")), a_sequence(2, arrived_at=2.0)).oldest_at() == 1.0


def test_the_preempted_are_not_displaced_and_take_no_room() -> None:
    queue = a_queue(preempted(a_sequence(1, tier="free")), a_sequence(2, tier="free"), max_waiting=1)
    assert queue.make_room_for(placed(a_sequence(3, tier="free"))) is None
    displaced = queue.make_room_for(placed(a_sequence(4)))
    assert displaced is not None
    assert [s.id for s in displaced] == [2]
    assert len(queue) == 1


def test_nobody_is_displaced_in_vain() -> None:
    """Lower tiers hold too few tokens for the newcomer: it is refused, and they stay."""
    queue = a_queue(a_sequence(1, 30, tier="free"), a_sequence(2, 70), max_tokens=100)
    assert queue.make_room_for(placed(a_sequence(3, 31))) is None
    assert len(queue) == 2
    assert queue.make_room_for(placed(a_sequence(4, 30))) is not None


def test_a_rival_that_is_too_small_is_not_displaced() -> None:
    queue = a_queue(*(a_sequence(n, 10, tenant="flood") for n in range(1, 5)), max_tokens=50)
    assert queue.make_room_for(placed(a_sequence(5, 30, tenant="ann"))) is None
    displaced = queue.make_room_for(placed(a_sequence(6, 20, tenant="ann")))
    assert displaced is not None
    assert [s.id for s in displaced] == [4]


def test_its_check_can_fail() -> None:
    queue = a_queue(a_sequence(1))
    queue.tiers[0].num_tokens += 1
    with pytest.raises(AssertionError, match="miscounted"):
        queue.check()
