"""The block pool against a plain model: by rules, and 100,000 times at random. Then pools with a bug in them."""

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batcher.core.replica.blocks import BlockPool
from tests.core.replica.modelled_pool import ModelledPool

has_tables = precondition(lambda self: self.modelled.tables)


class PoolMachine(RuleBasedStateMachine):
    """Sequences start, are computed block by block, grow, and end in any order, in a pool that holds two or three of them."""

    has_prefix_cache = True

    def __init__(self) -> None:
        super().__init__()
        self.modelled = ModelledPool(BlockPool(8, has_prefix_cache=self.has_prefix_cache))

    @rule(prompt=st.text("ab", min_size=1, max_size=5))
    def start(self, prompt: str) -> None:
        self.modelled.start(prompt)

    @has_tables
    @rule(data=st.data(), num=st.integers(1, 5))
    def publish(self, data: st.DataObject, num: int) -> None:
        self.modelled.publish(data.draw(st.sampled_from(self.modelled.tables)), num)

    @has_tables
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        self.modelled.grow(data.draw(st.sampled_from(self.modelled.tables)))

    @has_tables
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        self.modelled.end(data.draw(st.sampled_from(self.modelled.tables)))

    @invariant()
    def laws(self) -> None:
        self.modelled.check()


class ForgetfulPoolMachine(PoolMachine):
    """Without a prefix cache."""

    has_prefix_cache = False

    @invariant()
    def nothing_is_cached(self) -> None:
        assert self.modelled.pool.num_cached == 0


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(derandomize=True, max_examples=80, stateful_step_count=50, deadline=None)
TestForgetfulPoolMachine = ForgetfulPoolMachine.TestCase
TestForgetfulPoolMachine.settings = settings(derandomize=True, max_examples=20, stateful_step_count=30, deadline=None)


def soak(pool: BlockPool, *, seed: int, num_operations: int) -> None:
    """Random operations, each followed by a check of every law and of the model; then everything ends."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    modelled = ModelledPool(pool)
    for _ in range(num_operations):
        choice = rng.random()
        if choice < 0.35 or not modelled.tables:
            prompt = "".join(rng.choices("abc", weights=[6, 2, 1], k=rng.randint(1, 8)))
            modelled.start(prompt)
        elif choice < 0.6:
            modelled.publish(rng.choice(modelled.tables), rng.randint(1, 4))
        elif choice < 0.7:
            modelled.grow(rng.choice(modelled.tables))
        else:
            modelled.end(rng.choice(modelled.tables))
        modelled.check()
    while modelled.tables:
        modelled.end(modelled.tables[-1])
        modelled.check()


def test_every_law_holds_after_each_of_100_000_random_operations() -> None:
    pool = BlockPool(24)

    soak(pool, seed=20, num_operations=100_000)

    statistics = pool.statistics()
    assert statistics.num_held == 0
    assert min(statistics.num_hit_blocks, statistics.num_new_blocks, statistics.num_evicted) > 10_000, "little was tried"


# bugs that peers shipped, planted


class OverwritesTheIndex(BlockPool):
    """CASES B50: the second block with a hash takes the first one's entry."""

    def publish(self, block: int, block_hash: bytes) -> None:
        self._index[block_hash] = block
        self._hash_of[block] = block_hash


class CountsCachedHitsAsFree(BlockPool):
    """CASES B51: a hit costs nothing, so that too much is promised."""

    def num_short(self, hits: Sequence[int], num_new: int) -> int:
        return num_new - self.num_available


class ForgetsToPin(BlockPool):
    """A cached hit stays in the order of eviction, and is evicted while a sequence reads it."""

    def take(self, hits: Sequence[int], num_new: int) -> list[int]:
        cached = self._cached.copy()
        blocks = super().take(hits, num_new)
        self._cached = cached
        return blocks


class KeepsTheHashOfWhatItEvicts(BlockPool):
    """The next owner's tokens are then served to whoever asks for the old ones."""

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        return block


class EvictsTheHeadFirst(BlockPool):
    """No law is broken: only the model knows the order."""

    def release(self, blocks: Iterable[int]) -> None:
        super().release(list(blocks)[::-1])


class CountsASharedBlockTwice(BlockPool):
    """CASES B53: each of its tables lets it go."""

    def release(self, blocks: Iterable[int]) -> None:
        table = list(blocks)
        self.num_held -= sum(self._refcounts[block] > 1 for block in table)
        super().release(table)


class LeaksWhenItGrows(BlockPool):
    """A reference that no table has (CASES B25): again only the model knows."""

    def grow(self) -> int | None:
        block = super().grow()
        if block is not None:
            self.publish(block, b"leak")
            self._refcounts[block] += 1
        return block


@pytest.mark.parametrize(
    "mutant",
    [
        OverwritesTheIndex,
        CountsCachedHitsAsFree,
        ForgetsToPin,
        KeepsTheHashOfWhatItEvicts,
        EvictsTheHeadFirst,
        CountsASharedBlockTwice,
        LeaksWhenItGrows,
    ],
)
def test_a_planted_bug_is_found(mutant: type[BlockPool]) -> None:
    with pytest.raises((AssertionError, KeyError)):
        soak(mutant(24), seed=20, num_operations=2000)
