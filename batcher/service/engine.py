"""One scheduler, one StepBackend and the texts, joined: requests in, text out, step by step.

It is synchronous and belongs to one thread, so that the same engine runs under a service (`batcher.service.replica` gives it a
thread and callers) and alone, in a benchmark or a notebook, where nothing else is measured with it:

    engine = Engine(create_model("smollm2"), ReplicaConfig())
    engine.load()
    prompt = engine.model.tokenizer.encode("Once upon a time")
    engine.submit(1, GenerationRequest(tenant="me", tier="paid", prompt=prompt, max_tokens=20), now=engine.clock())
    for sequence_id, event in engine.run():
        print(sequence_id, event)

A step that fails takes its sequences with it; the others go on. Running them again was refused: one of them may be what the
step failed on, and would take its neighbours down each time; the error tells callers that they may retry. After
MAX_FAILED_STEPS in a row, or when the backend is gone, it is given up with all that it ran: `lost` says why, and `load` starts
a new one.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from backends.base import KvLayout, Model, StepBackend, WorkerLost
from batcher.config import ReplicaConfig
from batcher.core.effects import Emit, ReplicaEffects
from batcher.core.replica.scheduler import Scheduler
from batcher.core.replica.sequence import Sequence
from batcher.core.replica.statistics import ReplicaStatistics
from batcher.errors import NO_WORKER_RETRY_AFTER_S, BadOutput, Overloaded, ServerFault, ServiceError, WorkerFailed
from batcher.service import log
from batcher.service.answers import Answers
from batcher.service.generation import Event, Events, GenerationRequest
from batcher.service.generation_meters import EngineMeters
from batcher.types import Outcome, Step

MAX_FAILED_STEPS = 3
"""Steps that may fail in a row before the backend is given up: one may be a bad input's, three are the device's."""


class _Flight(msgspec.Struct, frozen=True):
    """A step that the scheduler counts on."""

    step: Step
    launched_at: float
    launch_error: Exception | None = None
    """It was never launched; it fails when its turn comes, for the scheduler takes steps in their order."""


class Engine:
    """`_answers` has what was submitted and has not ended; `_inflight` the steps in flight, the oldest first.

    Sequence ids come from the owner, each used once. If the scheduler raises, which is a bug, that comes out of whatever method
    called it, and the engine is not to be used again.
    """

    def __init__(self, model: Model, config: ReplicaConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.model = model
        self.config = config
        self.clock = clock
        self.meters = EngineMeters(config.tiers)
        self.lost: BaseException | None = None
        """Why the backend was given up; None while it works and before the first `load`."""
        self._scheduler = Scheduler(config, model_version=model.info.version)
        self._backend: StepBackend | None = None
        self.has_been_up = False
        self.num_collected = 0
        """Steps that gave their tokens."""
        self._depth = 1
        self._answers = Answers(model.tokenizer.token_bytes, self.meters)
        self._inflight: deque[_Flight] = deque()
        self._num_failed_in_row = 0
        self._collected_at = 0.0
        self._has_stepped = False
        """Whether the last `step` found something to launch or to collect."""

    # Life.

    def load(self) -> None:
        """Starts a backend, the first or after a loss. Blocks for as long as that takes; raises what its `load` raises."""
        assert not self.is_up
        assert not self._answers
        self.close()
        if self.lost is not None:
            self._scheduler = Scheduler(self.config, model_version=self.model.info.version)  # No KV that it knows of is left.
        self._backend = backend = self.model.make_backend()
        try:
            backend.load(self.layout)
        except BaseException as error:
            self.lost = error
            raise
        self._depth = backend.max_inflight_steps
        self._num_failed_in_row = 0
        self.lost = None
        self.has_been_up = True

    def close(self) -> None:
        """Gives the backend back. Idempotent. What is live stays so and gets no more tokens: `fail_all` ends it."""
        backend, self._backend = self._backend, None
        self._inflight.clear()
        if backend is not None:
            try:
                backend.close()
            except BaseException as error:
                log.error("backend_close_failed", exc_info=error)

    @property
    def layout(self) -> KvLayout:
        """What a backend must have room for."""
        return KvLayout(
            num_blocks=self.config.num_blocks,
            max_num_seqs=self.config.max_num_seqs,
            max_model_len=self.config.max_model_len,
            max_step_tokens=self._scheduler.max_step_tokens,
        )

    @property
    def is_up(self) -> bool:
        """Whether there is a backend that works."""
        return self._backend is not None and self.lost is None

    @property
    def num_live(self) -> int:
        """What was submitted and has not ended."""
        return len(self._answers)

    def tell_starts(self, on_start: Callable[[int], None]) -> None:
        """From now on it is told the id of whatever starts, on this engine's own thread."""
        self._answers.on_start = on_start

    def has_started(self, sequence_id: int) -> bool:
        """Whether a step has computed some of its prompt; not, if it is not live. Any thread may ask."""
        return self._answers.has_started(sequence_id)

    def statistics(self) -> ReplicaStatistics:
        return self._scheduler.statistics()

    def check(self, *, is_deep: bool = False) -> None:
        """Asserts that nothing was lost or kept; deep: block by block."""
        # Ends that the scheduler has decided and not told yet are live here only.
        assert self._scheduler.num_live <= len(self._answers), (self._scheduler.num_live, len(self._answers))
        self._scheduler.check(deep=is_deep)

    # Requests.

    def submit(self, sequence_id: int, request: GenerationRequest, *, now: float, arrived_at: float | None = None) -> Events:
        """Lets a request in, or refuses it at once. `arrived_at` is when its caller gave it, if that was before `now`."""
        arrived_at = now if arrived_at is None else arrived_at
        self._answers.begin(sequence_id, request, arrived_at)
        events: Events = []
        if not self.is_up:
            error = Overloaded("the model is not loaded", retry_after_s=NO_WORKER_RETRY_AFTER_S)
            self._answers.fail(sequence_id, Outcome.REJECTED_CAPACITY, error, events)
            return events
        sequence = Sequence(
            id=sequence_id,
            tenant=request.tenant,
            tier=request.tier,
            prompt=request.prompt,
            max_tokens=request.max_tokens,
            sampling=request.sampling,
            stop_ids=frozenset() if request.ignores_stop else self.model.tokenizer.stop_ids,
            arrived_at=arrived_at,
            deadline_at=request.deadline_at,
            salt=request.salt,
        )
        self._perform(self._scheduler.submit(sequence, now=now), now, events)
        return events

    def cancel(self, sequence_id: int, *, now: float) -> Events:
        """Its caller has left. Nothing happens if it has ended."""
        events: Events = []
        if self._answers.cancel(sequence_id, events):
            self._scheduler.cancel(sequence_id, now=now)
        return events

    def drain(self, *, now: float) -> None:
        """Refuses what comes from now on; what was accepted need not wait for company."""
        self._scheduler.drain(now=now)

    def fail_all(self, error: ServiceError, *, now: float) -> Events:
        """Ends everything live."""
        events: Events = []
        self._perform(self._scheduler.fail_all(error, now=now), now, events)
        return events

    # Steps.

    def step(self) -> Events:
        """Launches what may run, waits for the oldest step and turns its tokens into text; never raises what a backend raises.

        With a backend that queues its work, the next step is launched before the oldest is waited for, so that the device
        never waits for this thread.
        """
        events = self.tick()
        self._has_stepped = self._launch(events)
        if self._inflight:
            self._has_stepped = True
            self._collect(events)
        return events

    def tick(self) -> Events:
        """Ends what has waited past its deadline. `step` does so too; this does not take as long as a step."""
        events: Events = []
        now = self.clock()
        deadline = self._scheduler.next_deadline()
        if deadline is not None and deadline <= now:
            self._perform(self._scheduler.tick(now=now), now, events)
        return events

    def wait_s(self) -> float | None:
        """How long the next `step` would find nothing to do if nobody comes; None: for ever."""
        if self._has_stepped or self._inflight:
            return 0.0
        deadline = self._scheduler.next_deadline()
        return None if deadline is None else max(0.0, deadline - self.clock())

    def run(self) -> Iterator[tuple[int, Event]]:
        """Steps until nothing is live, and gives out the events. Raises what the backend was lost to."""
        while self._answers:
            yield from self.step()
            if self.lost is not None:
                raise self.lost
            if wait_s := self.wait_s():
                time.sleep(wait_s)

    def _launch(self, events: Events) -> bool:
        """Launches until the backend has as many steps as it takes. Whether there was any."""
        has_launched = False
        while self.is_up and len(self._inflight) < self._depth:
            now = self.clock()
            step = self._scheduler.schedule(now=now)
            if step is None:
                break
            has_launched = True
            self._answers.note_starts(step, now=now)
            assert self._backend is not None
            try:
                self._backend.launch(step)
            except Exception as error:
                self._inflight.append(_Flight(step, now, error))
                break  # What follows on it could only be lost with it.
            except BaseException as error:
                self._lose(error, events)
            else:
                self._inflight.append(_Flight(step, now))
        return has_launched

    def _collect(self, events: Events) -> None:
        flight = self._inflight.popleft()
        step = flight.step
        assert self._backend is not None
        try:
            if flight.launch_error is not None:
                raise flight.launch_error
            tokens = self._backend.collect()
            if len(tokens) != step.num_sampled:
                raise BadOutput(f"the step samples {step.num_sampled} tokens, and the backend gave {len(tokens)}")
        except BaseException as error:
            self._step_failed(step, error, events)
            return
        now = self.clock()
        self.meters.step_s.observe(now - max(flight.launched_at, self._collected_at))
        self.meters.step_sequences.observe(len(step.sequences))
        self._collected_at = now
        self._num_failed_in_row = 0
        self.num_collected += 1
        self._perform(self._scheduler.update(step, tokens, now=now), now, events)

    def _step_failed(self, step: Step, error: BaseException, events: Events) -> None:
        self.meters.num_failed_steps += 1
        self._num_failed_in_row += 1
        is_gone = isinstance(error, WorkerLost) or not isinstance(error, Exception)
        if is_gone or self._num_failed_in_row >= MAX_FAILED_STEPS:
            self._lose(error, events)
            return
        log.warning("step_failed", step=step.step_id, num_sequences=len(step.sequences), error=f"{error!r:.500}")
        now = self.clock()
        failure = ServerFault("the step that computed this answer failed")
        self._perform(self._scheduler.fail_step(step, failure, now=now), now, events)

    def _lose(self, error: BaseException, events: Events) -> None:
        """Gives the backend up, and everything that ran or waited with it. It is closed at the next `load`."""
        log.error("backend_lost", exc_info=error, live=self.num_live)
        self.meters.num_losses += 1
        self.lost = error
        self._inflight.clear()
        events += self.fail_all(WorkerFailed("the model that computed this answer was lost"), now=self.clock())

    def _perform(self, effects: ReplicaEffects, now: float, events: Events) -> None:
        answers = self._answers
        for effect in effects:
            if not isinstance(effect, Emit):
                answers.fail(effect.sequence_id, effect.outcome, effect.error, events)
            elif answers.add_token(effect, now, events):
                self._scheduler.finish(effect.sequence_id, now=now)
