"""The block pool, case by case: who fits, and who is evicted to make room."""

import pytest

from batcher.core.replica.blocks import BlockPool
from tests.core.replica.chains import A, B, C, D, a_pool_with_a_cached_chain

# room


def test_a_cached_hit_costs_one_available_block() -> None:
    """CASES B51: of 4 blocks one is held and 3 are the cached prefix. They cannot be reused and evicted at the same time."""
    pool = BlockPool(4)
    holder = pool.take([], 1)
    table = pool.take([], 3)
    for block, block_hash in zip(table, [A, B, C], strict=True):
        pool.publish(block, block_hash)
    pool.release(table)
    hits = pool.find([A, B, C])
    before = pool.statistics()

    assert pool.num_short(hits, 2) == 2
    with pytest.raises(AssertionError, match="3 hits and 2 new"):
        pool.take(hits, 2)

    pool.check()
    assert pool.statistics() == before
    assert pool.find([A, B, C]) == table
    pool.release(holder)
    assert pool.num_short(hits, 1) == 0
    assert pool.take(hits, 1) == [*table, *holder]
    pool.check()
    assert [pool.refcount(block) for block in range(4)] == [1, 1, 1, 1]


def test_a_hit_on_a_held_block_costs_nothing() -> None:
    pool = BlockPool(3)
    table = pool.take([], 1)
    pool.publish(table[0], A)

    assert pool.num_short(table, 2) == 0
    assert pool.num_short(table, 3) == 1


def test_what_would_be_left_over_is_known_before() -> None:
    """Five available, one of them hit and three taken: one remains."""
    pool, table = a_pool_with_a_cached_chain(5, [A, B])
    assert pool.num_short(table[:1], 3) == -1


def test_a_pool_of_a_million_blocks_is_a_pool_like_another() -> None:
    pool = BlockPool(1_000_000)
    pool.release(pool.take([], 1000))
    pool.check()
    assert pool.num_free == 1_000_000


# eviction


def test_free_blocks_go_before_cached_ones() -> None:
    pool, cached = a_pool_with_a_cached_chain(4, [A, B])

    table = pool.take([], 2)

    assert not set(table) & set(cached)
    assert pool.find([A, B]) == cached
    assert pool.statistics().num_evicted == 0


def test_the_tail_of_a_chain_is_evicted_before_its_head() -> None:
    """Without its head a tail cannot be found, so to evict the head first is to lose both."""
    pool, table = a_pool_with_a_cached_chain(3, [A, B, C])

    assert pool.take([], 1) == [table[2]]
    assert pool.find([A, B, C]) == table[:2]
    assert pool.take([], 1) == [table[1]]
    assert pool.find([A, B, C]) == table[:1]

    pool.check()
    assert pool.statistics().num_evicted == 2


def test_the_least_recently_used_is_evicted_first() -> None:
    """The first to come was used again, so the second goes."""
    pool = BlockPool(3)
    tables = [pool.take([], 1) for _ in range(3)]
    for table, block_hash in zip(tables, [A, B, C], strict=True):
        pool.publish(table[0], block_hash)
        pool.release(table)
    pool.release(pool.take(pool.find([A]), 0))

    assert pool.take([], 2) == tables[1] + tables[2]
    assert pool.find([A]) == tables[0]


def test_a_hit_is_not_evicted_for_the_blocks_that_follow_it() -> None:
    """The hits are the least recently used of all, and every available block is asked for."""
    pool, old = a_pool_with_a_cached_chain(4, [A, B])
    young = pool.take([], 2)
    pool.publish(young[0], C)
    pool.publish(young[1], D)
    pool.release(young)

    table = pool.take(pool.find([A, B]), 2)

    pool.check()
    assert table == [*old, young[1], young[0]]
    assert pool.find([A, B]) == old
    assert (pool.find([C]), pool.find([D])) == ([], [])


def test_a_held_block_is_never_evicted() -> None:
    pool = BlockPool(3)
    table = pool.take([], 2)
    pool.publish(table[0], A)
    pool.publish(table[1], B)

    assert pool.grow() is not None
    assert pool.grow() is None
    assert pool.num_short([], 1) == 1

    pool.check()
    assert pool.find([A, B]) == table


def test_a_hash_does_not_outlive_its_block() -> None:
    """Else the next owner's tokens would be served as the old prefix."""
    pool, old = a_pool_with_a_cached_chain(1, [A])
    table = pool.take([], 1)
    assert table == old
    assert pool.find([A]) == []

    pool.release(table)

    pool.check()
    assert repr(pool) == "<BlockPool 1 free, 0 held, 0 cached, of 1>"
    pool.publish(pool.take([], 1)[0], B)
    assert (pool.find([A]), pool.find([B])) == ([], old)
