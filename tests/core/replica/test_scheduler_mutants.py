"""That the checks can fail: faults that peers have shipped, put back, are each found by the shell or by the laws."""

from collections.abc import Callable

import pytest

from batcher.config import ReplicaConfig
from batcher.core.replica.blocks import BlockPool
from batcher.core.replica.memory import Memory
from batcher.core.replica.running import Running
from batcher.core.replica.sequence import Sequence, SequenceState
from tests.core.replica.test_scheduler_soak import Soak

Mutate = Callable[[pytest.MonkeyPatch], None]


def no_release(patch: pytest.MonkeyPatch) -> None:
    """A cancelled sequence keeps its blocks."""
    patch.setattr(Memory, "release", lambda self, sequence: sequence.forget_blocks())


def publish_before_computed(patch: pytest.MonkeyPatch) -> None:
    """Blocks are shared when they are taken, though their step may fail, or run behind the one that reads them."""
    take = Memory.take

    def eager(self: Memory, sequence: Sequence, need: object) -> None:
        take(self, sequence, need)  # type: ignore[arg-type]
        sequence.num_confirmed = len(sequence.tokens)
        self.publish(sequence)
        sequence.num_confirmed = sequence.num_computed

    patch.setattr(Memory, "take", eager)


def double_late_token(patch: pytest.MonkeyPatch) -> None:
    """A preempted sequence does not wait for the token in flight and samples it again."""
    stop = Running.stop

    def forgetful(self: Running, sequence: Sequence, state: SequenceState) -> None:
        stop(self, sequence, state)
        sequence.num_sampled = sequence.num_output_tokens

    patch.setattr(Running, "stop", forgetful)


def slot_kept(patch: pytest.MonkeyPatch) -> None:
    """A finished sequence's slot is handed out twice."""
    start = Running.start

    def greedy(self: Running, sequence: Sequence, need: object, *, now: float) -> None:
        start(self, sequence, need, now=now)  # type: ignore[arg-type]
        self._free_slots.append(sequence.slot)

    patch.setattr(Running, "start", greedy)


def release_by_hash(patch: pytest.MonkeyPatch) -> None:
    """Hits are taken without a reference."""
    take = BlockPool.take

    def uncounted(self: BlockPool, hits: list[int], num_new: int) -> list[int]:
        blocks = take(self, hits, num_new)
        for block in hits:
            if self._refcounts[block] > 1:
                self._refcounts[block] -= 1
        return blocks

    patch.setattr(BlockPool, "take", uncounted)


@pytest.mark.parametrize("mutate", [no_release, publish_before_computed, double_late_token, slot_kept, release_by_hash])
def test_a_fault_is_found(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    config = ReplicaConfig(num_blocks=30, max_num_seqs=6, max_model_len=220, prefill_chunk=24, max_waiting=12)
    with pytest.raises(AssertionError):
        Soak(1, config).run(3_000)
