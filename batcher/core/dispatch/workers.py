"""The life of each worker, from start to loss and back, with backoff and a circuit breaker.

    STARTING ──ready──> FREE ──assign──> BUSY ──release──> FREE
        └──────lost───────┴──────lost──────┘
                            v
                         RESTING ──rest over──> STARTING (next incarnation)

A failure makes a worker rest for the backoff, doubled for each further failure in a row; at the threshold its breaker opens
and it rests long. Whenever it is back, what it gets first is a canary of one request, where the retry budget allows. A batch
that succeeds clears it of all.
A fleet-wide breaker was refused: one bad GPU must not take good ones down.
"""

from collections import deque
from collections.abc import Iterator
from enum import Enum, auto
from math import inf

from batcher.config import DispatchConfig
from batcher.core.dispatch.deadlines import Deadlines

_HANG_SLACK_S = 0.1
"""A hang is never called sooner than this after the expected end: shorter pauses come from a busy machine."""


_STALL_S = 0.02
"""Coming later than this is a stall of the owner; less is how timers are."""

_NUM_RAISED_TO_BLAME = 5
"""Raises in a row that point to the worker: with a tenth of all batches bad, chance makes five in a row once in 100,000."""


class WorkerState(Enum):
    """Where a worker is in its life; the module's drawing has the events between."""

    STARTING = auto()
    FREE = auto()
    BUSY = auto()
    RESTING = auto()


_NEXT = {
    (WorkerState.STARTING, "ready"): WorkerState.FREE,
    (WorkerState.FREE, "assign"): WorkerState.BUSY,
    (WorkerState.BUSY, "release"): WorkerState.FREE,
    (WorkerState.STARTING, "lost"): WorkerState.RESTING,
    (WorkerState.FREE, "lost"): WorkerState.RESTING,
    (WorkerState.BUSY, "lost"): WorkerState.RESTING,
    (WorkerState.RESTING, "rested"): WorkerState.STARTING,
}


class Worker:
    """One worker. Only `Workers` changes it."""

    __slots__ = ("balance_before", "has_completed", "id", "incarnation", "num_failures", "num_raised", "state")

    def __init__(self, worker_id: int) -> None:
        self.id = worker_id
        self.incarnation = 1
        self.state = WorkerState.STARTING
        self.num_failures = 0
        """Failures in a row."""
        self.num_raised = 0
        """Batches in a row that raised on it."""
        self.balance_before = 0
        """The fleet's balance (see `Workers`) when the first of those raised."""
        self.has_completed = False
        """Whether this incarnation has completed a batch."""

    def __repr__(self) -> str:
        return f"<Worker {self.id}.{self.incarnation} {self.state.name} failures={self.num_failures}>"


class Workers:
    """All workers. `_free` holds the free ones, the one that has been free longest first; `_due` the one instant each other
    worker is waited for until: its start, its batch, or its rest."""

    __slots__ = ("_all", "_balance", "_config", "_due", "_free", "num_ready")

    def __init__(self, config: DispatchConfig, *, now: float) -> None:
        self._config = config
        self._all = [Worker(worker_id) for worker_id in range(config.num_workers)]
        self._free: deque[Worker] = deque()
        self._due = Deadlines()
        self.num_ready = 0
        """Free or busy: those that can be counted on."""
        self._balance = 0
        """Batches that succeeded less batches that raised, on any worker."""
        for worker in self._all:
            self._due.set(worker.id, now + config.start_timeout_s)

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._all)

    def __getitem__(self, worker_id: int) -> Worker:
        return self._all[worker_id]

    def find(self, worker_id: int, incarnation: int) -> Worker | None:
        """The worker if this incarnation is its current one and not given up."""
        worker = self._all[worker_id]
        is_current = worker.incarnation == incarnation and worker.state is not WorkerState.RESTING
        return worker if is_current else None

    @property
    def num_free(self) -> int:
        return len(self._free)

    def is_on_probation(self, worker: Worker) -> bool:
        """Whether it has failed and not succeeded since: its next batch is a canary."""
        return worker.num_failures > 0

    def is_broken(self, worker: Worker) -> bool:
        """Whether its circuit breaker is open, or half open."""
        return worker.num_failures >= self._config.breaker_threshold

    def next_free(self) -> Worker:
        """The one that `assign` would take. There must be one."""
        return self._free[0]

    def ready(self, worker: Worker) -> None:
        self._move(worker, "ready")
        worker.has_completed = False
        worker.num_raised = 0
        self._due.discard(worker.id)
        self._free.append(worker)
        self.num_ready += 1

    def assign(self, *, longest_s: float, now: float) -> Worker:
        """Takes the next free worker for a batch, the longest of which take `longest_s`; beyond its allowance it hangs."""
        worker = self._free.popleft()
        self._move(worker, "assign")
        allowance_s = max(longest_s * self._config.hang_factor, longest_s + _HANG_SLACK_S)
        if not worker.has_completed:
            allowance_s = max(allowance_s, self._config.first_batch_timeout_s)
        self._due.set(worker.id, now + allowance_s)
        return worker

    def release(self, worker: Worker, *, has_succeeded: bool) -> None:
        """Its batch ended, and not by its fault."""
        self._move(worker, "release")
        self._due.discard(worker.id)
        self._free.append(worker)
        if has_succeeded:
            self._balance += 1
            worker.num_failures = worker.num_raised = 0
            worker.has_completed = True

    def count_raise(self, worker: Worker) -> None:
        """Its batch raised, and has not been released yet."""
        if not worker.num_raised:
            worker.balance_before = self._balance
        worker.num_raised += 1
        self._balance -= 1

    def is_to_blame(self, worker: Worker) -> bool:
        """Whether what raises on it is its own fault: so many in a row, while elsewhere clearly more succeed than raise.

        Where much raises everywhere the inputs are bad, or the whole backend, and to stop workers would not help.
        """
        balance_elsewhere = self._balance - worker.balance_before + worker.num_raised
        return worker.num_raised >= _NUM_RAISED_TO_BLAME and balance_elsewhere >= _NUM_RAISED_TO_BLAME - 1

    def lose(self, worker: Worker, *, now: float) -> None:
        """It failed: rest, longer for each failure in a row."""
        was = worker.state
        self._move(worker, "lost")
        if was is WorkerState.FREE:
            self._free.remove(worker)
        if was is not WorkerState.STARTING:
            self.num_ready -= 1
        worker.num_failures += 1
        self._due.set(worker.id, now + self._rest_s(worker))

    def restart(self, worker: Worker, *, now: float) -> None:
        """Its rest is over: it becomes the next incarnation, starting."""
        self._move(worker, "rested")
        worker.incarnation += 1
        self._due.set(worker.id, now + self._config.start_timeout_s)

    def excuse(self, late_s: float) -> None:
        """The owner came so late: if that was a stall, every worker that is waited for has so much more time."""
        assert 0.0 <= late_s < inf
        if late_s < _STALL_S:
            return
        for worker in self._all:
            if worker.state in (WorkerState.BUSY, WorkerState.STARTING):
                self._due.postpone(worker.id, late_s)

    def next_deadline(self) -> float:
        return self._due.first()

    def pop_due(self, *, now: float) -> list[Worker]:
        """Those whose instant has come: BUSY ones hang, STARTING ones are late, RESTING ones may start again."""
        return [self._all[worker_id] for worker_id in self._due.pop_due(now=now)]

    def count(self, state: WorkerState) -> int:
        return sum(worker.state is state for worker in self._all)

    def num_broken(self) -> int:
        """Workers whose breaker is open or half open."""
        return sum(self.is_broken(worker) for worker in self._all)

    def _rest_s(self, worker: Worker) -> float:
        config = self._config
        if self.is_broken(worker):
            return config.breaker_rest_s
        return min(config.breaker_rest_s, config.restart_backoff_s * 2.0 ** (worker.num_failures - 1))

    def _move(self, worker: Worker, event: str) -> None:
        key = (worker.state, event)
        assert key in _NEXT, f"{worker!r} cannot take {event}"
        worker.state = _NEXT[key]

    def check(self) -> None:
        assert list(self._free) == [w for w in self._free if w.state is WorkerState.FREE]
        assert len(set(self._free)) == len(self._free) == self.count(WorkerState.FREE)
        assert self.num_ready == self.count(WorkerState.FREE) + self.count(WorkerState.BUSY)
        assert len(self._due) == len(self._all) - len(self._free), "a worker that is not free has no instant to wait for"
        self._due.check()
