"""The block pool, case by case: the three states, what is shared, and what is remembered under which name."""

from batcher.core.replica.blocks import BlockPool, PoolStatistics
from batcher.core.replica.prefix import block_hashes, chain_root
from batcher.types import BLOCK_SIZE
from tests.core.replica.chains import A, B, C, D, a_pool_with_a_cached_chain

# the three states


def test_a_new_pool_is_free() -> None:
    pool = BlockPool(4)

    pool.check()
    assert repr(pool) == "<BlockPool 4 free, 0 held, 0 cached, of 4>"
    assert pool.statistics() == PoolStatistics(
        num_blocks=4, num_free=4, num_held=0, num_cached=0, num_hit_blocks=0, num_new_blocks=0, num_evicted=0
    )


def test_a_block_that_nobody_published_is_free_again_after_its_release() -> None:
    pool = BlockPool(4)
    table = pool.take([], 3)
    assert sorted(table) == [0, 1, 2]
    assert repr(pool) == "<BlockPool 1 free, 3 held, 0 cached, of 4>"

    pool.release(table)

    pool.check()
    assert repr(pool) == "<BlockPool 4 free, 0 held, 0 cached, of 4>"


def test_a_published_block_is_remembered_after_its_release() -> None:
    pool = BlockPool(4)
    table = pool.take([], 3)
    pool.publish(table[0], A)
    pool.publish(table[1], B)
    pool.release(table)

    pool.check()
    assert repr(pool) == "<BlockPool 2 free, 0 held, 2 cached, of 4>"
    assert pool.find([A, B, C]) == table[:2]


def test_a_block_can_be_shared_while_its_first_owner_runs() -> None:
    pool = BlockPool(4)
    first = pool.take([], 1)
    pool.publish(first[0], A)

    second = pool.take(pool.find([A]), 1)

    pool.check()
    assert second[0] == first[0]
    assert pool.refcount(first[0]) == 2
    assert repr(pool) == "<BlockPool 2 free, 2 held, 0 cached, of 4>"
    pool.release(first)
    assert repr(pool) == "<BlockPool 2 free, 2 held, 0 cached, of 4>"
    pool.release(second)
    assert repr(pool) == "<BlockPool 3 free, 0 held, 1 cached, of 4>"


def test_growing_takes_one_block_until_none_is_left() -> None:
    pool, cached = a_pool_with_a_cached_chain(2, [A])
    (free,) = {0, 1} - set(cached)

    assert pool.grow() == free
    assert pool.grow() == cached[0]
    assert pool.grow() is None

    pool.check()
    assert repr(pool) == "<BlockPool 0 free, 2 held, 0 cached, of 2>"


def test_an_empty_table_costs_nothing() -> None:
    pool = BlockPool(1)
    assert pool.num_short([], 0) <= 0
    assert pool.take([], 0) == []
    pool.release([])
    pool.check()


def test_memory_full_of_cache_is_not_memory_in_use() -> None:
    """CASES B100: whoever scales or admits by the gauge must see that an idle replica is idle."""
    pool, _ = a_pool_with_a_cached_chain(100, [number.to_bytes(32, "big") for number in range(97)])

    statistics = pool.statistics()

    assert (statistics.num_free, statistics.num_held, statistics.num_cached) == (3, 0, 97)
    assert pool.num_available == 100
    assert pool.num_short([], 100) == 0


def test_a_prefix_that_64_sequences_share_counts_once() -> None:
    """CASES B53."""
    pool = BlockPool(200)
    tables = []
    for _ in range(64):
        hits = pool.find([A, B])
        table = pool.take(hits, 3 - len(hits))
        for block, block_hash in zip(table, [A, B], strict=False):
            pool.publish(block, block_hash)
        tables.append(table)
        pool.check()
    assert (pool.num_held, pool.num_cached, pool.refcount(tables[0][0])) == (2 + 64, 0, 64)
    assert pool.statistics().num_hit_blocks == 2 * 63

    for table in tables:
        assert pool.num_cached == 0
        pool.release(table)
        pool.check()

    assert repr(pool) == "<BlockPool 198 free, 0 held, 2 cached, of 200>"


# two blocks with one hash


def test_of_two_blocks_with_one_hash_the_first_is_known_and_the_other_is_not() -> None:
    """CASES B50: the same prefix twice in one step, before either was computed."""
    pool = BlockPool(4)
    first, second = pool.take([], 1), pool.take([], 1)
    pool.publish(first[0], A)
    pool.publish(second[0], A)
    pool.check()

    pool.release(first)

    pool.check()
    assert pool.find([A]) == first
    third = pool.take(pool.find([A]), 0)
    assert third == first
    pool.release(second)
    pool.check()
    assert pool.find([A]) == first
    assert repr(pool) == "<BlockPool 3 free, 1 held, 0 cached, of 4>"


def test_releasing_the_duplicate_first_leaves_the_entry_of_the_other() -> None:
    pool = BlockPool(4)
    first, second = pool.take([], 1), pool.take([], 1)
    pool.publish(first[0], A)
    pool.publish(second[0], A)

    pool.release(second)

    pool.check()
    assert pool.find([A]) == first
    assert repr(pool) == "<BlockPool 3 free, 1 held, 0 cached, of 4>"


def test_a_duplicate_may_take_over_once_the_first_is_evicted() -> None:
    pool = BlockPool(2)
    first, second = pool.take([], 1), pool.take([], 1)
    pool.publish(first[0], A)
    pool.publish(second[0], A)
    pool.release(first)
    assert pool.grow() == first[0]
    assert pool.find([A]) == []

    pool.publish(second[0], A)

    pool.check()
    assert pool.find([A]) == second


def test_publishing_again_what_is_published_changes_nothing() -> None:
    pool = BlockPool(2)
    table = pool.take([], 1)
    pool.publish(table[0], A)

    pool.publish(table[0], A)

    pool.check()
    assert pool.find([A]) == table


# finding


def test_a_chain_is_found_up_to_its_first_gap() -> None:
    pool, table = a_pool_with_a_cached_chain(4, [A, B, D])
    assert pool.find([A, B, C, D]) == table[:2]
    assert pool.find([C, A]) == []
    assert pool.find([]) == []


def test_finding_changes_nothing() -> None:
    """A lookup that refreshed the order would let a sequence that waits, and is looked up each step, empty the cache."""
    pool, _ = a_pool_with_a_cached_chain(2, [A])
    other = pool.take([], 1)
    pool.publish(other[0], B)
    pool.release(other)
    before = pool.statistics()

    pool.find([A])

    assert pool.statistics() == before
    pool.grow()
    assert (pool.find([A]), pool.find([B])) == ([], other)


def test_a_prefix_is_found_for_its_tenant_and_version_only() -> None:
    """CASES B63, with the real chain."""
    tokens = list(range(2 * BLOCK_SIZE))
    anns = chain_root(model_version="m-1", salt=b"ann")
    pool, table = a_pool_with_a_cached_chain(4, block_hashes(anns, tokens))

    assert pool.find(block_hashes(anns, tokens)) == table
    assert pool.find(block_hashes(chain_root(model_version="m-1", salt=b"bob"), tokens)) == []
    assert pool.find(block_hashes(chain_root(model_version="m-2", salt=b"ann"), tokens)) == []
    assert pool.find(block_hashes(anns, [*tokens[:-1], 999])) == table[:1]


def test_without_a_prefix_cache_nothing_is_known() -> None:
    pool = BlockPool(4, has_prefix_cache=False)
    table = pool.take([], 2)
    pool.publish(table[0], A)
    assert pool.find([A]) == []

    pool.release(table)

    pool.check()
    assert repr(pool) == "<BlockPool 4 free, 0 held, 0 cached, of 4>"
