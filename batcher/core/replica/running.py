"""Who runs: slots, blocks, and who gives them back when they are short.

The victim is the newest sequence of the lowest tier that is not reserved. Newest by submission, not by start: what was
preempted and has started again is no younger for it, else it would be the next victim again (CASES B55).

Why everybody gets on. A preemption counts against its victim; after `max_preemptions`, or when it has waited too long behind
higher tiers, a sequence starts only with all the blocks that it may ever need (it is reserved), keeps them, and ends after its
prompt and at most `max_tokens` steps. So preemptions are bounded by sequences times `max_preemptions`, and between two of them
every step computes prompt or makes tokens. A sequence that grows always finds a block or a victim: itself at worst, and that
happens only while reserved ones hold the rest, which end without asking for anything. The oldest unreserved sequence of the
highest tier is nobody else's victim. And once nothing runs, all blocks are available, so the first that waits starts: one that
could not fit alone was refused at submission. A watchdog that looks for parked sequences was refused, since none can be
parked: whatever has blocks has them for its whole prompt.
"""

from collections.abc import Iterator

from batcher.core.replica.counters import Counters
from batcher.core.replica.memory import Memory, Need
from batcher.core.replica.queue import WaitingQueue
from batcher.core.replica.sequence import Sequence, SequenceState


class Running:
    """The sequences that have a slot.

    `decoding` and `prefilling` (by tier) hold them in order of start, each in one of them. `_free_slots` is a stack. `by_tier`
    counts them by tier, `num_reserved` those that are never preempted.
    """

    __slots__ = (
        "_counters",
        "_free_slots",
        "_memory",
        "_num_first_tier_slots",
        "_num_slots",
        "_queue",
        "by_tier",
        "decoding",
        "num_reserved",
        "prefilling",
    )

    def __init__(
        self, memory: Memory, queue: WaitingQueue, counters: Counters, *, num_slots: int, num_first_tier_slots: int
    ) -> None:
        self._memory = memory
        self._queue = queue
        self._counters = counters
        self._num_slots = num_slots
        self._num_first_tier_slots = num_first_tier_slots
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self.decoding: dict[int, Sequence] = {}
        self.prefilling: tuple[dict[int, Sequence], ...] = tuple({} for _ in queue.tiers)
        self.by_tier = [0] * len(queue.tiers)
        self.num_reserved = 0

    def __len__(self) -> int:
        return self._num_slots - len(self._free_slots)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.decoding.values()
        for tier in self.prefilling:
            yield from tier.values()

    @property
    def num_free_slots(self) -> int:
        return len(self._free_slots)

    @property
    def num_growing(self) -> int:
        """Those that may need more blocks than they have."""
        return len(self) - self.num_reserved

    def has_slot_for(self, tier_index: int) -> bool:
        """Whether a slot is free that this tier may take."""
        return bool(self._free_slots) and self.has_share_for(tier_index)

    def has_share_for(self, tier_index: int) -> bool:
        """Whether this tier may have one more slot than it has, were one free."""
        return tier_index == 0 or len(self) - self.by_tier[0] < self._num_slots - self._num_first_tier_slots

    def start(self, sequence: Sequence, need: Need, *, now: float) -> None:
        """Gives it a slot and its blocks. Asserts that they are there."""
        self._memory.take(sequence, need)
        sequence.slot = self._free_slots.pop()
        sequence.move_to(SequenceState.PREFILLING)
        self.prefilling[sequence.tier_index][sequence.id] = sequence
        self.by_tier[sequence.tier_index] += 1
        self.num_reserved += sequence.is_reserved
        self._counters.num_cached_tokens += sequence.num_computed
        if sequence.first_scheduled_at is None:
            sequence.first_scheduled_at = now
            sequence.num_cached_tokens = sequence.num_computed

    def begin_decoding(self, sequence: Sequence) -> None:
        del self.prefilling[sequence.tier_index][sequence.id]
        sequence.move_to(SequenceState.DECODING)
        self.decoding[sequence.id] = sequence

    def stop(self, sequence: Sequence, state: SequenceState) -> None:
        """Takes slot and blocks back at once: steps take effect in the order of their launches."""
        is_decoding = sequence.state is SequenceState.DECODING
        del (self.decoding if is_decoding else self.prefilling[sequence.tier_index])[sequence.id]
        self.by_tier[sequence.tier_index] -= 1
        self.num_reserved -= sequence.is_reserved
        self._free_slots.append(sequence.slot)
        self._memory.release(sequence)
        sequence.move_to(state)

    def preempt(self, sequence: Sequence, *, now: float) -> None:
        """Back into its queue, to be computed again: prompt and what it has said so far are its new prompt."""
        assert not sequence.is_reserved, f"{sequence!r} is reserved and must not be preempted"
        self.stop(sequence, SequenceState.PREEMPTED)
        sequence.num_preemptions += 1
        sequence.preempted_at = now
        self._counters.num_preemptions += 1
        self._queue.push(sequence)

    def grow(self, *, now: float) -> bool:
        """Gives a block to each decoding sequence that needs one for its next token. False if others had to give way."""
        growing = [
            sequence
            for sequence in self.decoding.values()
            if sequence.num_computed == sequence.capacity and sequence.num_sampled < sequence.max_tokens
        ]
        has_room = True
        while len(growing) > self._memory.pool.num_available:
            has_room = False
            victim = max(self._preemptible(), key=_by_rank)
            self.preempt(victim, now=now)
            if victim in growing:
                growing.remove(victim)
        for sequence in growing:
            self._memory.grow(sequence)
        return has_room

    def victims_below(self, tier_index: int) -> list[Sequence]:
        """Those that may give way to this tier, the first to go first."""
        if not sum(self.by_tier[tier_index + 1 :]):
            return []
        lower = [sequence for sequence in self._preemptible() if sequence.tier_index > tier_index]
        return sorted(lower, key=_by_rank, reverse=True)

    def _preemptible(self) -> Iterator[Sequence]:
        return (sequence for sequence in self if not sequence.is_reserved)

    def check(self) -> None:
        """O(running)."""
        running = list(self)
        slots = sorted([sequence.slot for sequence in running] + self._free_slots)
        assert slots == list(range(self._num_slots)), "a slot is lost, or two have it"
        assert len({sequence.id for sequence in running}) == len(running) == len(self), "one runs twice"
        for index, num in enumerate(self.by_tier):
            assert num == sum([sequence.tier_index == index for sequence in running]), "a tier is miscounted"
        assert self.num_reserved == sum([sequence.is_reserved for sequence in running]), "the reserved are miscounted"
        assert len(self) - self.by_tier[0] <= self._num_slots - self._num_first_tier_slots, "the first tier's slots are taken"
        for sequence in running:
            _check_running(sequence)


def _by_rank(sequence: Sequence) -> tuple[int, int]:
    """The lower the tier and the newer in it, the higher."""
    return sequence.tier_index, sequence.order


def _check_running(sequence: Sequence) -> None:
    num_known = sequence.num_prompt_tokens + sequence.num_sampled
    assert 0 <= sequence.num_confirmed <= sequence.num_computed <= sequence.capacity, f"{sequence!r} has too few blocks"
    assert sequence.num_computed < num_known <= sequence.max_len, f"{sequence!r} is sent further than it goes"
    assert sequence.num_sampled - sequence.num_output_tokens >= 0, f"{sequence!r} has tokens that were never sampled"
    if sequence.state is SequenceState.DECODING:
        assert sequence.num_computed == num_known - 1, f"{sequence!r} decodes and is not where its last token is"
