"""Continuous mode's replica."""

import msgspec

from batcher.config.checks import require, require_between
from batcher.config.choices import KvMode, ReplicaPolicy
from batcher.config.tiers import DEFAULT_TIERS
from batcher.types import BLOCK_SIZE

MIN_BLOCKS = 2
"""KV blocks without which a replica can run nothing."""
MAX_BLOCKS = 2**31 - 1
"""What a block table's 32-bit numbers reach."""


class ReplicaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One replica's scheduler and block pool (SPEC S6)."""

    tiers: tuple[str, ...] = tuple(tier.name for tier in DEFAULT_TIERS)
    """The highest first."""
    policy: ReplicaPolicy = ReplicaPolicy.CONTINUOUS
    kv: KvMode = KvMode.PAGED
    num_blocks: int = 4096
    """KV blocks of BLOCK_SIZE tokens, all in all."""
    max_num_seqs: int = 64
    """Slots: sequences that may run at once."""
    max_model_len: int = 8192
    """Most tokens of prompt and answer together."""
    prefill_chunk: int = 512
    """Prompt tokens that one step computes at most, for all its sequences together; a longer prompt is cut. 0 cuts nothing:
    a prompt is computed whole in one step, however long the running ones wait (SPEC S6.3)."""
    prefill_stretch: float = 2.0
    """A step with prompt tokens beside decodes is held to this many times what the decodes alone take, by smaller chunks:
    decoding slows a little and never stalls. 0 holds it to nothing but `prefill_chunk`."""
    has_prefix_cache: bool = True
    reserved_slot_share: float = 0.1
    """Share of the slots that only the first tier may take under the continuous policy; at least one slot, where there is more
    than one slot and tier."""
    growth_blocks: int = 1
    """Blocks that each running sequence is expected to grow by before one of them ends: they must stay available when another
    is admitted (the watermark), up to a quarter of the pool."""
    max_waiting: int = 1024
    """Sequences that may wait for their first slot, in all tiers together."""
    max_waiting_tokens: int = 4_000_000
    """Prompt tokens that may wait, in all tiers together: far more than are served in time, and some 160 MB of this process."""
    max_preemptions: int = 8
    """Times that one sequence may be preempted; after that it starts with all the blocks that it may need, and keeps them."""
    max_overtakes: int = 64
    """Sequences of its tier and of lower ones that may pass one that does not fit; then they wait behind it."""
    static_timeout_s: float = 0.15
    """How long the oldest waits for a full batch under the static policy."""

    def __post_init__(self) -> None:
        require(0 < len(set(self.tiers)) == len(self.tiers), "tiers", self.tiers, "one or more different names")
        require_between("kv_blocks", self.num_blocks, MIN_BLOCKS, MAX_BLOCKS, "blocks")
        require_between("max_num_seqs", self.max_num_seqs, 1, 4096, "sequences")
        require_between("max_model_len", self.max_model_len, 2, 10_000_000, "tokens")
        require_between("prefill_chunk", self.prefill_chunk, 0, 1_000_000, "tokens")
        stretch = self.prefill_stretch
        require(stretch == 0.0 or 1.0 < stretch <= 1000.0, "prefill_stretch", stretch, "0, or above 1 and at most 1000")
        whole = f"0 or at least {BLOCK_SIZE} tokens"
        require(self.prefill_chunk == 0 or self.prefill_chunk >= BLOCK_SIZE, "prefill_chunk", self.prefill_chunk, whole)
        require_between("reserved_slot_share", self.reserved_slot_share, 0.0, 0.9)
        require_between("growth_blocks", self.growth_blocks, 0, 64, "blocks")
        require_between("max_waiting", self.max_waiting, 1, 1_000_000, "sequences")
        require_between("max_waiting_tokens", self.max_waiting_tokens, 1, 2**40, "tokens")
        require_between("max_preemptions", self.max_preemptions, 0, 100)
        require_between("max_overtakes", self.max_overtakes, 0, 10_000)
        require_between("static_timeout", self.static_timeout_s, 0.0, 60.0, "seconds")
