"""Where each request and each worker is, kept from inputs and effects alone.

The books stand apart from what they check: they never ask the dispatcher, and know of it only what its shell hears and says.
An effect that cannot be entered breaks a law: a second end, an answer that is not f(its own input), a batch for a busy worker.
"""

from collections.abc import Callable

from batcher.core.effects import Answer, Effect, Effects, Refuse, RunBatch, StartWorker, StopWorker
from batcher.types import MAX_BATCH_SIZE, BatchReason, Outcome, Request, WorkerFault

AGAIN = (BatchReason.RETRY, BatchReason.SPLIT)
"""Reasons of batches whose requests have run before."""


class LawBroken(AssertionError):
    """A law of SPEC S1 or DESIGN D9 was broken, with the law in words and the facts."""


def require(condition: bool, law: str, *facts: object) -> None:
    if not condition:
        raise LawBroken(f"{law}: {', '.join(map(repr, facts))}")


def is_one_text_each(outputs: object, num_inputs: int) -> bool:
    """Whether a worker kept the contract of `run_batch`."""
    return (
        isinstance(outputs, list | tuple) and len(outputs) == num_inputs and all(isinstance(output, str) for output in outputs)
    )


class Entry:
    """One accepted request that has not ended."""

    __slots__ = ("num_lost", "num_runs", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.num_runs = 0
        self.num_lost = 0
        """Runs that ended with the loss of their worker."""


class Bench:
    """One worker's current incarnation."""

    __slots__ = ("departed_at", "has_completed", "incarnation", "is_ready", "is_up", "num_failures", "num_raised", "run")

    def __init__(self) -> None:
        self.incarnation = 0
        self.is_up = False
        """Started, and not given up."""
        self.is_ready = False
        self.has_completed = False
        self.num_failures = 0
        """Losses in a row, over all incarnations; a batch that succeeds ends the row."""
        self.num_raised = 0
        """Batches in a row that raised on this incarnation."""
        self.run: RunBatch | None = None
        self.departed_at = 0.0

    @property
    def is_free(self) -> bool:
        return self.is_ready and self.run is None

    @property
    def is_on_probation(self) -> bool:
        """It failed and has not succeeded since: its next batch is a canary."""
        return self.num_failures > 0


class Books:
    """`live` has each accepted request that has not ended; it is in one of `waiting` (never ran), `again` (ran, and must
    run again) and the run of one of `benches`. `_expected` are those whom the input just entered must answer, and no other;
    `_doomed` is the worker that it must have given up. `_raised` are the members of the run that it said had raised."""

    def __init__(self, *, num_workers: int, answer_of: Callable[[str], str]) -> None:
        self.live: dict[int, Entry] = {}
        self.waiting: dict[int, Request] = {}
        self.again: dict[int, Request] = {}
        self.suspected: set[int] = set()
        """Those of `again` whose last run raised."""
        self.benches = [Bench() for _ in range(num_workers)]
        self.is_draining = False
        self.submitting: Request | None = None
        self.ended: set[int] = set()
        """Ids of those that have ended, to tell a second end from a stranger."""
        self.answered: set[int] = set()
        self._answer_of = answer_of
        self._expected: dict[int, float] = {}
        self._attempts: set[tuple[int, int]] = set()
        self._doomed: Bench | None = None
        self._raised: list[Request] = []
        self._is_late_word = False

    @property
    def has_free_worker(self) -> bool:
        return any(bench.is_free for bench in self.benches)

    # Inputs.

    def submitted(self, request: Request) -> None:
        require(request.id not in self.live and request.id not in self.ended, "an id is used once", request)
        self._begin()
        self.live[request.id] = Entry(request)
        self.waiting[request.id] = request
        self.submitting = request

    def cancelled(self, request_id: int, was_live: bool) -> None:
        require(was_live == (request_id in self.live), "cancel tells whether the request was live", request_id, was_live)
        if was_live:
            self._end(request_id)

    def became_ready(self, worker_id: int, incarnation: int) -> None:
        bench = self.benches[worker_id]
        self._begin(is_late_word=not bench.is_up or bench.incarnation != incarnation)
        if not self._is_late_word:
            bench.is_ready = True

    def was_lost(self, worker_id: int, incarnation: int) -> None:
        bench = self.benches[worker_id]
        self._begin(is_late_word=not bench.is_up or bench.incarnation != incarnation)
        self._doomed = None if self._is_late_word else bench

    def completed(self, batch_id: int, attempt: int, outputs: object) -> None:
        bench = self._bench_of(batch_id, attempt)
        self._begin(is_late_word=bench is None)
        if bench is None or bench.run is None:
            return
        requests = bench.run.requests
        if is_one_text_each(outputs, len(requests)):
            self._expected = {request.id: bench.departed_at for request in requests if request.id in self.live}
            bench.run = None
            bench.num_failures = bench.num_raised = 0
            bench.has_completed = True
        else:
            self._doomed = bench

    def raised(self, batch_id: int, attempt: int) -> None:
        bench = self._bench_of(batch_id, attempt)
        self._begin(is_late_word=bench is None)
        if bench is not None:
            bench.num_raised += 1
            self._raised = self._put_back(bench)
            self.suspected.update(request.id for request in self._raised)

    def ticked(self) -> None:
        self._begin()

    def drained(self) -> None:
        self._begin()
        self.is_draining = True

    # Effects.

    def performed(self, effects: Effects) -> None:
        """All effects of the input were entered: nothing that it had to bring about may be missing."""
        require(not (self._is_late_word and effects), "a late word changes nothing", effects)
        require(not self._expected, "outputs reach all who wait for them", self._expected)
        require(self._doomed is None or not self._doomed.is_up, "a worker that failed is given up", effects)

    def enter(self, effect: Effect, *, now: float) -> None:
        if isinstance(effect, Answer):
            self._answer(effect, now=now)
        elif isinstance(effect, Refuse):
            self._refuse(effect, now=now)
        elif isinstance(effect, RunBatch):
            self._run(effect, now=now)
        elif isinstance(effect, StartWorker):
            bench = self.benches[effect.worker_id]
            require(not bench.is_up, "a worker is started when the one before was given up", effect)
            require(effect.incarnation == bench.incarnation + 1, "incarnations count up by one", effect, bench.incarnation)
            bench.incarnation, bench.is_up = effect.incarnation, True
            bench.has_completed, bench.num_raised = False, 0
        else:
            self._stop(effect)

    def _answer(self, effect: Answer, *, now: float) -> None:
        request = effect.request
        self._require_live(request)
        require(request.id in self._expected, "an answer comes of the run that just returned", effect)
        require(effect.output == self._answer_of(request.input), "an answer is f of the request's own input", effect)
        require(type(effect.output) is str, "an answer is plain text, whatever the worker returned", type(effect.output))
        require(effect.departed_at == self._expected.pop(request.id), "an answer says when its run left", effect)
        require(now < request.deadline_at, "nothing is answered after its deadline", effect, now)
        self.answered.add(request.id)
        self._end(request.id)

    def _refuse(self, effect: Refuse, *, now: float) -> None:
        self._require_live(effect.request)
        require(effect.outcome not in (Outcome.OK, Outcome.CANCELLED), "a refusal is no success", effect)
        is_due = now >= effect.request.deadline_at
        require(effect.outcome is not Outcome.EXPIRED or is_due, "nothing expires before its deadline", effect, now)
        self._expected.pop(effect.request.id, None)
        self._end(effect.request.id)

    def _run(self, effect: RunBatch, *, now: float) -> None:
        bench = self.benches[effect.worker_id]
        require(bench.is_free and bench.incarnation == effect.incarnation, "a worker runs one batch at a time", effect)
        require(1 <= len(effect.requests) <= MAX_BATCH_SIZE, "a run has 1 to 50 inputs", effect)
        require((effect.batch_id, effect.attempt) not in self._attempts, "an attempt runs once", effect)
        source = self.again if effect.reason in AGAIN else self.waiting
        for request in effect.requests:
            self._require_live(request)
            require(source.pop(request.id, None) is not None, "a request is in one place", request, effect)
            self.suspected.discard(request.id)
            require(now < request.deadline_at, "nothing runs after its deadline", request, now)
            self.live[request.id].num_runs += 1
        self._attempts.add((effect.batch_id, effect.attempt))
        bench.run, bench.departed_at = effect, now

    def _stop(self, effect: StopWorker) -> None:
        bench = self.benches[effect.worker_id]
        require(bench.is_up and bench.incarnation == effect.incarnation, "a worker is given up once", effect)
        bench.is_up = bench.is_ready = False
        bench.num_failures += 1
        remaining = self._put_back(bench)
        if effect.fault is WorkerFault.RAISING:  # What had just raised counts as lost.
            remaining = [request for request in self._raised if request.id in self.live]
        for request in remaining:
            self.live[request.id].num_lost += 1
            self.suspected.discard(request.id)

    # Entries.

    def _begin(self, *, is_late_word: bool = False) -> None:
        self.submitting = None
        self._expected = {}
        self._doomed = None
        self._raised = []
        self._is_late_word = is_late_word

    def _bench_of(self, batch_id: int, attempt: int) -> Bench | None:
        """Where this very attempt runs now."""
        for bench in self.benches:
            if bench.run is not None and (bench.run.batch_id, bench.run.attempt) == (batch_id, attempt):
                return bench
        return None

    def _put_back(self, bench: Bench) -> list[Request]:
        """What was in its run and has not ended must run again, or be refused."""
        run, bench.run = bench.run, None
        remaining = [request for request in run.requests if request.id in self.live] if run is not None else []
        self.again.update((request.id, request) for request in remaining)
        return remaining

    def _require_live(self, request: Request) -> None:
        require(request.id not in self.ended, "a request has one end", request)
        require(request.id in self.live, "only what was accepted is served", request)

    def _end(self, request_id: int) -> None:
        del self.live[request_id]
        self.ended.add(request_id)
        self.waiting.pop(request_id, None)
        self.again.pop(request_id, None)
        self.suspected.discard(request_id)
