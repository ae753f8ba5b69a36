"""Drives the dispatcher: calls it with the time, performs its effects, and sleeps until its next deadline.

The hot path is callback-shaped: `submit` returns at once and `on_end` is called once. No request takes a task or a future.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from math import inf
from typing import TypeAlias

from backends.base import BackendFactory
from batcher.core.admission.gate import Gate, Refusal
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.effects import NOTHING, Answer, Effects, Refuse, RunBatch, StartWorker, StopWorker
from batcher.errors import ConfigError, InputFailed, ServerFault, ServiceError, ShuttingDown
from batcher.service import log
from batcher.service.auth import Caller
from batcher.service.late import LateWatch
from batcher.service.meters import Meters
from batcher.service.output import is_text
from batcher.service.workers import Supervisor
from batcher.types import Outcome, Request, WorkerFault

End: TypeAlias = Answer | Refuse
OnEnd: TypeAlias = Callable[[End, float], None]
"""Told the end, and what the batch of an Answer took where it was computed, in seconds."""

_CHECK_S = 1.0
"""How often an idle driver has the dispatcher check its laws: O(workers) then, well under a millisecond."""


class Driver:
    """Joins gate, dispatcher and workers on one event loop, which is the only one that may call it.

    `_waiters` has every request whose caller waits, with the callback. `_timer` is armed for `_wake_at`, never later than the
    dispatcher's next deadline; it may be earlier, and then ticks in vain. `_now` never goes back, though a timer may fire a
    little early. Once `_has_failed` (a decision raised, or a law is broken: a bug) or `_is_closed`, nothing is decided.
    """

    def __init__(
        self,
        *,
        dispatcher: Dispatcher,
        gate: Gate,
        factory: BackendFactory,
        meters: Meters,
        request_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._dispatcher = dispatcher
        self._gate = gate
        self._supervisor = Supervisor(factory, self)
        self._meters = meters
        self._request_timeout_s = request_timeout_s
        self._clock = clock
        self._now = clock()
        self._check_at = -inf
        self._waiters: dict[int, tuple[Request, OnEnd]] = {}
        self._late = LateWatch(self._waiters, dispatcher, gate, read_clock=self._read_clock, end_all=self._end_all)
        self._ids = count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._wake_at = inf
        self._is_draining = False
        self._is_closed = False
        self._has_failed = False
        self._has_been_ready = False
        self.config_error: ConfigError | None = None
        """Why no worker will ever start: this process had better end and say so."""
        self._is_idle = asyncio.Event()
        """Set when a draining driver has no live request left."""

    # Requests.

    def submit(self, caller: Caller, input_: str, num_bytes: int, on_end: OnEnd) -> int:
        """Lets a request in, or ends it at once. `on_end` is called once, perhaps before this returns. Returns its id."""
        now = self._read_clock()
        dispatcher = self._dispatcher
        request = Request(next(self._ids), caller.tenant, caller.tier, input_, num_bytes, now, now + self._request_timeout_s)
        self._waiters[request.id] = (request, on_end)
        if self._has_failed:
            self._end(Refuse(request, Outcome.FAILED, _internal_error()))
            return request.id
        refusal = self._ask_gate(caller, is_early=False, now=now)
        if refusal is None:
            self._decide(lambda: dispatcher.submit(request, now=now))
        else:
            self._end(Refuse(request, refusal.outcome, refusal.error))
        return request.id

    def refuse_early(self, caller: Caller) -> ServiceError | None:
        """Why a request of this caller's would be refused now, before it is read; then that is counted as its end.

        None is no promise: `submit` judges again."""
        refusal = self._ask_gate(caller, is_early=True, now=self._read_clock())
        if refusal is None:
            return None
        self._meters.tiers[caller.tier].outcomes[refusal.outcome] += 1
        return refusal.error

    def limit_factor(self, tier: str) -> float:
        """What the tier's limits are to be multiplied by now (SPEC S8.2)."""
        return self._gate.limit_factor(tier, now=self._read_clock())

    def cancel(self, request_id: int) -> bool:
        """The caller is gone: `on_end` will not be called; nothing happens if it was. Whether a worker was sent its input."""
        waiter = self._waiters.pop(request_id, None)
        has_left = waiter is not None and self._dispatcher.has_left(request_id)
        if waiter is not None:
            self._meters.tiers[waiter[0].tier].outcomes[Outcome.CANCELLED] += 1
            self._decide(lambda: self._withdraw(request_id))
            self._note_idle()
        return has_left

    def is_live(self, request_id: int) -> bool:
        """Whether its caller still waits."""
        return request_id in self._waiters

    @property
    def num_live(self) -> int:
        """Accepted requests whose callers still wait."""
        return len(self._waiters)

    async def wait_idle(self) -> None:
        """Returns when no request is live, once draining."""
        assert self._is_draining
        self._note_idle()
        await self._is_idle.wait()

    @property
    def is_ready(self) -> bool:
        """Whether a request that comes now can be served: not draining, sound, and a worker is up."""
        return not self._is_draining and not self._has_failed and self._dispatcher.num_ready_workers > 0

    # Life.

    def start(self) -> None:
        self._decide(self._dispatcher.start)
        self._late.start()

    def drain(self) -> None:
        """Refuses what comes from now on; what was accepted leaves as fast as it can."""
        self._is_draining = True
        self._gate.drain()
        self._decide(lambda: self._dispatcher.drain(now=self._read_clock()))

    def abandon(self) -> None:
        """Ends every live request as refused: nobody waits for the drain any longer."""
        for request, _ in list(self._waiters.values()):
            self._dispatcher.cancel(request.id)
        error = ShuttingDown("this server is shutting down and could not answer in time", retry_after_s=1)
        self._end_everything(Outcome.REJECTED_SHUTDOWN, error)

    async def close(self) -> None:
        """Ends what is live and then the workers. From now on nothing is decided, whatever they still report."""
        self._gate.drain()
        self.abandon()
        self._is_closed = True
        self._late.close()
        if self._timer is not None:
            self._timer.cancel()
        await self._supervisor.close()

    # What workers report.

    def worker_ready(self, worker_id: int, incarnation: int) -> None:
        self._has_been_ready = True
        self._decide(lambda: self._dispatcher.worker_ready(worker_id, incarnation, now=self._read_clock()))

    def worker_lost(self, worker_id: int, incarnation: int, fault: WorkerFault) -> None:
        self._decide(lambda: self._dispatcher.worker_lost(worker_id, incarnation, fault, now=self._read_clock()))

    def worker_misconfigured(self, error: ConfigError) -> None:
        if self._has_been_ready or self.config_error is None:  # At the start all workers find out the same, at once.
            log.error("worker_misconfigured", reason=str(error))
        if not self._has_been_ready:
            self.config_error = error

    def batch_completed(self, batch: RunBatch, outputs: object, run_s: float) -> None:
        self._meters.run_s.observe(run_s)
        now = self._read_clock()
        self._decide(lambda: self._dispatcher.complete(batch.batch_id, batch.attempt, outputs, now=now), run_s=run_s)

    def batch_failed(self, batch: RunBatch) -> None:
        self._decide(lambda: self._dispatcher.fail(batch.batch_id, batch.attempt, now=self._read_clock()))

    # Effects and time.

    def _ask_gate(self, caller: Caller, *, is_early: bool, now: float) -> Refusal | None:
        dispatcher, gate = self._dispatcher, self._gate
        capacity_rate = dispatcher.capacity_rate
        fresh_share = partial(gate.fresh_share, caller.tier, capacity_rate=capacity_rate, now=now)
        return gate.admit(
            caller.tier,
            key=caller.key_id or caller.tenant,
            work_ahead=dispatcher.num_ahead_of(caller.tier, caller.tenant, fresh_share=fresh_share),
            capacity_rate=capacity_rate,
            now=now,
            batch_size=dispatcher.max_batch_size,
            is_early=is_early,
        )

    def _decide(self, decide: Callable[[], Effects], *, run_s: float = 0.0) -> None:
        """Asks the dispatcher and performs what it says.

        If that raises, which is a bug, everybody who waits is told so and this process is not ready any more: better than
        callers who wait for an answer that nobody will give.
        """
        if self._is_closed or self._has_failed:
            return
        try:
            self._perform(decide(), run_s=run_s)
            if not self._waiters and self._now >= self._check_at:
                self._check_at = self._now + _CHECK_S
                self._dispatcher.check()
        except Exception as error:
            self._has_failed = True
            log.error("dispatcher_failed", exc_info=error, dispatcher=repr(self._dispatcher))
            self._end_everything(Outcome.FAILED, _internal_error())

    def _perform(self, effects: Effects, *, run_s: float) -> None:
        """`run_s` is what the batch of the answers among them took where it was computed."""
        ends: list[End] = []
        num_started = 0
        for effect in effects:
            if isinstance(effect, Answer | Refuse):
                ends.append(effect)
            elif isinstance(effect, RunBatch):
                oldest_at = min(request.arrived_at for request in effect.requests)
                self._meters.oldest_wait_s.observe(self._now - oldest_at)
                self._supervisor.run(effect)
                num_started += 1
            elif isinstance(effect, StartWorker):
                self._supervisor.start(effect.worker_id, effect.incarnation)
            else:
                assert isinstance(effect, StopWorker)
                self._supervisor.stop(effect)
        self._arm()
        if ends and num_started:
            # After the first step of the tasks that send the batches: workers wait for nobody's answers.
            asyncio.get_running_loop().call_soon(self._end_all, ends, run_s)
        elif ends:
            self._end_all(ends, run_s)

    def _end_all(self, ends: list[End], run_s: float) -> None:
        for end in ends:
            self._end(end, run_s)
        self._note_idle()

    def _end_everything(self, outcome: Outcome, error: ServiceError) -> None:
        for request, _ in list(self._waiters.values()):
            self._end(Refuse(request, outcome, error))
        self._note_idle()

    def _end(self, end: End, run_s: float = 0.0) -> None:
        waiter = self._waiters.pop(end.request.id, None)
        if waiter is None:
            return  # The caller left after the answer was decided and before it was sent.
        if isinstance(end, Answer) and not is_text(end.output):
            end = Refuse(end.request, Outcome.FAILED, InputFailed("the output for this input has no UTF-8 form"))
        try:
            waiter[1](end, run_s)
        except Exception as error:
            # One caller's connection must not cost the others of its batch their answers.
            log.error("answer_not_sent", exc_info=error)
        self._meters.count(end, run_s, now=self._clock())

    def _withdraw(self, request_id: int) -> Effects:
        self._dispatcher.cancel(request_id)
        return NOTHING

    def _note_idle(self) -> None:
        if self._is_draining and not self._waiters:
            self._is_idle.set()

    def _read_clock(self) -> float:
        self._now = max(self._now, self._clock())
        return self._now

    def _arm(self) -> None:
        deadline = self._dispatcher.next_deadline()
        if deadline is None or deadline >= self._wake_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        now = self._read_clock()
        self._wake_at = max(deadline, now)  # What has passed is due now, and not late.
        self._timer = asyncio.get_running_loop().call_later(self._wake_at - now, self._wake)

    def _wake(self) -> None:
        due_at, self._wake_at, self._timer = self._wake_at, inf, None
        # A timer may fire a fraction of a millisecond early; the deadline it was set for counts as reached.
        self._now = now = max(self._read_clock(), due_at)
        self._decide(lambda: self._dispatcher.tick(now=now, due_at=due_at))


def _internal_error() -> ServerFault:
    return ServerFault("internal error")
