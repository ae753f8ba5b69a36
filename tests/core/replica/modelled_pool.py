"""A block pool and a plain model of it, driven together: whatever the pool answers, the model must have expected it.

A prompt is a string with a letter for each block, and a block's hash is the prompt up to its end, so that equal prefixes are
seen at a glance.
"""

from collections import Counter

from batcher.core.replica.blocks import BlockPool


def hashes_of(prompt: str) -> list[bytes]:
    return [prompt[:end].encode() for end in range(1, len(prompt) + 1)]


class Table:
    """The blocks of one running sequence. The first `num_published` are computed and published; grown ones never are."""

    def __init__(self, prompt: str, blocks: list[int], num_published: int) -> None:
        self.prompt = prompt
        self.blocks = blocks
        self.num_published = num_published


class ModelledPool:
    """Who holds a block follows from the tables. Beside them the model is what is published and the order of eviction."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.has_prefix_cache = pool._has_prefix_cache
        self.tables: list[Table] = []
        self.free = set(range(pool.num_blocks))
        self.cached: list[int] = []
        self.block_of: dict[bytes, int] = {}

    def start(self, prompt: str) -> bool:
        """A new sequence takes what is known of its prompt and new blocks for the rest, if they fit."""
        hits = []
        for block_hash in hashes_of(prompt):
            if block_hash not in self.block_of:
                break
            hits.append(self.block_of[block_hash])
        assert self.pool.find(hashes_of(prompt)) == hits
        num_new = len(prompt) - len(hits)
        left = [block for block in self.cached if block not in hits]
        num_short = num_new - len(self.free) - len(left)
        assert self.pool.num_short(hits, num_new) == num_short
        if num_short > 0:
            return False
        self.cached = left
        blocks = self.pool.take(hits, num_new)
        assert blocks[: len(hits)] == hits
        self.expect_new(blocks[len(hits) :], num=num_new)
        self.tables.append(Table(prompt, blocks, len(hits)))
        return True

    def grow(self, table: Table) -> None:
        block = self.pool.grow()
        if block is None:
            assert not self.free
            assert not self.cached
        else:
            self.expect_new([block], num=1)
            table.blocks.append(block)

    def expect_new(self, blocks: list[int], *, num: int) -> None:
        """Free ones as long as there are any, then the cached ones that were used least recently."""
        assert len(set(blocks)) == num
        num_evicted = max(0, num - len(self.free))
        evicted, self.cached = self.cached[:num_evicted], self.cached[num_evicted:]
        assert blocks[num - num_evicted :] == evicted
        assert self.free.issuperset(blocks[: num - num_evicted])
        self.free.difference_update(blocks)
        self.block_of = {block_hash: block for block_hash, block in self.block_of.items() if block not in evicted}

    def publish(self, table: Table, num: int) -> None:
        """The next `num` blocks of the prompt were computed."""
        start = table.num_published
        table.num_published = min(start + num, len(table.prompt))
        for block, block_hash in list(zip(table.blocks, hashes_of(table.prompt), strict=False))[start : table.num_published]:
            self.pool.publish(block, block_hash)
            if self.has_prefix_cache:
                self.block_of.setdefault(block_hash, block)

    def end(self, table: Table) -> None:
        self.tables.remove(table)
        self.pool.release(table.blocks)
        still_held = {block for other in self.tables for block in other.blocks}
        published = set(self.block_of.values())
        for block in reversed(table.blocks):
            if block not in still_held and block in published:
                self.cached.append(block)
            elif block not in still_held:
                self.free.add(block)

    def check(self) -> None:
        pool = self.pool
        pool.check()
        pool.check(deep=False)
        refcounts = Counter(block for table in self.tables for block in table.blocks)
        assert [pool.refcount(block) for block in range(pool.num_blocks)] == [refcounts[b] for b in range(pool.num_blocks)]
        assert (pool.num_free, pool.num_held, pool.num_cached) == (len(self.free), len(refcounts), len(self.cached))
        assert pool.num_available == len(self.free) + len(self.cached)
