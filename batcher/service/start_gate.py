"""Continuous mode's gate: whoever would wait too long for a first step is refused at once (SPEC S8.1).

The gate is batch mode's, and counts tokens. What it is asked with is joined here from what this side knows at once, the
requests that it sent and has not heard of, and from what the engine tells a step later: its free places. The bounds of the
waiting queue (sequences, and prompt tokens, which are bytes too) stand behind it and are the scheduler's.

Idle reserve is borrowed and given back by the scheduler: the first tier has slots that no other takes, and preempts lower ones
for more; so for it, places that lower tiers run in count as free.
"""

import os
from collections import deque

from batcher.config import ReplicaConfig, ReplicaPolicy, TierConfig
from batcher.core.admission.backlog import ARRIVALS_MEMORY_S, Backlog, Waiting, with_margin, work_before
from batcher.core.admission.gate import Gate, Refusal
from batcher.core.admission.late import MAX_LATE, no_place
from batcher.core.replica.policies import create_policy
from batcher.core.replica.statistics import ReplicaStatistics
from batcher.errors import Overloaded
from batcher.service.generation import GenerationRequest
from batcher.types import BLOCK_SIZE


class StartGate:
    """Belongs to the replica's event loop. The engine's thread appends to `starts`, the ids of those that have started."""

    def __init__(self, tiers: tuple[TierConfig, ...], config: ReplicaConfig, *, secret: bytes) -> None:
        self._budgets_s = {tier.name: tier.start_budget_s for tier in tiers}
        self.gate = Gate(tiers, secret=secret, budgets_s=self._budgets_s, memory_s=ARRIVALS_MEMORY_S)
        self.backlog = Backlog(config.tiers)
        self.starts: deque[int] = deque()
        self._indexes = {tier: index for index, tier in enumerate(config.tiers)}
        policy = create_policy(config)
        self._num_slots = policy.num_slots
        self._num_reserved_slots = policy.num_reserved
        self._may_preempt = policy.may_preempt_for_tier

    def judge(
        self, tier: str, tenant: str, key: str, request: GenerationRequest | None, statistics: ReplicaStatistics, *, now: float
    ) -> Refusal | None:
        """None if it may enter. `request` is None before it is known; then nothing changes but by a refusal."""
        backlog = self.backlog
        self.catch_up(statistics, now=now)
        work = backlog.typical_work if request is None else backlog.work_of(len(request.prompt), request.max_tokens)
        rate = backlog.rate
        return self.gate.admit(
            tier,
            key=key,
            work_ahead=self._work_ahead(tier, tenant, work, rate, statistics, now=now),
            capacity_rate=rate,
            now=now,
            work=backlog.typical_work,  # Promises are of requests as they come, and on average it is what they bring.
            sure_rate=0.0 if self.gate.has_promised_above(tier, now=now) else backlog.starts.sure_rate,
            is_early=request is None,
        )

    def add(self, sequence_id: int, request: GenerationRequest, *, now: float) -> None:
        """It is let in: sent to the engine."""
        num_tokens = len(request.prompt)
        work = self.backlog.work_of(num_tokens, request.max_tokens)
        self.backlog.add(Waiting(sequence_id, request.tier, request.tenant, num_tokens, work, now))

    def end(self, sequence_id: int, answer_len: int | None) -> None:
        """It waits or runs no more; its answer was so long, if it is whole."""
        self._note_starts()  # It may have started and ended since anybody looked, and that start is capacity too.
        self.backlog.end(sequence_id, answer_len=answer_len)

    def catch_up(self, statistics: ReplicaStatistics, *, now: float) -> None:
        """Enters what the engine has said since."""
        self._note_starts()
        # By the engine's word of its last step, or by what is plain from here while a long one runs.
        is_held = statistics.num_waiting > 0 or len(self.backlog) > self._num_slots - sum(self.backlog.num_running())
        self.backlog.starts.advance(is_held=is_held, num_decoded=statistics.counters.num_decode_tokens, now=now)

    def late(self, *, now: float) -> list[tuple[int, Overloaded]]:
        """Those of lower tiers that have waited for too long, and what they are to be told."""
        found = []
        least_s = MAX_LATE * min(self._budgets_s.values())
        for entry in self.backlog.late(before=now - least_s):
            waited_s = now - entry.since
            if waited_s >= MAX_LATE * self._budgets_s[entry.tier]:
                wait_s = self.gate.estimate_wait_s(
                    entry.tier,
                    work_ahead=self.backlog.ahead_of(entry.tier, entry.tenant).work,
                    capacity_rate=self.backlog.rate,
                    now=now,
                )
                found.append((entry.sequence_id, no_place(waited_s, wait_s)))
        return found

    def _note_starts(self) -> None:
        for _ in range(len(self.starts)):
            self.backlog.start(self.starts.popleft())

    def _work_ahead(
        self, tier: str, tenant: str, own_work: float, rate: float, statistics: ReplicaStatistics, *, now: float
    ) -> float:
        index = self._indexes[tier]
        is_held = any(each.num_waiting for each in statistics.tiers[: index + 1])
        work = work_before(
            self.backlog.ahead_of(tier, tenant),
            num_free_slots=0 if is_held else self._num_free_slots(index),
            num_free_tokens=0 if is_held else self._num_free_tokens(index, statistics),
            own_work=own_work,
            higher_share=self.gate.higher_rate(tier, now=now) / rate,
        )
        return with_margin(work, self.backlog.typical_work)

    def _num_free_slots(self, index: int) -> int:
        """That this tier could take, as far as this side knows of starts and ends."""
        by_tier = self.backlog.num_running()
        num = self._num_slots - sum(by_tier)
        if index > 0:
            num = min(num, self._num_slots - self._num_reserved_slots - sum(by_tier[1:]))
        if self._may_preempt:
            num += sum(by_tier[index + 1 :])
        return max(num, 0)

    def _num_free_tokens(self, index: int, statistics: ReplicaStatistics) -> int:
        """KV memory, as of a step ago or so; with what lower tiers hold, taken as their share of what runs."""
        num_held = statistics.num_held_blocks
        if self._may_preempt and statistics.num_running:
            num_lower = sum([tier.num_running for tier in statistics.tiers[index + 1 :]])
            num_held -= num_held * num_lower // statistics.num_running
        return (statistics.num_blocks - num_held) * BLOCK_SIZE


def start_gate_of(tiers: tuple[TierConfig, ...], config: ReplicaConfig) -> StartGate | None:
    """None under the policies that are there to be compared: they let everybody wait, as such servers do."""
    return StartGate(tiers, config, secret=os.urandom(16)) if config.policy is ReplicaPolicy.CONTINUOUS else None
