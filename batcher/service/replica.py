"""One replica as its callers see it: an engine on a thread of its own, asked from the event loop and answered there.

Like the driver of batch mode it is callback-shaped: `submit` returns at once, and `on_event` is called on the loop, with no
task or future for each request. Whatever happens to the engine, each request has one end (`batcher.service.callers`).
"""

import asyncio
from itertools import count

from backends.base import Model
from batcher.config import ReplicaConfig
from batcher.core.admission.gate import Refusal
from batcher.core.replica.statistics import ReplicaStatistics
from batcher.errors import NO_WORKER_RETRY_AFTER_S, ConfigError, Expired, Overloaded, ServerFault, ServiceError, ShuttingDown
from batcher.service import log
from batcher.service.auth import Caller
from batcher.service.callers import Callers, OnEvent, OnUsage
from batcher.service.engine import Engine
from batcher.service.engine_thread import START_BACKOFF_S, Cancel, Drain, EngineThread, Submit
from batcher.service.generation import NO_USAGE, Events, Failed, GenerationRequest
from batcher.service.replica_state import ReplicaState
from batcher.service.start_gate import StartGate
from batcher.service.stuck import StuckTime
from batcher.types import Outcome

STALL_S = 60.0
"""A pass of the engine that takes longer has hung. A first step may compile kernels; nothing else takes more than seconds."""
WATCH_S = 1.0
"""How often the engine is looked at from outside."""
CLOSE_S = 5.0
"""What the pass in progress and the backend's own `close` may take at the end; then the thread is left to itself."""
FULL_RETRY_AFTER_S = 1
"""The inbox is emptied at each step: whoever finds it full finds room soon, or a replica that is not ready."""


class Replica:
    """Belongs to one event loop, which is the only one that may call it, and is created there.

    The engine belongs to the thread once that is started.
    """

    def __init__(
        self,
        model: Model,
        config: ReplicaConfig,
        *,
        start_gate: StartGate | None = None,
        stall_s: float = STALL_S,
        start_backoff_s: float = START_BACKOFF_S,
    ) -> None:
        """Without a gate everybody may wait, as long as there is room in the queue."""
        self.model = model
        self.config = config
        engine = Engine(model, config)
        self.meters = engine.meters
        self.config_error: ConfigError | None = None
        """Why it cannot ever start: this process had better end and say so."""
        self._thread = EngineThread(engine, self, start_backoff_s=start_backoff_s)
        self._gate = start_gate
        if start_gate is not None:
            engine.tell_starts(start_gate.starts.append)
        self._callers = Callers(
            config.tiers,
            withdraw=lambda sequence_id: self._thread.send(Cancel(sequence_id)),
            on_end=None if start_gate is None else start_gate.end,
        )
        self.outcomes = self._callers.outcomes
        self._engine = engine
        self._clock = engine.clock
        self._loop = asyncio.get_running_loop()
        self._stall_s = stall_s
        self._state = ReplicaState.STARTING
        self._is_draining = False
        self._is_stalled = False
        self._ids = count(1)
        self._watch_timer: asyncio.TimerHandle | None = None
        self._watch_interval_s = min(WATCH_S, stall_s / 4)
        self._stuck_time = StuckTime(self._clock, interval_s=self._watch_interval_s)
        self._has_settled = asyncio.Event()
        """Set when it is ready for the first time, or has ended."""
        self._has_ended = asyncio.Event()
        self._is_idle = asyncio.Event()
        """Set when a draining replica has nothing live left."""

    # Requests.

    def submit(self, request: GenerationRequest, on_event: OnEvent, *, key_id: str = "") -> int:
        """Lets a request in, or ends it at once: then `on_event` is called before this returns. Never blocks. Returns its id.

        `key_id` is whom a time to come back is promised to; the tenant's, by itself. Whoever calls has seen to it that prompt
        and max_tokens fit `config.max_model_len` and the KV blocks.
        """
        sequence_id = next(self._ids)
        now = self._clock()
        refusal = self._refusal(request.tier, request.tenant, key_id, request, now=now)
        if refusal is not None:
            self._callers.refuse(request.tier, Failed(refusal.outcome, refusal.error, NO_USAGE), on_event)
            return sequence_id
        self._callers.add(sequence_id, request, on_event)
        if self._gate is not None:
            self._gate.add(sequence_id, request, now=now)
        self._thread.send(Submit(sequence_id, request, now))
        return sequence_id

    def refuse_early(self, caller: Caller) -> ServiceError | None:
        """Why a request of this caller's would be refused now, before it is read; then that is counted as its end.

        None is no promise: `submit` judges again."""
        refusal = self._refusal(caller.tier, caller.tenant, caller.key_id, None, now=self._clock())
        if refusal is None:
            return None
        self.outcomes[caller.tier][refusal.outcome] += 1
        return refusal.error

    def limit_factor(self, tier: str) -> float:
        """What the tier's limits are to be multiplied by now (SPEC S8.2)."""
        return 1.0 if self._gate is None else self._gate.gate.limit_factor(tier, now=self._clock())

    def cancel(self, sequence_id: int, on_usage: OnUsage | None = None) -> None:
        """The caller is gone: `on_event` is not called any more. Nothing happens if its end was told.

        What it held is free within two steps. Then `on_usage` is called with what was sampled until then.
        """
        self._callers.cancel(sequence_id, on_usage)

    @property
    def num_live(self) -> int:
        """Requests whose callers wait, and those that left and may still hold something of the engine's."""
        return len(self._callers)

    async def wait_idle(self) -> None:
        """Returns when nothing is live, once draining."""
        assert self._is_draining
        self._note_idle()
        await self._is_idle.wait()

    # State.

    @property
    def state(self) -> ReplicaState:
        return self._state

    @property
    def is_ready(self) -> bool:
        """Whether a request that comes now can be served."""
        return self._state is ReplicaState.READY and not self._is_stalled and not self._is_draining

    async def wait_ready(self) -> None:
        """Returns when the model is loaded. Raises ConfigError if it cannot ever be, ServerFault if it has ended instead."""
        await self._has_settled.wait()
        if self.config_error is not None:
            raise self.config_error
        if self._state is ReplicaState.ENDED:
            raise ServerFault("the replica has ended")

    def statistics(self) -> ReplicaStatistics:
        """The scheduler's, as of a step ago or so."""
        return self._thread.statistics

    def load(self) -> dict[str, object]:
        """What a router wants to know (SPEC S7.2), as of a step ago or so; with what is in the inbox."""
        statistics = self._thread.statistics
        waiting_tokens = {tier.name: tier.num_waiting_tokens for tier in statistics.tiers}
        for tier, unread in self._thread.unread.items():
            waiting_tokens[tier] += unread.num_tokens
        return {
            "ready": self.is_ready,
            "state": self._state,
            "live": self.num_live,
            "running": statistics.num_running,
            "slots": statistics.num_slots,
            "waiting": {tier.name: tier.num_waiting for tier in statistics.tiers},
            "waiting_tokens": waiting_tokens,
            "blocks": statistics.num_blocks,
            "free_blocks": statistics.num_free_blocks,
            "held_blocks": statistics.num_held_blocks,
            "cached_blocks": statistics.num_cached_blocks,
        }

    @property
    def num_failed_checks(self) -> int:
        return self._thread.num_failed_checks

    # Life.

    def start(self) -> None:
        self._thread.start()
        self._watch()

    def drain(self) -> None:
        """Refuses what comes from now on; what was accepted goes on to its end."""
        if not self._is_draining:
            self._is_draining = True
            self._thread.send(Drain())

    def abandon(self) -> None:
        """Ends every live request as refused: nobody waits for the drain any longer."""
        error = ShuttingDown("this server is shutting down and could not finish the answer in time", retry_after_s=1)
        self._end_all(Outcome.REJECTED_SHUTDOWN, error)

    async def close(self) -> None:
        """Ends what is live, then the thread, in CLOSE_S at most: one whose step hangs stays until the process ends."""
        self._is_draining = True
        self.abandon()
        if self._watch_timer is None:
            self.engine_ended(None)  # It was never started.
            return
        self._watch_timer.cancel()
        self._thread.stop()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._has_ended.wait()
        except TimeoutError:
            log.error("engine_thread_left", reason="its step or its backend's close does not return")
            self.engine_ended(None)
        else:
            self._thread.join(CLOSE_S)  # It has said its last word: this takes microseconds.

    # What the engine's thread reports.

    def deliver(self, events: Events) -> None:
        if self._state is not ReplicaState.ENDED:
            self._callers.deliver(events)
            self._note_idle()

    def engine_ready(self) -> None:
        if self._state is not ReplicaState.ENDED:
            self._state = ReplicaState.READY
            self._has_settled.set()

    def engine_lost(self) -> None:
        """Whoever waits now came after the loss, and would wait for as long as a model takes to load."""
        if self._state is not ReplicaState.ENDED:
            self._state = ReplicaState.RESTARTING
            self._end_all(Outcome.REJECTED_CAPACITY, _not_ready())

    def engine_unsound(self) -> None:
        self.drain()

    def engine_ended(self, error: BaseException | None) -> None:
        self._state = ReplicaState.ENDED
        if isinstance(error, ConfigError):
            log.error("replica_misconfigured", reason=str(error))
            self.config_error = error
        self._end_all(Outcome.FAILED, ServerFault("internal error"))
        self._callers.settle()
        self._has_settled.set()
        self._has_ended.set()
        self._note_idle()

    # Ends that are decided here.

    def _refusal(self, tier: str, tenant: str, key_id: str, request: GenerationRequest | None, *, now: float) -> Refusal | None:
        if self._is_draining:
            return Refusal(Outcome.REJECTED_SHUTDOWN, ShuttingDown("this server is shutting down", retry_after_s=1))
        if self._state is ReplicaState.ENDED:
            return Refusal(Outcome.FAILED, ServerFault("internal error"))
        if not self.is_ready:
            return Refusal(Outcome.REJECTED_CAPACITY, _not_ready())
        if self._thread.is_inbox_full(tier, num_tokens=len(request.prompt) if request is not None else 1):
            error = Overloaded("too many requests are waiting", retry_after_s=FULL_RETRY_AFTER_S)
            return Refusal(Outcome.REJECTED_CAPACITY, error)
        if self._gate is None:
            return None
        return self._gate.judge(tier, tenant, key_id or tenant, request, self._thread.statistics, now=now)

    def _end_all(self, outcome: Outcome, error: ServiceError) -> None:
        self._callers.end_all(outcome, error)
        self._note_idle()

    def _note_idle(self) -> None:
        if self._is_draining and not self._callers:
            self._is_idle.set()

    def _watch(self) -> None:
        """Looks whether the engine moves: if a pass hangs, its callers are told. If it comes back, so does the replica."""
        now = self._clock()
        stuck_s = self._stuck_time.measure_s(self._thread.busy_since, now=now)
        if stuck_s <= self._stall_s:
            if self._is_stalled:
                log.warning("engine_recovered")
            self._is_stalled = False
        elif not self._is_stalled:
            self._is_stalled = True
            log.error("engine_stalled", stuck_s=round(stuck_s, 3), live=len(self._callers))
            self._end_all(Outcome.FAILED, ServerFault("the model does not answer"))
        if stuck_s > self._watch_interval_s:
            # Deadlines are the scheduler's business, and during a long pass it cannot mind them.
            for sequence_id in self._callers.overdue(now):
                if not self._engine.has_started(sequence_id):
                    self._callers.end(sequence_id, Outcome.EXPIRED, Expired("the model was not free in time"))
        if self._gate is not None:
            self._gate.catch_up(self._thread.statistics, now=now)
            for sequence_id, error in self._gate.late(now=now):
                self._callers.end(sequence_id, Outcome.REJECTED_CAPACITY, error)
        self._watch_timer = self._loop.call_later(self._watch_interval_s, self._watch)


def _not_ready() -> Overloaded:
    return Overloaded("the model is not ready", retry_after_s=NO_WORKER_RETRY_AFTER_S)
