"""What a broken caller or a damaged pool meets: an illegal act raises and changes nothing, and each law finds its breach."""

from collections.abc import Callable

import pytest

from batcher.core.replica.blocks import BlockPool
from tests.core.replica.chains import A, B, C, D


def a_pool_in_all_states() -> BlockPool:
    """Block 0 is cached as A; 1 is shared by two tables and known as B; 2 is held, not published; 3, 4 and 5 are free."""
    pool = BlockPool(6)
    first = pool.take([], 3)
    pool.publish(first[0], A)
    pool.publish(first[1], B)
    pool.take([first[1]], 0)
    pool.release([first[0]])
    pool.check()
    assert (pool.find([A]), pool.find([B])) == ([0], [1])
    assert [pool.refcount(block) for block in range(6)] == [0, 2, 1, 0, 0, 0]
    return pool


def everything_of(pool: BlockPool) -> object:
    refcounts = [pool.refcount(block) for block in range(pool.num_blocks)]
    return pool.statistics(), refcounts, [pool.find([block_hash]) for block_hash in (A, B, C, D)]


ILLEGAL_ACTS: dict[str, Callable[[BlockPool], object]] = {
    "publish a free block": lambda pool: pool.publish(3, C),
    "publish a cached block": lambda pool: pool.publish(0, A),
    "publish under a second hash": lambda pool: pool.publish(1, C),
    "release a free block": lambda pool: pool.release([2, 3]),
    "release a cached block": lambda pool: pool.release([0, 1]),
    "release a block twice in one table": lambda pool: pool.release([1, 1]),
    "release a block of a table's padding": lambda pool: pool.release([1, -5]),
    "release a block of another pool": lambda pool: pool.release([1, 6]),
    "take more than there is": lambda pool: pool.take([0], 4),
    "take a free block as a hit": lambda pool: pool.take([1, 3], 0),
    "take an unpublished block as a hit": lambda pool: pool.take([1, 2], 0),
    "take a hit twice": lambda pool: pool.take([1, 1], 0),
}


@pytest.mark.parametrize("act", ILLEGAL_ACTS.values(), ids=ILLEGAL_ACTS.keys())
def test_an_illegal_act_raises_and_changes_nothing(act: Callable[[BlockPool], object]) -> None:
    pool = a_pool_in_all_states()
    before = everything_of(pool)

    with pytest.raises((AssertionError, IndexError)):
        act(pool)

    pool.check()
    assert everything_of(pool) == before


def _set_refcount(pool: BlockPool, block: int, refcount: int) -> None:
    pool._refcounts[block] = refcount


def _swap_hash(pool: BlockPool, block: int, block_hash: bytes | None) -> None:
    pool._hash_of[block] = block_hash


DAMAGES: dict[str, tuple[str, Callable[[BlockPool], object]]] = {
    "a free block is lost": ("lost or counted twice", lambda pool: pool._free.pop()),
    "a cached block is lost": ("lost or counted twice", lambda pool: pool._cached.popitem()),
    "a held block is pushed": ("lost or counted twice", lambda pool: pool._free.append(2)),
    "the index is emptied": ("cannot be found", lambda pool: pool._index.clear()),
    "a free block is pushed for another": ("twice on the stack", lambda pool: pool._free.__setitem__(0, 3)),
    "a held block is pushed for a free one": ("a free block is held", lambda pool: pool._free.__setitem__(0, 2)),
    "a free block has a hash": ("a free block is held or has a hash", lambda pool: _swap_hash(pool, 3, C)),
    "a cached block lost its hash": ("a cached block is held or has no hash", lambda pool: _swap_hash(pool, 0, None)),
    "a shared block lost its hash": ("a shared block has no hash", lambda pool: _swap_hash(pool, 1, None)),
    "two blocks have one hash": ("does not know", lambda pool: _swap_hash(pool, 2, B)),
    "the index names another block": ("the index and a block differ", lambda pool: pool._index.__setitem__(A, 2)),
    "a reference is forgotten": ("the held are miscounted", lambda pool: _set_refcount(pool, 2, 0)),
    "a reference is invented": ("the held are miscounted", lambda pool: _set_refcount(pool, 3, 1)),
    "a reference is dropped too often": ("negative", lambda pool: _set_refcount(pool, 3, -1)),
}


@pytest.mark.parametrize(("law", "damage"), DAMAGES.values(), ids=DAMAGES.keys())
def test_each_law_finds_its_breach(law: str, damage: Callable[[BlockPool], object]) -> None:
    pool = a_pool_in_all_states()

    damage(pool)

    with pytest.raises(AssertionError, match=law):
        pool.check()


def test_a_check_that_is_not_deep_looks_at_counts_and_at_no_block() -> None:
    """CASES B99: a check that an idle service makes again and again must not grow with the cache.

    So it passes over what only a look at the blocks would find, and finds a block that is missing from the count.
    """
    pool = a_pool_in_all_states()
    _set_refcount(pool, 3, -1)
    pool.check(deep=False)

    pool._free.pop()

    with pytest.raises(AssertionError, match="1 cached, of 6"):
        pool.check(deep=False)
