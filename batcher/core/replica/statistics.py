"""What a scheduler tells of itself: metrics, tests, routers and `/load` read the same frozen snapshot."""

import msgspec

from batcher.core.replica.counters import Counters
from batcher.core.replica.memory import Memory
from batcher.core.replica.queue import TierQueue, WaitingQueue
from batcher.core.replica.running import Running


class TierStatistics(msgspec.Struct, frozen=True):
    name: str
    num_waiting: int
    num_waiting_tokens: int
    """Tokens to compute before those that wait can decode, hits apart: prompts, and the answers so far of the preempted."""
    num_running: int


class ReplicaStatistics(msgspec.Struct, frozen=True):
    """A snapshot: what there is now, and `counters` as totals since birth."""

    tiers: tuple[TierStatistics, ...]
    num_live: int
    """Sequences that were accepted and have not ended: waiting and running."""
    num_waiting: int
    num_waiting_tokens: int
    num_running: int
    num_prefilling: int
    num_decoding: int
    num_slots: int
    num_free_slots: int
    num_blocks: int
    num_free_blocks: int
    num_held_blocks: int
    """Blocks in use: what to admit and to scale by (CASES B100)."""
    num_cached_blocks: int
    num_evicted_blocks: int
    """Total since birth, as the counters."""
    num_inflight_steps: int
    is_draining: bool
    counters: Counters


def gather(
    counters: Counters, memory: Memory, queue: WaitingQueue, running: Running, *, num_inflight_steps: int, is_draining: bool
) -> ReplicaStatistics:
    """The snapshot of the parts that a scheduler is made of. O(tiers + preempted)."""
    pool = memory.pool.statistics()
    tiers = tuple(_of_tier(tier, num) for tier, num in zip(queue.tiers, running.by_tier, strict=True))
    num_decoding = len(running.decoding)
    return ReplicaStatistics(
        tiers=tiers,
        num_live=len(queue) + len(running),
        num_waiting=len(queue),
        num_waiting_tokens=sum(tier.num_waiting_tokens for tier in tiers),
        num_running=len(running),
        num_prefilling=len(running) - num_decoding,
        num_decoding=num_decoding,
        num_slots=len(running) + running.num_free_slots,
        num_free_slots=running.num_free_slots,
        num_blocks=pool.num_blocks,
        num_free_blocks=pool.num_free,
        num_held_blocks=pool.num_held,
        num_cached_blocks=pool.num_cached,
        num_evicted_blocks=pool.num_evicted,
        num_inflight_steps=num_inflight_steps,
        is_draining=is_draining,
        counters=msgspec.structs.replace(counters),
    )


def _of_tier(tier: TierQueue, num_running: int) -> TierStatistics:
    num_tokens = tier.num_tokens + sum([len(sequence.tokens) for sequence in tier.preempted])
    return TierStatistics(tier.name, len(tier), num_tokens, num_running)
