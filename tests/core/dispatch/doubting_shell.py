"""A shell that believes nothing: it performs the dispatcher's effects on a plain model, and checks each against it."""

from hypothesis.stateful import RuleBasedStateMachine

from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.effects import Answer, Effects, Refuse, RunBatch, StartWorker, StopWorker
from batcher.errors import InputFailed
from batcher.types import BatchReason, Outcome

AMPLE_RESERVE = 10_000
"""Extra calls that no program of the machine uses up."""


class DoubtingShell(RuleBasedStateMachine):
    """The model: the ids that are live, the incarnation of each worker with what it runs, who failed last, and bad inputs.

    It has no rules yet. `failed` are the workers that failed and have not succeeded since.
    """

    dispatcher: Dispatcher
    max_batch_size: int
    max_attempts: int
    retry_reserve: int

    def __init__(self) -> None:
        super().__init__()
        self.now = 1.0
        self.live: set[int] = set()
        self.ended: set[int] = set()
        self.deadlines: dict[int, float] = {}
        self.poison: set[int] = set()
        self.incarnations: dict[int, int] = {}
        self.starting: set[int] = set()
        self.failed: set[int] = set()
        self.running: dict[int, RunBatch] = {}
        self.past: list[RunBatch] = []

    def perform(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case StartWorker(worker_id, incarnation):
                    assert incarnation == self.incarnations.get(worker_id, 0) + 1
                    assert worker_id not in self.running
                    self.incarnations[worker_id] = incarnation
                    self.starting.add(worker_id)
                case StopWorker(worker_id, incarnation):
                    assert incarnation == self.incarnations[worker_id]
                    self.starting.discard(worker_id)
                    self.failed.add(worker_id)
                    if worker_id in self.running:
                        self.past.append(self.running.pop(worker_id))
                case RunBatch():
                    self.check_run(effect)
                    self.running[effect.worker_id] = effect
                case Answer(request, output):
                    assert type(output) is str
                    assert output == f"<{request.input}>", "an answer that is somebody else's"
                    assert self.now < request.deadline_at, "an answer after the deadline"
                    assert request.id not in self.poison
                    self.end(request.id)
                case Refuse(request, outcome, error):
                    if outcome is Outcome.EXPIRED:
                        assert request.deadline_at <= self.now
                    if isinstance(error, InputFailed):
                        assert request.id in self.poison, "an innocent was blamed"
                    if request.id in self.live:
                        self.end(request.id)

    def end(self, request_id: int) -> None:
        self.live.remove(request_id)
        self.ended.add(request_id)
        del self.deadlines[request_id]

    def check_run(self, run: RunBatch) -> None:
        assert run.worker_id not in self.running, "a worker runs one batch at a time"
        assert run.worker_id not in self.starting
        assert run.incarnation == self.incarnations[run.worker_id]
        assert 1 <= len(run.requests) <= self.max_batch_size
        is_again = run.reason in (BatchReason.RETRY, BatchReason.SPLIT)
        is_tried = run.worker_id in self.failed and (not is_again or self.retry_reserve == AMPLE_RESERVE)
        assert len(run.requests) == 1 or not is_tried, "a worker that failed is tried with one request"
        assert 1 <= run.attempt <= self.max_attempts
        for request in run.requests:
            assert request.id in self.live, "what has ended runs again"
            assert request.deadline_at > self.now, "what has expired runs"
            assert all(request not in other.requests for other in self.running.values()), "a request runs twice at a time"
