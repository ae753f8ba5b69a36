"""The queues: who may wait, and who gives way."""

from batcher.core.dispatch.tiers import Tiers
from tests.core.dispatch.lines import ids_of, push_all, some_tiers
from tests.core.examples import a_request

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


# giving way


def test_what_a_lower_tier_holds_counts_as_free_for_a_higher_one() -> None:
    """B39: free is shed first. Its newest gives way, since its oldest is nearest to being served."""
    tiers = some_tiers(max_requests=4)
    push_all(tiers, [a_request(index, tier="free", tenant=f"t{index}") for index in range(4)])

    assert tiers.has_room_for(a_request(10))
    assert not tiers.has_room_for(a_request(11, tier="free", tenant="zoe"))
    assert ids_of(tiers.push(a_request(10))) == [3]
    assert ids_of(tiers.push(a_request(11))) == [2]

    assert ids_of(tiers.take(4, now=0.0)) == [10, 11, 0, 1]


def test_a_large_request_displaces_as_many_as_it_takes_and_no_more() -> None:
    tiers = some_tiers(max_bytes=1000)
    push_all(tiers, [a_request(index, tier="free", tenant=f"t{index}", num_bytes=200) for index in range(5)])

    assert ids_of(tiers.push(a_request(10, num_bytes=500))) == [4, 3, 2]

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

    assert ids_of(tiers.push(a_request(10, tier="a"))) == [1]
    assert ids_of(tiers.push(a_request(11, tier="a", tenant="bob"))) == [3]

    assert ids_of(tiers.take(3, now=0.0)) == [10, 11, 2]
