"""The heart: which requests run together, on which worker, when, and what happens when that fails.

It decides and never acts: every input returns effects for its shell to perform. The rules, in the order in which they bind:

- A request that was accepted has exactly one end: `Answer`, `Refuse`, or its owner's `cancel`.
- Batches that run again go before fresh ones, being the oldest; a search for a bad input has but a share of the workers.
- The members of a fresh batch are chosen at the moment it leaves for a free worker, never earlier. When that moment comes is
  the policy's business, who is taken is the tiers'.
- Whatever passes its deadline ends then, waiting or running, whether or not a worker is free.
- A worker's late word (an older incarnation, a superseded attempt) changes nothing.
"""

from collections.abc import Callable
from itertools import count
from math import inf

from batcher.config import DispatchConfig
from batcher.core.dispatch.inflight import Batch, Flight, Inflight
from batcher.core.dispatch.ledger import Ledger
from batcher.core.dispatch.policies import Load, create_policy
from batcher.core.dispatch.retry import Retries
from batcher.core.dispatch.service_time import ServiceTime
from batcher.core.dispatch.statistics import Counters, DispatchStatistics, gather
from batcher.core.dispatch.tiers import Tiers
from batcher.core.dispatch.verdicts import describe_outputs, expired, no_room, read_outputs, why_lost, why_raised
from batcher.core.dispatch.workers import Worker, Workers, WorkerState
from batcher.core.effects import NOTHING, Answer, Effect, Effects, Refuse, RunBatch, StartWorker, StopWorker
from batcher.errors import ServiceError
from batcher.types import BatchReason, Outcome, Request, WorkerFault


class Dispatcher:
    """The dispatcher of batch mode. One owner calls it; it has no locks.

    `_live` holds every request that was accepted and has not ended; each of them either waits in `_tiers`, or is a member of
    one batch in `_inflight` or `_retries` (batches that run again as soon as a worker is free). A batch may have members that
    have ended, by deadline or cancellation: their outputs are dropped. `_departs_at` is `_next_departure_at()` as it is now.
    """

    def __init__(self, config: DispatchConfig, *, now: float) -> None:
        self._config = config
        self._policy = create_policy(config)
        self.max_batch_size = self._policy.max_batch_size
        self._tiers = Tiers(config.tiers, max_requests=config.max_waiting, max_bytes=config.max_waiting_bytes)
        self._workers = Workers(config, now=now)
        self._inflight = Inflight()
        self._batch_ids = count(1)
        self._retries = Retries(config, ids=self._batch_ids)
        self._live = Ledger()
        self._service_time = ServiceTime(config.service_time_s, hang_cap_s=config.first_batch_timeout_s)
        self._load = Load(service_time_s=config.service_time_s)
        self._counters = Counters()
        self._is_draining = False
        self._departs_at = inf

    def __repr__(self) -> str:
        counts = f"waiting={self._tiers.num_waiting} inflight={len(self._inflight)} parked={len(self._retries)}"
        return f"<Dispatcher live={len(self._live)} {counts} ready={self._workers.num_ready}>"

    @property
    def live_requests(self) -> tuple[Request, ...]:
        """Those that were accepted and have not ended, in order of arrival."""
        return tuple(self._live)

    @property
    def num_ready_workers(self) -> int:
        return self._workers.num_ready

    @property
    def capacity_rate(self) -> float:
        """Requests per second that the ready workers serve in full batches, by their time of late; 0 if none is ready."""
        return self._workers.num_ready * self.max_batch_size / self._service_time.mean_s

    def num_ahead_of(self, tier: str, tenant: str, *, fresh_share: Callable[[], float] | None = None) -> int:
        """About how many would leave before the tenant's next request (`Tiers.num_ahead_of`). O(number of tiers)."""
        num_ahead = self._tiers.num_ahead_of(tier, tenant, fresh_share=fresh_share, batch_size=self.max_batch_size)
        return num_ahead + self._retries.num_requests

    def next_deadline(self) -> float | None:
        """When to call `tick` if nothing happens before; None if nothing is due. What has passed is due now."""
        instant = min(self._live.next_deadline(), self._workers.next_deadline(), self._departs_at)
        return instant if instant != inf else None

    def statistics(self) -> DispatchStatistics:
        return gather(self._counters, self._live, self._tiers, self._workers, self._inflight, self._retries, self._service_time)

    def submit(self, request: Request, *, now: float) -> Effects:
        """Accepts a request, or refuses it in the effects when there is no room for it to wait.

        Raises ValueError, and changes nothing, if its id is live, its tier unknown or its deadline past.
        """
        if request.id in self._live or request.tier not in self._tiers or request.deadline_at <= now:
            raise ValueError(f"request {request.id}: a live id, an unknown tier {request.tier!r} or a deadline in the past")
        if not self._tiers.has_room_for(request):
            self._counters.num_no_room += 1
            return (no_room(request, self._tiers.num_waiting, self.capacity_rate),)
        displaced = self._tiers.push(request)
        self._live.open(request)
        self._departs_at = self._next_departure_at()
        if not displaced and self._departs_at > now:
            return NOTHING
        self._counters.num_displaced += len(displaced)
        for other in displaced:
            self._live.close(other)
        effects: list[Effect] = [no_room(other, self._tiers.num_waiting, self.capacity_rate) for other in displaced]
        return self._dispatch(effects, now=now)

    def has_left(self, request_id: int) -> bool:
        """Whether a live request has been sent to a worker."""
        return (request := self._live.find(request_id)) is not None and not self._tiers.is_waiting(request)

    def cancel(self, request_id: int) -> bool:
        """Its caller is gone: it never runs, or its output is dropped. False if it had ended, for the two may cross."""
        if (request := self._live.find(request_id)) is None:
            return False
        self._live.close(request)
        if self._tiers.is_waiting(request):
            self._tiers.remove(request)
            self._departs_at = self._next_departure_at()
        self._counters.num_cancelled += 1
        return True

    def drain(self, *, now: float) -> Effects:
        """From now on whatever waits leaves as soon as a worker is free. Refusing new requests is the gate's business."""
        self._is_draining = True
        return self._dispatch([], now=now)

    def start(self) -> Effects:
        """The first effects: start every worker."""
        return [StartWorker(worker.id, worker.incarnation) for worker in self._workers]

    def worker_ready(self, worker_id: int, incarnation: int, *, now: float) -> Effects:
        """This incarnation has started. Raises ValueError, and changes nothing, if it had said so before."""
        if (worker := self._workers.find(worker_id, incarnation)) is None:
            return self._late()
        if worker.state is not WorkerState.STARTING:
            raise ValueError(f"{worker!r} reported ready twice")
        self._workers.ready(worker)
        return self._dispatch([], now=now)

    def worker_lost(self, worker_id: int, incarnation: int, fault: WorkerFault, *, now: float) -> Effects:
        """This incarnation is gone: its batch runs again elsewhere and the worker is replaced after a rest (SPEC S1.6)."""
        if (worker := self._workers.find(worker_id, incarnation)) is None:
            return self._late()
        effects: list[Effect] = []
        self._expire(effects, now=now)
        self._lose(worker, fault, effects, now=now)
        return self._dispatch(effects, now=now)

    def complete(self, batch_id: int, attempt: int, outputs: object, *, now: float) -> Effects:
        """`run_batch` returned this. Outputs of the wrong number or type are the worker's fault and reach nobody."""
        if (flight := self._inflight.find(batch_id, attempt)) is None:
            return self._late()
        effects: list[Effect] = []
        answers: list[Answer] = []
        self._expire(effects, now=now)
        worker = self._workers[flight.worker_id]
        texts = read_outputs(outputs, len(flight.batch.requests))
        if texts is None:
            self._counters.num_bad_outputs += 1
            returned = describe_outputs(outputs, len(flight.batch.requests))
            self._lose(worker, WorkerFault.BAD_OUTPUT, effects, now=now, returned=returned)
        else:
            self._service_time.observe(now - flight.departed_at, is_first=not worker.has_completed)
            self._land(flight, has_succeeded=True)
            for request, text in zip(flight.batch.requests, texts, strict=True):
                if request.id in self._live:
                    self._live.close(request)
                    answers.append(Answer(request, text, flight.departed_at))
        # The worker's next batch first: a GPU that waits for answers to be written costs more than they do.
        return [*self._dispatch(effects, now=now), *answers]

    def fail(self, batch_id: int, attempt: int, *, now: float) -> Effects:
        """`run_batch` raised: one of the inputs is bad and the worker is not. Only the culprit gets an error."""
        if (flight := self._inflight.find(batch_id, attempt)) is None:
            return self._late()
        self._counters.num_raised += 1
        effects: list[Effect] = []
        self._expire(effects, now=now)
        worker = self._workers[flight.worker_id]
        self._workers.count_raise(worker)
        if self._workers.is_to_blame(worker):
            self._lose(worker, WorkerFault.RAISING, effects, now=now)
        else:
            self._land(flight, has_succeeded=False)
            remaining = self._live.still_live(flight.batch.requests)
            if remaining and not self._retries.park_after_raise(flight.batch, remaining):
                self._refuse_all(remaining, why_raised(flight.batch), effects)
        return self._dispatch(effects, now=now)

    def tick(self, *, now: float, due_at: float | None = None) -> Effects:
        """Does what is due: expires requests, gives hung workers up, starts rested ones, lets a batch leave. `due_at` is the
        instant it was asked for: if it comes much later the shell was away, and workers that seem to hang are excused."""
        effects: list[Effect] = []
        if due_at is not None:
            self._workers.excuse(now - due_at)
        self._expire(effects, now=now)
        for worker in self._workers.pop_due(now=now):
            if worker.state is WorkerState.RESTING:
                self._workers.restart(worker, now=now)
                effects.append(StartWorker(worker.id, worker.incarnation))
            else:
                fault = WorkerFault.HUNG if worker.state is WorkerState.BUSY else WorkerFault.NOT_STARTED
                self._lose(worker, fault, effects, now=now)
        return self._dispatch(effects, now=now)

    def _next_departure_at(self) -> float:
        """When what waits may leave: infinity while there is nothing to send or nobody to send it to."""
        if not self._workers.num_free:
            return inf
        if self._retries.num_requests and self._is_retry_due:
            return -inf
        if not self._tiers.num_waiting:
            return inf
        load = self._load
        load.num_waiting, load.oldest_at = self._tiers.num_waiting, self._tiers.oldest_at()
        load.num_running, load.num_workers = self._inflight.num_requests, self._workers.num_ready
        load.service_time_s = self._service_time.mean_s
        return load.oldest_at if self._is_draining else self._policy.leaves_at(load)

    @property
    def _is_retry_due(self) -> bool:
        is_alone = not self._tiers.num_waiting or self._workers.num_free > 1
        return self._retries.is_due(self._inflight.num_searching, self._workers.num_ready, is_alone=is_alone)

    def _late(self) -> Effects:
        self._counters.num_late += 1
        return NOTHING

    def _dispatch(self, effects: list[Effect], *, now: float) -> list[Effect]:
        """Sends batches while one may leave and a worker is free. Returns the list that it adds to."""
        self._expire(effects, now=now)
        while (departs_at := self._next_departure_at()) <= now:
            is_canary = self._workers.is_on_probation(self._workers.next_free())
            max_size = 1 if is_canary else self.max_batch_size
            if self._is_retry_due:
                batch = self._retries.pop(self._live, max_size=max_size)
                if batch is None:
                    continue
            else:
                batch = self._next_fresh(max_size, now=now)
            worker = self._workers.assign(longest_s=self._service_time.longest_s, now=now)
            self._inflight.add(Flight(batch, worker.id, now))
            self._counters.count_departure(batch)
            effects.append(RunBatch(worker.id, worker.incarnation, batch.id, batch.attempt, batch.requests, batch.reason))
        self._departs_at = departs_at
        return effects

    def _next_fresh(self, max_size: int, *, now: float) -> Batch:
        """Chooses now who leaves now."""
        reason = BatchReason.DRAIN if self._is_draining else self._policy.reason(self._load, now=now)
        requests = self._tiers.take(max_size, now=now)
        if max_size == self.max_batch_size:  # A canary leaves beside the pace, not within it.
            self._policy.departed(self._load, now=now)
            self._retries.budget.deposit()
        return Batch(next(self._batch_ids), 1, requests, reason)

    def _lose(self, worker: Worker, fault: WorkerFault, effects: list[Effect], *, now: float, returned: str = "") -> None:
        effects.append(StopWorker(worker.id, worker.incarnation, fault, returned))
        self._workers.lose(worker, now=now)
        self._counters.faults[fault] += 1
        if (flight := self._inflight.on_worker(worker.id)) is None:
            return
        if fault is WorkerFault.HUNG and worker.has_completed:
            self._service_time.observe_hang(now - flight.departed_at)
        self._inflight.remove(flight)
        remaining = self._live.still_live(flight.batch.requests)
        if remaining and not self._retries.park_after_loss(flight.batch, remaining):
            self._refuse_all(remaining, why_lost(flight.batch, fault, returned), effects)

    def _land(self, flight: Flight, *, has_succeeded: bool) -> None:
        self._inflight.remove(flight)
        self._workers.release(self._workers[flight.worker_id], has_succeeded=has_succeeded)

    def _expire(self, effects: list[Effect], *, now: float) -> None:
        """First of all: what is past its deadline neither runs nor is answered, however late the tick comes."""
        for request in self._live.close_due(now=now):
            if self._tiers.is_waiting(request):
                self._tiers.remove(request)
            effects.append(expired(request))

    def _refuse_all(self, requests: tuple[Request, ...], error: ServiceError, effects: list[Effect]) -> None:
        for request in requests:
            self._live.close(request)
            effects.append(Refuse(request, Outcome.FAILED, error))

    def check(self) -> None:
        """Asserts the object's laws. O(live requests + workers), both bounded by the configuration."""
        self._tiers.check()
        self._inflight.check()
        self._workers.check()
        self._live.check()
        assert self._departs_at == self._next_departure_at(), "what waits leaves at another instant than it says"
        batches = [flight.batch for flight in self._inflight] + list(self._retries)
        placed = [request.id for queue in self._tiers for request in queue]
        placed += [request.id for batch in batches for request in batch.requests if request.id in self._live]
        assert sorted(placed) == sorted(r.id for r in self._live), "a live request is in no place, or in two"
        assert all(1 <= len(b.requests) <= self.max_batch_size and b.attempt <= self._config.max_attempts for b in batches)
        assert self._workers.count(WorkerState.BUSY) == len(self._inflight), "a busy worker without a batch, or the reverse"
        assert not (self._retries.num_lost and self._workers.num_free), "a batch waits to run again beside a free worker"
