"""Who has which block of the KV cache.

Memory for keys and values is what a replica runs out of first. It is cut into blocks of BLOCK_SIZE tokens (SPEC S6.2), and this
pool says of each block who holds it; the tensors are the backend's, here are only ids. Every block is in exactly one state:

    state    refcount   has a hash          goes to
    free     0          never               held, by `take` or `grow`
    held     1 or more  once published      cached if it has a hash, free if not, when `release` drops the last reference
    cached   0          always              held, by `take`: as a hit with its hash, or evicted, without it, as a new block

Who frees what:

    blocks of a table    | hits: computed by another | new: full, published | new: full, a duplicate | the last, half full |
    refcount             | one for each table        | one for each table   | 1                      | 1                   |
    a hash in the index  | yes                       | yes                  | no: another has it     | no                  |
    after the last one   | cached                    | cached               | free                   | free                |

A sequence owns one reference to each block of its table and gives all of them back in one `release`, however it ends. The
index owns none: it only remembers, and what it alone remembers (the cached) is evicted when a new block is needed and none
is free, least recently used first. So a hash is looked up and taken in one go: what `find` found may be gone after a `take`.

One queue for free and cached blocks was refused: it makes a full cache of an idle replica look like memory in use, to whoever
scales or admits by it (CASES B100). So was a tree of tokens: chained hashes find the same prefixes without nodes to keep.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec


class PoolStatistics(msgspec.Struct, frozen=True, gc=False):
    """A pool at one moment. Free, held and cached add up to all; counters count since the pool was made."""

    num_blocks: int
    num_free: int
    num_held: int
    """What is in use: the gauge to admit and to scale by."""
    num_cached: int
    """Evictable: remembered for a hit, and as good as free to whoever needs a block."""
    num_hit_blocks: int
    """Blocks taken with what another sequence computed in them."""
    num_new_blocks: int
    """Blocks taken to be computed."""
    num_evicted: int
    """Cached blocks that were forgotten to make room."""


class BlockPool:
    """The blocks of one replica, numbered from 0. Its owner is the replica's scheduler: nobody else takes or releases.

    Every operation is O(1) for each block that it names, whatever the pool's size.
    """

    __slots__ = (
        "_cached",
        "_free",
        "_has_prefix_cache",
        "_hash_of",
        "_index",
        "_refcounts",
        "num_blocks",
        "num_evicted",
        "num_held",
        "num_hit_blocks",
        "num_new_blocks",
    )

    def __init__(self, num_blocks: int, *, has_prefix_cache: bool = True) -> None:
        self.num_blocks = num_blocks
        self._has_prefix_cache = has_prefix_cache
        self._free = list(range(num_blocks - 1, -1, -1))
        """A stack: what was released last is taken first, and its memory is the likeliest to be in a near cache."""
        self._refcounts = [0] * num_blocks
        """By block: in how many tables it is."""
        self._hash_of: list[bytes | None] = [None] * num_blocks
        """By block: the hash that the index knows it by."""
        self._index: dict[bytes, int] = {}
        """The inverse of `_hash_of`: a block has one hash at most, and a hash one block."""
        self._cached: OrderedDict[int, None] = OrderedDict()
        """Least recently used first. A plain dict was refused: finding its first key walks over all that were deleted."""
        self.num_held = 0
        self.num_hit_blocks = 0
        self.num_new_blocks = 0
        self.num_evicted = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """How many could be taken now: the free and the cached."""
        return len(self._free) + len(self._cached)

    def refcount(self, block: int) -> int:
        """In how many tables the block is."""
        return self._refcounts[block]

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """The blocks known by these hashes, up to the first that no block has. Changes nothing, nor the order of eviction."""
        blocks = []
        index = self._index
        for block_hash in hashes:
            block = index.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_short(self, hits: Sequence[int], num_new: int) -> int:
        """Blocks that `take` would lack; negative if some would be left available.

        A cached hit costs one available block as a new one does: once it is held it can make room for nobody (CASES B51).
        """
        refcounts = self._refcounts
        num_cached_hits = sum([refcounts[block] == 0 for block in hits])
        return num_cached_hits + num_new - self.num_available

    def take(self, hits: Sequence[int], num_new: int) -> list[int]:
        """Adds a reference to each hit and takes `num_new` blocks more; returns all, hits first. Asserts that none is short.

        `hits` are what `find` returned, with nothing taken in between.
        """
        assert self.num_short(hits, num_new) <= 0, f"{len(hits)} hits and {num_new} new blocks asked of {self}"
        assert all(self._hash_of[block] is not None for block in hits), f"a hit among {hits} is not in the index"
        assert len(set(hits)) == len(hits), f"a block is twice among the hits {hits}"
        # All hits are held before anything is evicted: none of them can be among what is.
        for block in hits:
            if self._refcounts[block] == 0:
                del self._cached[block]
                self.num_held += 1
            self._refcounts[block] += 1
        self.num_hit_blocks += len(hits)
        return [*hits, *(self._take_new() for _ in range(num_new))]

    def grow(self) -> int | None:
        """Takes one new block, or returns None if neither a free nor a cached one is left."""
        return self._take_new() if self._free or self._cached else None

    def publish(self, block: int, block_hash: bytes) -> None:
        """Makes a held block, all of whose positions are computed, known by the hash of its chain.

        If another block has that hash the index keeps the other, and this one stays without: it becomes free after its last
        release, and what the index says of the other stays true (CASES B50). Does nothing without a prefix cache.
        """
        assert self._refcounts[block] > 0, f"block {block} is published and nobody holds it"
        assert self._hash_of[block] in (None, block_hash), f"block {block} is published with a second hash"
        if self._has_prefix_cache and block_hash not in self._index:
            self._index[block_hash] = block
            self._hash_of[block] = block_hash

    def release(self, blocks: Iterable[int]) -> None:
        """Drops one reference to each block of a table; those without any left are cached if published, else free.

        The last block goes first. So of a chain the tail is evicted before its head, without which it cannot be found.
        """
        table = list(blocks)
        assert all(b >= 0 and self._refcounts[b] > 0 for b in table), f"a block among {table} is released and nobody holds it"
        assert len(set(table)) == len(table), f"a block is twice in the table {table}"
        for block in reversed(table):
            self._refcounts[block] -= 1
            if self._refcounts[block] == 0:
                self.num_held -= 1
                if self._hash_of[block] is None:
                    self._free.append(block)
                else:
                    self._cached[block] = None

    def _take_new(self) -> int:
        block = self._free.pop() if self._free else self._evict()
        self._refcounts[block] = 1
        self.num_held += 1
        self.num_new_blocks += 1
        return block

    def _evict(self) -> int:
        """The least recently used cached block, forgotten by the index."""
        block, _ = self._cached.popitem(last=False)
        block_hash = self._hash_of[block]
        assert block_hash is not None
        del self._index[block_hash]
        self._hash_of[block] = None
        self.num_evicted += 1
        return block

    def statistics(self) -> PoolStatistics:
        return PoolStatistics(
            num_blocks=self.num_blocks,
            num_free=self.num_free,
            num_held=self.num_held,
            num_cached=self.num_cached,
            num_hit_blocks=self.num_hit_blocks,
            num_new_blocks=self.num_new_blocks,
            num_evicted=self.num_evicted,
        )

    def __repr__(self) -> str:
        return f"<BlockPool {self.num_free} free, {self.num_held} held, {self.num_cached} cached, of {self.num_blocks}>"

    def check(self, *, deep: bool = True) -> None:
        """Asserts the laws. Not `deep` it looks at counts alone and is O(1), fit for an idle service (CASES B99)."""
        assert self.num_free + self.num_held + self.num_cached == self.num_blocks, f"a block is lost or counted twice: {self}"
        assert self.num_held >= 0, f"more blocks were released than taken: {self}"
        assert self.num_cached <= len(self._index), f"a cached block cannot be found: {self}"
        assert len(self._index) <= self.num_held + self.num_cached, f"the index knows free blocks: {self}"
        if deep:
            self._check_blocks()

    def _check_blocks(self) -> None:
        """O(num_blocks)."""
        refcounts, hash_of = self._refcounts, self._hash_of
        assert min(refcounts, default=0) >= 0, "a refcount is negative"
        assert self.num_held == self.num_blocks - refcounts.count(0), "the held are miscounted"
        assert len(set(self._free)) == len(self._free), "a block is twice on the stack"
        assert all(refcounts[b] == 0 and hash_of[b] is None for b in self._free), "a free block is held or has a hash"
        assert all(refcounts[b] == 0 and hash_of[b] is not None for b in self._cached), "a cached block is held or has no hash"
        assert all(hash_of[b] is not None for b, num in enumerate(refcounts) if num > 1), "a shared block has no hash"
        assert all(hash_of[b] == block_hash for block_hash, b in self._index.items()), "the index and a block differ"
        assert len(self._index) == self.num_blocks - hash_of.count(None), "a block has a hash that the index does not know"
