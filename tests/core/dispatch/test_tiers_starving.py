"""The queues: one slot in fifty is for whoever starves in the lower tiers (B59)."""

import pytest

from batcher.core.dispatch.tiers import MAX_AGE_S, STARVING_SHARE, Tiers
from tests.core.dispatch.lines import ids_of, push_all, some_tiers
from tests.core.examples import a_request


def flooded(tiers: Tiers, *, num: int = 400) -> Tiers:
    """With more paid requests than are taken; their ids begin at 1000."""
    push_all(tiers, [a_request(1000 + index, arrived_at=9.0) for index in range(num)])
    return tiers


def taken(tiers: Tiers, num_batches: int, size: int, *, now: float = 10.0) -> list[list[int]]:
    return [ids_of(tiers.take(size, now=now)) for _ in range(num_batches)]


def test_the_numbers_are_what_the_documents_promise() -> None:
    assert (MAX_AGE_S, STARVING_SHARE) == (1.0, 50)


@pytest.mark.parametrize(("size", "turn"), [(1, 50), (2, 25), (8, 7), (25, 2), (30, 2), (49, 2), (50, 1), (60, 1)])
def test_of_fifty_slots_one_is_for_the_starving_however_large_batches_are(size: int, turn: int) -> None:
    """Strict priority starved the low tier while paid filled every batch. Batches of one have the slot too: under `single`
    nothing else would ever serve the low tier.
    """
    tiers = flooded(some_tiers())
    push_all(tiers, [a_request(index, tier="free", arrived_at=0.0) for index in range(9)])

    batches = taken(tiers, 2 * turn, size)

    assert [request_id for batch in batches for request_id in batch if request_id < 1000] == [0, 1]
    assert [turn for turn, batch in enumerate(batches, 1) if batch[0] < 1000] == [turn, 2 * turn]
    assert {len(batch) for batch in batches} == {size}
    tiers.check()


def test_only_who_has_waited_for_a_second_has_a_claim() -> None:
    tiers = flooded(some_tiers())
    push_all(tiers, [a_request(1, tier="free", arrived_at=9.5)])

    assert taken(tiers, 2, 50, now=10.49) == [list(range(1000, 1050)), list(range(1050, 1100))]
    assert taken(tiers, 1, 50, now=10.5) == [[1, *range(1100, 1149)]]


def test_while_nobody_starves_the_claim_grows_and_the_first_to_starve_has_it_at_once() -> None:
    tiers = flooded(some_tiers())
    taken(tiers, 30, 2)
    push_all(tiers, [a_request(index, tier="free", arrived_at=0.0) for index in range(2)])

    assert taken(tiers, 2, 2) == [[0, 1060], [1061, 1062]]


def test_a_slot_that_was_had_is_not_had_again_before_fifty_more() -> None:
    tiers = flooded(some_tiers())
    push_all(tiers, [a_request(index, tier="free", arrived_at=0.0) for index in range(3)])
    assert taken(tiers, 1, 50)[0][0] == 0

    firsts = [batch[0] for batch in taken(tiers, 50, 1)]

    assert firsts[:49] == list(range(1049, 1098))
    assert firsts[49] == 1


def test_the_slot_is_of_the_lower_tier_whose_oldest_has_waited_longest() -> None:
    """It went to the second tier each time, so that the third starved on to its deadline."""
    tiers = Tiers(("a", "b", "c"), max_requests=1000, max_bytes=10_000)
    push_all(tiers, [a_request(1000 + index, tier="a", arrived_at=9.0) for index in range(200)])
    push_all(tiers, [a_request(1, tier="c", arrived_at=2.0), a_request(2, tier="c", arrived_at=4.0)])
    push_all(tiers, [a_request(3, tier="b", arrived_at=3.0), a_request(4, tier="b", arrived_at=5.0)])

    assert [batch[0] for batch in taken(tiers, 4, 50)] == [1, 3, 2, 4]
    tiers.check()
    assert (tiers.num_waiting, tiers.num_bytes) == (4, 40)


def test_the_first_tier_never_needs_the_slot_and_never_loses_more() -> None:
    tiers = flooded(some_tiers(), num=20)
    push_all(tiers, [a_request(index, tier="free", arrived_at=0.0) for index in range(40)])

    (batch,) = taken(tiers, 1, 50)

    assert batch == [0, *range(1000, 1020), *range(1, 30)]
