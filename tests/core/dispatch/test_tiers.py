"""The queues: who is taken next, who leaves the line, and how many are ahead."""

import pytest

from batcher.core.dispatch.tiers import TierQueue
from tests.core.dispatch.lines import ids_of, push_all, some_tiers
from tests.core.examples import a_request

# who is taken


def test_paid_goes_first_and_free_fills_what_is_left() -> None:
    """SPEC S1.4."""
    tiers = some_tiers()
    push_all(tiers, [a_request(1, tier="free"), a_request(2, tier="free"), a_request(3), a_request(4)])

    assert ids_of(tiers.take(3, now=0.0)) == [3, 4, 1]
    assert ids_of(tiers.take(3, now=0.0)) == [2]
    assert tiers.take(3, now=0.0) == ()


def test_one_tenant_alone_is_served_in_order_of_arrival() -> None:
    tiers = some_tiers()
    push_all(tiers, [a_request(request_id) for request_id in [5, 3, 9]])

    assert ids_of(tiers.take(50, now=0.0)) == [5, 3, 9]


def test_tenants_of_a_tier_take_turns_one_request_a_turn() -> None:
    """A burst of one customer may not ruin the others' latency: Bob and Cy wait for one of Ann's hundred, not for all."""
    tiers = some_tiers()
    push_all(tiers, [a_request(request_id, tenant="ann") for request_id in range(100)])
    push_all(tiers, [a_request(200, tenant="bob"), a_request(201, tenant="bob"), a_request(300, tenant="cy")])

    assert ids_of(tiers.take(7, now=0.0)) == [0, 200, 300, 1, 201, 2, 3]


def test_the_turn_goes_on_from_one_batch_to_the_next() -> None:
    """Were each batch to begin with the same tenant again, batches of one would serve nobody else."""
    tiers = some_tiers()
    push_all(tiers, [a_request(1, tenant="ann"), a_request(2, tenant="ann"), a_request(3, tenant="ann")])
    push_all(tiers, [a_request(4, tenant="bob"), a_request(5, tenant="bob")])

    assert [ids_of(tiers.take(1, now=0.0)) for _ in range(5)] == [[1], [4], [2], [5], [3]]


def test_a_tenant_that_comes_back_goes_behind_those_that_wait() -> None:
    tiers = some_tiers()
    push_all(tiers, [a_request(1, tenant="ann"), a_request(2, tenant="bob"), a_request(3, tenant="bob")])
    assert ids_of(tiers.take(1, now=0.0)) == [1]

    push_all(tiers, [a_request(4, tenant="ann")])

    assert ids_of(tiers.take(3, now=0.0)) == [2, 4, 3]


def test_the_same_tenant_may_wait_in_two_tiers() -> None:
    tiers = some_tiers()
    push_all(tiers, [a_request(1, tier="free"), a_request(2, tier="paid")])

    assert ids_of(tiers.take(2, now=0.0)) == [2, 1]


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
    assert ids_of(tiers.take(50, now=0.0)) == [1, 9, 2, 4, 5]
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
    assert ids_of(paid) == [2]


def test_one_that_does_not_wait_cannot_be_removed() -> None:
    queue = TierQueue("paid")
    queue.push(a_request(1))

    with pytest.raises(KeyError):
        queue.remove(2)

    assert ids_of(queue) == [1]
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


# how many are ahead


def test_a_newcomer_waits_for_one_request_of_each_other_tenant() -> None:
    tiers = some_tiers()
    push_all(tiers, [a_request(index, tenant="flood") for index in range(400)])
    push_all(tiers, [a_request(1000 + index, tenant=f"t{index}") for index in range(20)])

    assert tiers.num_ahead_of("paid", "new") == 21
    assert tiers.num_ahead_of("paid", "flood") == 420
    assert tiers.num_ahead_of("paid", "t3") == 1 + 2 * 20


def test_newcomers_go_before_a_tenants_second_request_and_not_before_its_first() -> None:
    """Of a tenant in mid-turn every other has half a turn and then whole ones, or what is drained while its own queue is."""
    tiers = some_tiers()
    push_all(tiers, [a_request(index, tenant=f"t{index}") for index in range(21)])
    push_all(tiers, [a_request(100 + index, tenant="t3") for index in range(2)])

    assert tiers.num_ahead_of("paid", "new", fresh_share=lambda: 1.5) == 21
    assert tiers.num_ahead_of("paid", "t3") == 23
    assert tiers.num_ahead_of("paid", "t3", fresh_share=lambda: 0.5) == 2 * 23
    assert tiers.num_ahead_of("paid", "t3", fresh_share=lambda: 0.99) == 3 + 10 + 3 * 20
    assert tiers.num_ahead_of("paid", "t3", fresh_share=lambda: 1.5) == 3 + 10 + 3 * 20
    assert tiers.num_ahead_of("free", "new", fresh_share=lambda: 1.5) == 23


def test_a_lower_tier_waits_for_all_of_the_higher_ones() -> None:
    tiers = some_tiers()
    push_all(tiers, [a_request(index) for index in range(7)])

    assert tiers.num_ahead_of("free", "new") == 7
    assert tiers.num_ahead_of("paid", "new") == 1
    with pytest.raises(KeyError):
        tiers.num_ahead_of("gold", "new")
