"""What blocks a sequence needs, and what of them others have computed already.

The pool counts blocks and the chain names them; here is what they mean for a sequence. It takes the blocks of all its known
tokens when it starts, though they are computed chunk by chunk. Taking them chunk by chunk was refused: several half-computed
prompts could then hold all the memory and wait for each other (CASES B56). As it is, whatever runs can always compute the rest
of its prompt, and needs one more block every BLOCK_SIZE tokens of its answer.

A sequence that is reserved takes what it may need to its very end at once: every one under contiguous KV, and under paged KV
one that has been preempted as often as it may be, or has waited too long since.
"""

from array import array
from collections import Counter
from collections.abc import Sequence as Items
from sys import maxsize

import msgspec

from batcher.config import KvMode, ReplicaConfig
from batcher.core.replica.blocks import BlockPool
from batcher.core.replica.prefix import block_hashes, chain_root
from batcher.core.replica.sequence import Sequence
from batcher.types import BLOCK_SIZE

_MAX_KEPT_SHARE = 4
"""One block in so many is kept for growth at most, however many run."""

_STRIDE = 64
"""Blocks that are named and looked up at once: a long prompt that nobody has sent before costs this much at its start, and
the rest as it is computed, instead of milliseconds between two steps."""


class Need(msgspec.Struct, frozen=True):
    """What it takes to start a sequence now. Good until the pool changes."""

    hits: Items[int]
    """Blocks of its prefix that are computed already."""
    num_new: int
    is_reserved: bool


class Memory:
    """A replica's blocks, as sequences take and give them."""

    __slots__ = ("_config", "_has_prefix_cache", "_is_contiguous", "_max_kept", "_model_version", "pool")

    def __init__(self, config: ReplicaConfig, *, model_version: str) -> None:
        self._config = config
        self._is_contiguous = config.kv is KvMode.CONTIGUOUS
        self._has_prefix_cache = config.has_prefix_cache and not self._is_contiguous
        self._max_kept = config.num_blocks // _MAX_KEPT_SHARE
        self._model_version = model_version
        self.pool = BlockPool(config.num_blocks, has_prefix_cache=self._has_prefix_cache)

    def need(self, sequence: Sequence, *, to_the_end: bool = False) -> Need:
        """What it takes to start it now; `to_the_end` reserves all that it may ever need, which is nothing for the last token
        that it may sample: that one is never computed.

        The last of its tokens is always computed, since the next one is drawn from its logits: so the block of that token is
        no hit, and no shared block is ever written.
        """
        is_reserved = to_the_end or self._is_contiguous or sequence.num_preemptions >= self._config.max_preemptions
        num_tokens = sequence.max_len - 1 if is_reserved else len(sequence.tokens)
        hits = self._find_hits(sequence) if self._has_prefix_cache else []
        return Need(hits, _num_blocks(num_tokens) - len(hits), is_reserved)

    def num_short(self, need: Need) -> int:
        """Blocks that are missing to start it; negative if some are left over."""
        return self.pool.num_short(need.hits, need.num_new)

    def num_kept(self, num_growing: int) -> int:
        """Blocks that must stay available to so many that run and are not reserved: the watermark."""
        return min(self._config.growth_blocks * num_growing, self._max_kept)

    def num_own(self, sequence: Sequence, *, apart_from: frozenset[int]) -> int:
        """Blocks that would become available if it gave its own back: those that nobody shares, nor will as `apart_from`."""
        return sum([self.pool.refcount(block) == 1 and block not in apart_from for block in sequence.block_table])

    def take(self, sequence: Sequence, need: Need) -> None:
        """Gives it the blocks to start with: what is computed already counts as computed. Asserts that they are there."""
        table = array("i", self.pool.take(need.hits, need.num_new))
        num_hit_tokens = len(need.hits) * BLOCK_SIZE
        sequence.block_table = table
        sequence.capacity = len(table) * BLOCK_SIZE
        sequence.is_reserved = need.is_reserved
        sequence.num_computed = sequence.num_confirmed = num_hit_tokens
        sequence.num_published = len(need.hits)
        sequence.publish_at = num_hit_tokens + BLOCK_SIZE if self._has_prefix_cache else maxsize

    def grow(self, sequence: Sequence) -> None:
        """One block more. There must be one available."""
        block = self.pool.grow()
        assert block is not None, f"{sequence!r} grows and no block is left"
        sequence.block_table.append(block)
        sequence.capacity += BLOCK_SIZE

    def publish(self, sequence: Sequence) -> None:
        """Tells the prefix cache of the blocks whose positions are all confirmed."""
        num_full = sequence.num_confirmed // BLOCK_SIZE
        hashes = self._name_blocks(sequence, num_full)
        for index in range(sequence.num_published, num_full):
            self.pool.publish(sequence.block_table[index], hashes[index])
        sequence.num_published = num_full
        sequence.publish_at = (num_full + 1) * BLOCK_SIZE

    def release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table)
        sequence.forget_blocks()

    def check_tables(self, running: Items[Sequence]) -> None:
        """Asserts that a block is held as often as it is in a table. O(blocks)."""
        holders = Counter([block for sequence in running for block in sequence.block_table])
        for block in range(self.pool.num_blocks):
            assert self.pool.refcount(block) == holders[block], f"block {block} is miscounted: in {holders[block]} tables"

    def _find_hits(self, sequence: Sequence) -> list[int]:
        """The blocks of its longest prefix that is computed, short of the last token. What follows is not even named yet."""
        num_full = (len(sequence.tokens) - 1) // BLOCK_SIZE
        hits: list[int] = []
        while len(hits) < num_full:
            end = min(len(hits) + _STRIDE, num_full)
            hits += self.pool.find(self._name_blocks(sequence, end)[len(hits) : end])
            if len(hits) < end:
                break
        return hits

    def _name_blocks(self, sequence: Sequence, num: int) -> list[bytes]:
        """The names of at least its first `num` blocks; each is made once in its life."""
        hashes = sequence.hashes
        num_known = len(hashes)
        if num_known < num:
            parent = hashes[-1] if hashes else chain_root(model_version=self._model_version, salt=sequence.salt)
            hashes += block_hashes(parent, sequence.tokens[num_known * BLOCK_SIZE : num * BLOCK_SIZE])
        return hashes


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)
