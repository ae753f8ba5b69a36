"""Who starts, and how a step's prompt tokens are shared out.

Tier by tier, the highest first: prompts that have started go on, the oldest start first, then others start while there are a
slot, blocks and budget. A prompt of a lower tier that has started keeps a small share of the budget, so that it gets on while
higher ones flood the replica: it holds blocks, and it is past the point where it could expire.

Starting is a question of slots and of blocks. When either is missing, sequences of lower tiers give way to a higher one, the
newest first, and only if that is enough (CASES B55, B58). What still does not fit is passed by smaller ones behind it, up to
`max_overtakes` of them; then its tier and those below wait until it fits (CASES B60). What was preempted is not passed at
all: memory is short then, and starting others makes it shorter. And what was preempted for higher tiers goes before them once
it has waited too long: then nobody else starts until it has (CASES B59).
"""

from collections.abc import Iterable
from itertools import islice

from batcher.config import ReplicaConfig
from batcher.core.replica.counters import Counters
from batcher.core.replica.memory import Memory, Need
from batcher.core.replica.pace import PrefillPace
from batcher.core.replica.policies import Policy
from batcher.core.replica.queue import TierQueue, WaitingQueue
from batcher.core.replica.running import Running
from batcher.core.replica.sequence import Sequence, SequenceState
from batcher.types import BLOCK_SIZE

MAX_PASSED = 8
"""Sequences that do not fit and are looked at in one step: each costs a search for its prefix."""

STARTED_SHARE = 8
"""One token in so many of what is left of a step's budget stays for started prompts of lower tiers; one for each at least."""


class Admission:
    """Fills the part of a step that is not decoding.

    `_pace` says how many prompt tokens a step has, `_is_cut` whether a prompt may be spread over several steps. `_passed` are
    those that did not fit in the step that is being planned, `_is_blocked` whether one of them must not be passed any more.
    """

    __slots__ = (
        "_counters",
        "_is_blocked",
        "_is_cut",
        "_max_overtakes",
        "_memory",
        "_pace",
        "_passed",
        "_policy",
        "_queue",
        "_running",
    )

    def __init__(
        self,
        config: ReplicaConfig,
        policy: Policy,
        pace: PrefillPace,
        memory: Memory,
        queue: WaitingQueue,
        running: Running,
        counters: Counters,
    ) -> None:
        self._policy = policy
        self._pace = pace
        self._memory = memory
        self._queue = queue
        self._running = running
        self._counters = counters
        self._is_cut = config.prefill_chunk > 0
        self._max_overtakes = config.max_overtakes
        self._passed: list[Sequence] = []
        self._is_blocked = False

    def plan(self, *, may_start: bool, is_draining: bool, now: float) -> list[tuple[Sequence, int]]:
        """The prompts to compute in this step, and how many tokens of each. Starts those that can start."""
        chunks: list[tuple[Sequence, int]] = []
        num_open = self._num_open(is_draining=is_draining, now=now) if may_start and len(self._queue) else 0
        num_started = sum(map(len, self._running.prefilling))
        num_starting = num_started + (min(len(self._queue), self._running.num_free_slots) if num_open else 0)
        budget = self._pace.budget(len(self._running.decoding), num_starting)
        self._passed.clear()
        self._is_blocked = False
        if num_open and (starving := self._queue.starving(now=now)) is not None:
            num_open -= self._restart(starving, now=now)
        for index, tier in enumerate(self._queue.tiers):
            num_lower = sum([bool(lower) for lower in self._running.prefilling[index + 1 :]])
            num_kept = max(num_lower, budget // STARTED_SHARE) if num_lower and self._is_cut else 0
            started = self._running.prefilling[index].values()
            budget -= self._share_out(started, budget - num_kept, chunks)
            if num_open and len(tier) and not self._is_blocked:
                fresh = self._start_from(tier, index, num_open, budget - num_kept, now=now)
                budget -= self._share_out(fresh, budget - num_kept, chunks)
                num_open -= len(fresh)
        return chunks

    def _num_open(self, *, is_draining: bool, now: float) -> int:
        return self._policy.num_open(
            num_running=len(self._running),
            num_waiting=len(self._queue),
            oldest_at=self._queue.oldest_at(),
            is_draining=is_draining,
            now=now,
        )

    def _share_out(self, started: Iterable[Sequence], budget: int, chunks: list[tuple[Sequence, int]]) -> int:
        """Adds what each may compute, in order, and returns the sum. Where prompts are not cut, the first that does not fit
        waits for the next step, and those behind it too."""
        num_left = budget
        for sequence in started:
            num_rest = len(sequence.tokens) - sequence.num_computed
            if num_left <= 0 or (num_rest > num_left and not self._is_cut):
                break
            num = min(num_rest, num_left)
            chunks.append((sequence, num))
            num_left -= num
        return budget - num_left

    def _start_from(self, tier: TierQueue, index: int, num_open: int, budget: int, *, now: float) -> list[Sequence]:
        """Starts those of one tier whose turn it is, and returns them."""
        fresh: list[Sequence] = []
        for sequence in self._candidates(tier, index, num_open):
            if len(fresh) == num_open or self._is_blocked or not self._has_turn(sequence, budget):
                break
            need = self._memory.need(sequence)
            num_to_compute = len(sequence.tokens) - len(need.hits) * BLOCK_SIZE
            if num_to_compute > budget and not self._is_cut and not self._policy.starts_whole_batch:
                break
            if not self._fits(sequence, need) and not self._make_room(sequence, need, now=now):
                if not self._running.has_slot_for(index) and not self._running.victims_below(index):
                    break
                self._pass(sequence)
                continue
            tier.take(sequence)
            self._running.start(sequence, need, now=now)
            self._count_overtakes(sequence)
            fresh.append(sequence)
            budget -= num_to_compute
        return fresh

    def _restart(self, sequence: Sequence, *, now: float) -> bool:
        """Starts one that has starved and lets it run to its end, or keeps all others waiting until there is room for it."""
        if not self._running.has_share_for(sequence.tier_index):
            return False  # It is its own kind that runs, and that ends.
        need = self._memory.need(sequence, to_the_end=True)
        if sequence.num_pending or not self._fits(sequence, need):
            self._is_blocked = True
            return False
        self._queue.tiers[sequence.tier_index].take(sequence)
        self._running.start(sequence, need, now=now)
        return True

    def _fits(self, sequence: Sequence, need: Need) -> bool:
        return self._running.has_slot_for(sequence.tier_index) and self._memory.num_short(need) + self._num_kept() <= 0

    def _candidates(self, tier: TierQueue, index: int, num_open: int) -> list[Sequence]:
        """Those to look at, in turn; none where it is plain that none can start. Bounded by the free slots and MAX_PASSED."""
        can_make_room = self._policy.may_preempt_for_tier and any(self._running.by_tier[index + 1 :])
        # The last block of a prompt is never a hit: whatever starts needs a new one at least.
        has_room = self._running.has_slot_for(index) and self._memory.pool.num_available > self._num_kept()
        if not has_room and not can_make_room:
            return []
        num_looks = min(num_open, self._running.num_free_slots) + MAX_PASSED - len(self._passed)
        return list(islice(tier.candidates(), num_looks))

    def _has_turn(self, sequence: Sequence, budget: int) -> bool:
        """Whether this step can begin it. One that was preempted in flight waits for its late tokens, and others behind it."""
        if sequence.num_pending:
            self._is_blocked = True
        return not self._is_blocked and (budget > 0 or self._policy.starts_whole_batch)

    def _make_room(self, sequence: Sequence, need: Need, *, now: float) -> bool:
        """Preempts sequences of lower tiers until there is a slot and memory for this one; none if all would not do."""
        if not self._policy.may_preempt_for_tier:
            return False
        is_slot_missing = not self._running.has_slot_for(sequence.tier_index)
        num_short = self._memory.num_short(need)
        hits = frozenset(need.hits)
        victims: list[Sequence] = []
        for victim in self._running.victims_below(sequence.tier_index):
            if not is_slot_missing and num_short + self._num_kept(len(victims)) <= 0:
                break
            victims.append(victim)
            is_slot_missing = False
            num_short -= self._memory.num_own(victim, apart_from=hits)
        if is_slot_missing or num_short + self._num_kept(len(victims)) > 0:
            return False
        for victim in victims:
            self._running.preempt(victim, now=now)
        return True

    def _num_kept(self, num_fewer: int = 0) -> int:
        """The watermark, if so many fewer ran."""
        return self._memory.num_kept(self._running.num_growing - num_fewer)

    def _pass(self, sequence: Sequence) -> None:
        self._passed.append(sequence)
        is_patient = sequence.num_overtaken < self._max_overtakes and sequence.state is not SequenceState.PREEMPTED
        self._is_blocked = not is_patient or len(self._passed) >= MAX_PASSED

    def _count_overtakes(self, sequence: Sequence) -> None:
        """`sequence` starts before all that were passed."""
        sequence.num_overtaken = 0
        for other in self._passed:
            other.num_overtaken += 1
            self._is_blocked |= other.num_overtaken >= self._max_overtakes
        self._counters.num_overtakes += len(self._passed)
