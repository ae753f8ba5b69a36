"""The shell's stand-in: the effects of the real gate and dispatcher, performed on a virtual clock by pretended workers.

The core is the very code that the service runs; a simulator that re-implements what it studies was refused, for the two drift
(microsoft/vidur). What the shell does with a request is here in the same order: the gate is asked, then the dispatcher.
"""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Protocol

from batcher.core.admission.gate import Gate, Refusal
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.effects import Answer, Effects, Refuse, RunBatch, StartWorker, StopWorker
from batcher.sim.faults import KILLER, POISON, Faults, RunFate, StartFate
from batcher.sim.latency import Latency
from batcher.sim.loop import Loop
from batcher.sim.report import Recorder
from batcher.types import Outcome, Request, WorkerFault

_LEAVES_WITHIN_S = 2.0
"""Callers who leave do so before this: nearly all would have been answered by then."""


def run_batch(inputs: list[str]) -> list[str]:
    """What every simulated worker computes."""
    return [f"<{word}>" for word in inputs]


class Watcher(Protocol):
    """Sees all that goes into the dispatcher and all that comes out. It changes nothing; it raises when a law is broken."""

    def refused(self, request: Request, refusal: Refusal, *, now: float) -> None:
        """By the gate: it never went into the dispatcher."""

    def submitted(self, request: Request, *, now: float) -> None: ...
    def cancelled(self, request_id: int, was_live: bool, *, now: float) -> None: ...
    def drained(self, *, now: float) -> None: ...
    def became_ready(self, worker_id: int, incarnation: int, *, now: float) -> None: ...
    def was_lost(self, worker_id: int, incarnation: int, *, now: float) -> None: ...
    def completed(self, batch_id: int, attempt: int, outputs: object, *, now: float) -> None: ...
    def raised(self, batch_id: int, attempt: int, *, now: float) -> None: ...
    def ticked(self, *, now: float) -> None: ...
    def before_advance(self, to: float) -> None: ...
    def performs(self, effects: Effects, *, now: float) -> None:
        """What the dispatcher answered to the one before."""
        ...


class World:
    """A gate, a dispatcher, and workers that obey the faults.

    `_incarnations` holds the incarnation that lives on each worker, `_departures` when the batch that runs there left,
    `_sleepers` the batches that run until they are given up, and are heard of then. Whatever a worker in `_sick` runs raises.
    """

    def __init__(
        self,
        *,
        loop: Loop,
        gate: Gate,
        dispatcher: Dispatcher,
        latency: Latency,
        faults: Faults,
        rng: Random,
        recorder: Recorder,
        start_s: float,
        start_timeout_s: float,
        watcher: Watcher | None = None,
    ) -> None:
        self._loop = loop
        self._gate = gate
        self._dispatcher = dispatcher
        self._latency = latency
        self._faults = faults
        self._rng = rng
        self._recorder = recorder
        self._start_s = start_s
        self._start_timeout_s = start_timeout_s
        self._watcher = watcher
        self._incarnations: dict[int, int] = {}
        self._departures: dict[int, float] = {}
        self._sleepers: dict[int, RunBatch] = {}
        self._sick: set[int] = set()
        self._has_cancels = faults.plan.cancels > 0.0
        self.next_deadline = dispatcher.next_deadline

    def run(self, arrivals: Iterator[Request], *, ties: Random | None = None, until: float) -> None:
        """Everything, from the start of the workers until nothing is left to do. Faults come by themselves until `until`."""
        faults, loop = self._faults, self._loop
        for at in faults.instants(faults.plan.idle_deaths_rate, until=until):
            loop.call_at(at, self._die_by_itself)
        for at in faults.instants(faults.plan.stalls_rate, until=until):
            loop.call_at(at, loop.stall, faults.portion(faults.plan.stall_s))
        self._perform(self._dispatcher.start())
        before_advance = self._watcher.before_advance if self._watcher is not None else None
        loop.run(self, arrivals, before_advance=before_advance, ties=ties)

    # What the loop calls.

    def arrive(self, request: Request) -> None:
        """A request at the front door: the gate first, then the dispatcher."""
        now = self._loop.now
        dispatcher, gate = self._dispatcher, self._gate
        if request.deadline_at <= now:
            self._recorder.ended(request.tier, Outcome.EXPIRED)
            return
        capacity_rate = dispatcher.capacity_rate
        fresh_share = partial(gate.fresh_share, request.tier, capacity_rate=capacity_rate, now=now)
        refusal = gate.admit(
            request.tier,
            work_ahead=dispatcher.num_ahead_of(request.tier, request.tenant, fresh_share=fresh_share),
            key=request.tenant,
            capacity_rate=capacity_rate,
            now=now,
            batch_size=dispatcher.max_batch_size,
        )
        if refusal is not None:
            if self._watcher is not None:
                self._watcher.refused(request, refusal, now=now)
            self.refuse(request, refusal)
            return
        if self._watcher is not None:
            self._watcher.submitted(request, now=now)
        effects = dispatcher.submit(request, now=now)
        if effects or self._watcher is not None:
            self._perform(effects)
        if self._has_cancels and self._faults.happens(self._faults.plan.cancels):
            leaves_at = now + self._faults.portion(min(request.deadline_at - now, _LEAVES_WITHIN_S))
            self._loop.call_at(leaves_at, self.cancel, request)

    def refuse(self, request: Request, refusal: Refusal) -> None:
        """The gate's word. Its caller does not come back."""
        self._recorder.ended(request.tier, refusal.outcome)

    def submit(self, request: Request) -> None:
        """A request that goes past the gate."""
        now = self._loop.now
        if self._watcher is not None:
            self._watcher.submitted(request, now=now)
        self._perform(self._dispatcher.submit(request, now=now))

    def tick(self, due_at: float) -> None:
        now = self._loop.now
        if self._watcher is not None:
            self._watcher.ticked(now=now)
        self._perform(self._dispatcher.tick(now=now, due_at=due_at))

    def cancel(self, request: Request) -> None:
        was_live = self._dispatcher.cancel(request.id)
        if was_live:
            self._recorder.ended(request.tier, Outcome.CANCELLED)
        if self._watcher is not None:
            self._watcher.cancelled(request.id, was_live, now=self._loop.now)

    def drain(self) -> None:
        now = self._loop.now
        if self._watcher is not None:
            self._watcher.drained(now=now)
        self._gate.drain()
        self._perform(self._dispatcher.drain(now=now))

    def calm(self, latency: Latency) -> None:
        """From now on nothing goes wrong, and batches take this."""
        self._faults.stop()
        self._sick.clear()
        self._latency = latency

    # Effects.

    def _perform(self, effects: Effects) -> None:
        now = self._loop.now
        if self._watcher is not None:
            self._watcher.performs(effects, now=now)
        answered = self._recorder.answered
        for effect in effects:
            kind = type(effect)
            if kind is Answer:
                request = effect.request  # type: ignore[union-attr]
                answered[request.tier](now - request.arrived_at)
            elif isinstance(effect, RunBatch):
                self._run_batch(effect)
            elif isinstance(effect, Refuse):
                self._recorder.ended(effect.request.tier, effect.outcome)
            elif isinstance(effect, StartWorker):
                self._start_worker(effect)
            elif isinstance(effect, StopWorker):
                self._stop_worker(effect)

    def _start_worker(self, effect: StartWorker) -> None:
        worker = (effect.worker_id, effect.incarnation)
        self._incarnations[effect.worker_id] = effect.incarnation
        if self._faults.happens(self._faults.plan.sick):
            self._sick.add(effect.worker_id)
        ready_at = self._loop.now + self._start_s
        fate = self._faults.start_fate()
        if fate is StartFate.READY:
            self._loop.call_at(ready_at, self._become_ready, *worker, False)
        elif fate is StartFate.LATE:
            self._loop.call_at(self._loop.now + 1.1 * self._start_timeout_s, self._become_ready, *worker, True)
        elif fate is StartFate.FAILS:
            self._loop.call_at(ready_at, self._lose, *worker, WorkerFault.NOT_STARTED, False)

    def _stop_worker(self, effect: StopWorker) -> None:
        departed_at = self._departures.pop(effect.worker_id, None)
        if departed_at is not None:
            self._recorder.landed(departed_at=departed_at, now=self._loop.now)
        self._incarnations.pop(effect.worker_id, None)
        self._sick.discard(effect.worker_id)
        self._recorder.lost(effect.fault)
        sleeper = self._sleepers.pop(effect.worker_id, None)
        if sleeper is not None:
            # Soon, while the next attempt runs.
            wakes_at = self._loop.now + self._faults.portion(self._latency.expected_s(len(sleeper.requests)))
            self._loop.call_at(wakes_at, self._speak_late, sleeper)

    def _run_batch(self, effect: RunBatch) -> None:
        loop, faults = self._loop, self._faults
        now = loop.now
        self._recorder.departed(effect.reason, len(effect.requests))
        self._departures[effect.worker_id] = now
        duration_s = self._latency.draw(len(effect.requests), self._rng)
        words = [request.input for request in effect.requests]
        fate = faults.run_fate()
        if faults.happens(faults.plan.handoff_cancels):
            member = effect.requests[faults.choose(len(effect.requests))]
            loop.call_at(now + duration_s * faults.choose(2), self.cancel, member)
        if fate is RunFate.DIES or any(word.startswith(KILLER) for word in words):
            dies_at = now + faults.portion(duration_s)
            loop.call_at(dies_at, self._lose, effect.worker_id, effect.incarnation, WorkerFault.DIED, False)
        elif fate is RunFate.ANSWERS_LATE:
            self._sleepers[effect.worker_id] = effect
        elif effect.worker_id in self._sick or any(word.startswith(POISON) for word in words):
            loop.call_at(now + faults.portion(duration_s), self._raise, effect, False)
        elif fate is RunFate.BAD_OUTPUT:
            loop.call_at(now + duration_s, self._complete, effect, faults.bad_outputs(run_batch(words)), False)
        elif fate is RunFate.ANSWERS:
            loop.call_at(now + duration_s, self._complete, effect, run_batch(words), False)

    # What workers say.

    def _lives(self, worker_id: int, incarnation: int) -> bool:
        return self._incarnations.get(worker_id) == incarnation

    def _become_ready(self, worker_id: int, incarnation: int, is_late: bool) -> None:
        if self._lives(worker_id, incarnation) or is_late:
            now = self._loop.now
            if self._watcher is not None:
                self._watcher.became_ready(worker_id, incarnation, now=now)
            self._perform(self._dispatcher.worker_ready(worker_id, incarnation, now=now))

    def _lose(self, worker_id: int, incarnation: int, fault: WorkerFault, is_late: bool) -> None:
        if not self._lives(worker_id, incarnation) and not is_late:
            return
        num_reports = 2 if self._faults.happens(self._faults.plan.echoes) else 1
        now = self._loop.now
        for _ in range(num_reports):
            if self._watcher is not None:
                self._watcher.was_lost(worker_id, incarnation, now=now)
            self._perform(self._dispatcher.worker_lost(worker_id, incarnation, fault, now=now))

    def _die_by_itself(self) -> None:
        living = list(self._incarnations.items())
        if living:
            self._lose(*living[self._faults.choose(len(living))], WorkerFault.DIED, False)

    def _speak_late(self, effect: RunBatch) -> None:
        """A worker that was given up says something of its run after all."""
        kind = self._faults.choose(4)
        if kind <= 1:
            self._complete(effect, run_batch([request.input for request in effect.requests]), True)
        elif kind == 2:
            self._raise(effect, True)
        else:
            self._lose(effect.worker_id, effect.incarnation, WorkerFault.DIED, True)

    def _complete(self, effect: RunBatch, outputs: object, is_late: bool) -> None:
        """The run returned. A late word is spoken though its worker was given up."""
        if not self._land(effect) and not is_late:
            return
        now = self._loop.now
        if self._watcher is not None:
            self._watcher.completed(effect.batch_id, effect.attempt, outputs, now=now)
        self._perform(self._dispatcher.complete(effect.batch_id, effect.attempt, outputs, now=now))

    def _raise(self, effect: RunBatch, is_late: bool) -> None:
        if not self._land(effect) and not is_late:
            return
        now = self._loop.now
        if self._watcher is not None:
            self._watcher.raised(effect.batch_id, effect.attempt, now=now)
        self._perform(self._dispatcher.fail(effect.batch_id, effect.attempt, now=now))

    def _land(self, effect: RunBatch) -> bool:
        """Whether the worker that runs the batch still lives; it runs nothing any more."""
        if not self._lives(effect.worker_id, effect.incarnation):
            return False
        self._recorder.landed(departed_at=self._departures.pop(effect.worker_id), now=self._loop.now)
        return True
