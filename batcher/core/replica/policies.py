"""When waiting sequences may start: the three batching policies of SPEC S11, so that each one's gain can be seen alone.

A policy says how many more may start now, and when that could change by time alone. Who starts, and whether there is memory,
is the same under all of them.
"""

from math import inf
from typing import Protocol

from batcher.config import KvMode, ReplicaConfig, ReplicaPolicy


class Policy(Protocol):
    num_slots: int
    """Sequences that may run at once."""
    num_reserved: int
    """Slots among them that only the first tier may take."""
    may_preempt_for_tier: bool
    """Whether a waiting sequence may take the place of a running one of a lower tier."""
    starts_whole_batch: bool
    """Whether sequences start together, though their prompts take several steps."""

    def num_open(self, *, num_running: int, num_waiting: int, oldest_at: float, is_draining: bool, now: float) -> int:
        """How many may start now, slots in use apart. `num_waiting` is at least 1."""

    def num_padding(self, *, num_running: int) -> int:
        """Rows of the batch whose sequences have ended and that are computed nevertheless. Asked at each step."""

    def opens_at(self, *, num_running: int, oldest_at: float) -> float:
        """When more may start though nothing happens before; infinity if time alone changes nothing."""


class Continuous:
    """A place that falls free is taken in the next step (SPEC S6.1)."""

    starts_whole_batch = False

    def __init__(self, config: ReplicaConfig) -> None:
        self.num_slots = config.max_num_seqs
        has_reserve = config.max_num_seqs > 1 and len(config.tiers) > 1
        self.num_reserved = max(1, int(config.reserved_slot_share * config.max_num_seqs)) if has_reserve else 0
        self.may_preempt_for_tier = config.kv is KvMode.PAGED

    def num_open(self, *, num_running: int, num_waiting: int, oldest_at: float, is_draining: bool, now: float) -> int:
        return self.num_slots

    def num_padding(self, *, num_running: int) -> int:
        return 0

    def opens_at(self, *, num_running: int, oldest_at: float) -> float:
        return inf


class Static:
    """A batch starts when none runs: a full one at once, another when its oldest has waited for the timeout.

    What finishes early leaves its slot empty, and what is preempted for memory waits for the next batch. The batch is one
    tensor of a fixed shape: rows of those that have ended are computed until the last one ends, as most libraries' `generate`
    does. `_batch_size` is how many the batch had at most.
    """

    num_reserved = 0
    may_preempt_for_tier = False
    starts_whole_batch = True

    def __init__(self, config: ReplicaConfig) -> None:
        self.num_slots = config.max_num_seqs
        self._timeout_s = config.static_timeout_s
        self._batch_size = 0

    def num_open(self, *, num_running: int, num_waiting: int, oldest_at: float, is_draining: bool, now: float) -> int:
        if num_running:
            return 0
        leaves = is_draining or num_waiting >= self.num_slots or oldest_at + self._timeout_s <= now
        return self.num_slots if leaves else 0

    def num_padding(self, *, num_running: int) -> int:
        self._batch_size = max(self._batch_size, num_running) if num_running else 0
        return self._batch_size - num_running

    def opens_at(self, *, num_running: int, oldest_at: float) -> float:
        return inf if num_running else oldest_at + self._timeout_s


class Single:
    """One at a time: the best latency when idle, and a device that is mostly wasted."""

    num_slots = 1
    num_reserved = 0
    may_preempt_for_tier = False
    starts_whole_batch = False

    def num_open(self, *, num_running: int, num_waiting: int, oldest_at: float, is_draining: bool, now: float) -> int:
        return 1

    def num_padding(self, *, num_running: int) -> int:
        return 0

    def opens_at(self, *, num_running: int, oldest_at: float) -> float:
        return inf


def create_policy(config: ReplicaConfig) -> Policy:
    if config.policy is ReplicaPolicy.STATIC:
        return Static(config)
    if config.policy is ReplicaPolicy.SINGLE:
        return Single()
    return Continuous(config)
