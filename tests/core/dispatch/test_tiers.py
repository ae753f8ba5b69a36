"""The queues: who is taken next, who may wait, who gives way, and that nobody gets lost."""

from collections.abc import Iterable

import pytest

from batcher.core.dispatch.tiers import TierQueue, Tiers
from batcher.types import Request
from tests.core.examples import a_request


def some_tiers(*, max_requests: int = 1000, max_bytes: int = 2**20) -> Tiers:
    return Tiers(("paid", "free"), max_requests=max_requests, max_bytes=max_bytes)


def push_all(tiers: Tiers, requests: Iterable[Request]) -> None:
    for request in requests:
        assert tiers.push(request) == []


def ids(requests: Iterable[Request]) -> list[int]:
    return [request.id for request in requests]


# who is taken


def test_paid_goes_first_and_free_fills_what_is_left() -> None:
    """SPEC S1.4."""
    tiers = some_tiers()
    push_all(tiers, [a_request(1, tier="free"), a_request(2, tier="free"), a_request(3), a_request(4)])

    assert ids(tiers.take(3, now=0.0)) == [3, 4, 1]
    assert ids(tiers.take(3, now=0.0)) == [2]
    assert tiers.take(3, now=0.0) == ()


def test_one_tenant_alone_is_served_in_order_of_arrival() -> None:
    tiers = some_tiers()
    push_all(tiers, [a_request(request_id) for request_id in [5, 3, 9]])

    assert ids(tiers.take(50, now=0.0)) == [5, 3, 9]


def test_tenants_of_a_tier_take_turns_one_request_a_turn() -> None:
    """A burst of one customer may not ruin the others' latency: Bob and Cy wait for one of Ann's hundred, not for all."""
    tiers = some_tiers()
    push_all(tiers, [a_request(request_id, tenant="ann") for request_id in range(100)])
    push_all(tiers, [a_request(200, tenant="bob"), a_request(201, tenant="bob"), a_request(300, tenant="cy")])

    assert ids(tiers.take(7, now=0.0)) == [0, 200, 300, 1, 201, 2, 3]


def test_the_turn_goes_on_from_one_batch_to_the_next() -> None:
    """Were each batch to begin with the same tenant again, batches of one would serve nobody else."""
    tiers = some_tiers()
    push_all(tiers, [a_request(1, tenant="ann"), a_request(2, tenant="ann"), a_request(3, tenant="ann")])
    push_all(tiers, [a_request(4, tenant="bob"), a_request(5, tenant="bob")])

    assert [ids(tiers.take(1, now=0.0)) for _ in range(5)] == [[1], [4], [2], [5], [3]]


def test_a_tenant_that_comes_back_goes_behind_those_that_wait() -> None:
    tiers = some_tiers()
    push_all(tiers, [a_request(1, tenant="ann"), a_request(2, tenant="bob"), a_request(3, tenant="bob")])
    assert ids(tiers.take(1, now=0.0)) == [1]

    push_all(tiers, [a_request(4, tenant="ann")])

    assert ids(tiers.take(3, now=0.0)) == [2, 4, 3]


def test_the_same_tenant_may_wait_in_two_tiers() -> None:
    tiers = some_tiers()
    push_all(tiers, [a_request(1, tier="free"), a_request(2, tier="paid")])

    assert ids(tiers.take(2, now=0.0)) == [2, 1]


# the starving


def test_a_lower_tier_gets_one_slot_of_a_batch_once_its_oldest_has_waited_a_second() -> None:
    """B59: strict priority starved the low tier while paid filled every batch."""
    tiers = some_tiers()
    push_all(tiers, [a_request(index, tier="free", arrived_at=1.0 + index) for index in range(2)])
    push_all(tiers, [a_request(10 + index, arrived_at=1.0) for index in range(8)])

    assert ids(tiers.take(3, now=1.9)) == [10, 11, 12]
    assert ids(tiers.take(3, now=2.0)) == [0, 13, 14]
    assert ids(tiers.take(3, now=2.1)) == [15, 16, 17]
    assert ids(tiers.take(3, now=3.0)) == [1]
    tiers.check()
    assert (tiers.num_waiting, tiers.num_bytes) == (0, 0)


def test_a_batch_of_one_is_never_spent_on_the_starving() -> None:
    """One slot of one would turn the order of the tiers upside down: a canary, or `single`, serves strictly."""
    tiers = some_tiers()
    push_all(tiers, [a_request(1, tier="free", arrived_at=0.0), a_request(2, arrived_at=9.0)])

    assert ids(tiers.take(1, now=9.0)) == [2]


# leaving a line


def test_one_that_leaves_from_the_middle_does_not_disturb_the_others() -> None:
    tiers = some_tiers()
    requests = [a_request(request_id, tenant="ann", num_bytes=10 * request_id) for request_id in range(1, 6)]
    push_all(tiers, [*requests, a_request(9, tenant="bob")])

    assert tiers.remove(requests[2]) is requests[2]

    tiers.check()
    assert not tiers.is_waiting(requests[2])
    assert tiers.is_waiting(requests[3])
    assert (tiers.num_waiting, tiers.num_bytes) == (5, 130)
    assert ids(tiers.take(50, now=0.0)) == [1, 9, 2, 4, 5]
    assert (tiers.num_waiting, tiers.num_bytes) == (0, 0)


def test_the_last_of_a_line_takes_the_line_with_it() -> None:
    """Else each tenant that ever came would leave a line behind."""
    tiers = some_tiers()
    request = a_request(1, tenant="ann")
    push_all(tiers, [request, a_request(2, tenant="bob")])

    tiers.remove(request)

    (paid, _) = tiers
    assert paid.num_tenants == 1
    assert paid.held_by("ann") == (0, 0)
    assert paid.held_by("bob") == (1, 10)
    assert ids(paid) == [2]


def test_one_that_does_not_wait_cannot_be_removed() -> None:
    queue = TierQueue("paid")
    queue.push(a_request(1))

    with pytest.raises(KeyError):
        queue.remove(2)

    assert ids(queue) == [1]
    queue.check()


def test_the_oldest_is_found_across_tiers_and_turns() -> None:
    tiers = some_tiers()
    first = a_request(1, tier="free", arrived_at=1.0)
    push_all(tiers, [first, a_request(2, tenant="bob", arrived_at=2.0), a_request(3, arrived_at=3.0)])
    assert tiers.oldest_at() == 1.0

    tiers.remove(first)
    assert tiers.oldest_at() == 2.0
    tiers.take(1, now=0.0)

    assert tiers.oldest_at() == 3.0


# room


def test_one_tenant_alone_may_fill_half_of_the_room() -> None:
    """Choudhury and Hahne, alpha = 1: a tenant may hold no more than what is still free."""
    tiers = some_tiers(max_requests=100)
    num = 0
    while tiers.has_room_for(a_request(num)):
        tiers.push(a_request(num))
        num += 1

    assert num == 50
    assert tiers.has_room_for(a_request(999, tenant="bob"))


def test_of_many_tenants_each_gets_an_equal_share_and_one_share_stays_free() -> None:
    tiers = some_tiers(max_requests=100)
    request_id = 0
    for tenant in ["ann", "bob", "cy"]:
        while tiers.has_room_for(a_request(request_id, tenant=tenant)):
            tiers.push(a_request(request_id, tenant=tenant))
            request_id += 1
    (paid, _) = tiers

    # Ann was alone, so she holds more than what would be hers now; she gets no more until others leave.
    assert [paid.held_by(tenant)[0] for tenant in ["ann", "bob", "cy"]] == [50, 25, 13]
    assert tiers.has_room_for(a_request(999, tenant="dan"))


def test_the_bound_in_bytes_holds_by_the_same_rule() -> None:
    """B39: the queue is bounded in bytes as well, and one tenant's large inputs leave half of them to others."""
    tiers = some_tiers(max_bytes=1000)
    push_all(tiers, [a_request(1, num_bytes=300)])

    assert tiers.has_room_for(a_request(2, num_bytes=400))
    assert not tiers.has_room_for(a_request(2, num_bytes=401))
    assert tiers.has_room_for(a_request(2, num_bytes=700, tenant="bob"))
    assert not tiers.has_room_for(a_request(2, num_bytes=701, tenant="bob"))


def test_a_room_of_one_request_holds_one() -> None:
    """B12: the edges of the settings work, here a queue of one."""
    tiers = some_tiers(max_requests=1, max_bytes=10)

    assert tiers.has_room_for(a_request(1))
    assert not tiers.has_room_for(a_request(1, num_bytes=11))
    tiers.push(a_request(1))

    assert not tiers.has_room_for(a_request(2, tenant="bob"))
    tiers.check()


def test_to_push_without_room_is_the_callers_fault_and_changes_nothing() -> None:
    tiers = some_tiers(max_requests=1)
    tiers.push(a_request(1))

    with pytest.raises(AssertionError):
        tiers.push(a_request(2))

    assert tiers.num_waiting == 1
    tiers.check()


# giving way


def test_what_a_lower_tier_holds_counts_as_free_for_a_higher_one() -> None:
    """B39: free is shed first. Its newest gives way, since its oldest is nearest to being served."""
    tiers = some_tiers(max_requests=4)
    push_all(tiers, [a_request(index, tier="free", tenant=f"t{index}") for index in range(4)])

    assert tiers.has_room_for(a_request(10))
    assert not tiers.has_room_for(a_request(11, tier="free", tenant="zoe"))
    assert ids(tiers.push(a_request(10))) == [3]
    assert ids(tiers.push(a_request(11))) == [2]

    assert ids(tiers.take(4, now=0.0)) == [10, 11, 0, 1]


def test_a_large_request_displaces_as_many_as_it_takes_and_no_more() -> None:
    tiers = some_tiers(max_bytes=1000)
    push_all(tiers, [a_request(index, tier="free", tenant=f"t{index}", num_bytes=200) for index in range(5)])

    assert ids(tiers.push(a_request(10, num_bytes=500))) == [4, 3, 2]

    assert (tiers.num_waiting, tiers.num_bytes) == (3, 900)
    tiers.check()


def test_nobody_is_displaced_while_there_is_room() -> None:
    tiers = some_tiers(max_requests=4)
    push_all(tiers, [a_request(1, tier="free"), a_request(2, tier="free", tenant="bob")])

    assert tiers.push(a_request(3)) == []
    assert tiers.num_waiting == 3


def test_a_tier_never_displaces_its_equals_nor_its_betters() -> None:
    tiers = some_tiers(max_requests=2)
    push_all(tiers, [a_request(1, tenant="ann"), a_request(2, tenant="bob")])

    assert not tiers.has_room_for(a_request(3, tenant="cy"))
    assert not tiers.has_room_for(a_request(3, tier="free", tenant="cy"))


def test_the_lowest_of_three_tiers_gives_way_first() -> None:
    tiers = Tiers(("a", "b", "c"), max_requests=3, max_bytes=1000)
    push_all(tiers, [a_request(1, tier="c"), a_request(2, tier="b"), a_request(3, tier="b", tenant="bob")])

    assert ids(tiers.push(a_request(10, tier="a"))) == [1]
    assert ids(tiers.push(a_request(11, tier="a", tenant="bob"))) == [3]

    assert ids(tiers.take(3, now=0.0)) == [10, 11, 2]


# how many are ahead


def test_a_newcomer_waits_for_one_request_of_each_other_tenant() -> None:
    tiers = some_tiers()
    push_all(tiers, [a_request(index, tenant="flood") for index in range(400)])
    push_all(tiers, [a_request(1000 + index, tenant=f"t{index}") for index in range(20)])

    assert tiers.num_ahead_of("paid", "new") == 21
    assert tiers.num_ahead_of("paid", "flood") == 420
    assert tiers.num_ahead_of("paid", "t3") == 1 + 2 * 20


def test_a_lower_tier_waits_for_all_of_the_higher_ones() -> None:
    tiers = some_tiers()
    push_all(tiers, [a_request(index) for index in range(7)])

    assert tiers.num_ahead_of("free", "new") == 7
    assert tiers.num_ahead_of("paid", "new") == 1
    with pytest.raises(KeyError):
        tiers.num_ahead_of("gold", "new")
