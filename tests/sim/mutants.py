"""Dispatchers that differ from the real one in one thing: what they answer is spoilt on its way out, or what comes in.

Mutants whose inner parts are wrong have a file of their own, `mutant_parts.py`.
"""

from collections.abc import Callable

import msgspec

from batcher.config import DispatchConfig
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.effects import Answer, Effect, Effects, Refuse, RunBatch, StartWorker
from batcher.errors import InputFailed
from batcher.types import Outcome, Request, WorkerFault


class Mutant(Dispatcher):
    """The real dispatcher with everything that it answers passed through `mutate`. Its own laws are silenced: the checkers
    must find out alone."""

    def check(self) -> None:
        pass

    def mutate(self, effects: Effects) -> Effects:
        return effects

    def submit(self, request: Request, *, now: float) -> Effects:
        return self.mutate(super().submit(request, now=now))

    def worker_ready(self, worker_id: int, incarnation: int, *, now: float) -> Effects:
        return self.mutate(super().worker_ready(worker_id, incarnation, now=now))

    def worker_lost(self, worker_id: int, incarnation: int, fault: WorkerFault, *, now: float) -> Effects:
        return self.mutate(super().worker_lost(worker_id, incarnation, fault, now=now))

    def complete(self, batch_id: int, attempt: int, outputs: object, *, now: float) -> Effects:
        return self.mutate(super().complete(batch_id, attempt, outputs, now=now))

    def fail(self, batch_id: int, attempt: int, *, now: float) -> Effects:
        return self.mutate(super().fail(batch_id, attempt, now=now))

    def tick(self, *, now: float, due_at: float | None = None) -> Effects:
        return self.mutate(super().tick(now=now, due_at=due_at))

    def drain(self, *, now: float) -> Effects:
        return self.mutate(super().drain(now=now))


class Swapping(Mutant):
    """Two outputs of a batch reach each other's callers."""

    def complete(self, batch_id: int, attempt: int, outputs: object, *, now: float) -> Effects:
        swapped = [*outputs[1:], *outputs[:1]] if isinstance(outputs, list) else outputs
        return super().complete(batch_id, attempt, swapped, now=now)


class Doubling(Mutant):
    """Each answer is given twice."""

    def mutate(self, effects: Effects) -> Effects:
        return [*effects, *(effect for effect in effects if isinstance(effect, Answer))]


class Losing(Mutant):
    """The last answer of a batch is never given."""

    def mutate(self, effects: Effects) -> Effects:
        answers = [effect for effect in effects if isinstance(effect, Answer)]
        return [effect for effect in effects if effect not in answers[-1:]]


class Undead(Mutant):
    """A cancelled request lives on."""

    def cancel(self, request_id: int) -> bool:
        return any(request.id == request_id for request in self.live_requests)


class Deaf(Mutant):
    """Cancel says that the request had ended, whether or not it had."""

    def cancel(self, request_id: int) -> bool:
        super().cancel(request_id)
        return False


class Rearming(Mutant):
    """Each arrival starts the timer afresh."""

    last_arrival_at = 0.0
    timeout_s = 0.0

    def __init__(self, config: DispatchConfig, *, now: float) -> None:
        super().__init__(config, now=now)
        self.timeout_s = config.batch_timeout_s

    def submit(self, request: Request, *, now: float) -> Effects:
        self.last_arrival_at = now
        return super().submit(request, now=now)

    def next_deadline(self) -> float | None:
        deadline = super().next_deadline()
        return deadline if deadline is None else max(deadline, self.last_arrival_at + self.timeout_s)


class Remembering(Mutant):
    """Knows the last run of each batch."""

    def __init__(self, config: DispatchConfig, *, now: float) -> None:
        super().__init__(config, now=now)
        self.runs: dict[int, RunBatch] = {}

    def mutate(self, effects: Effects) -> Effects:
        self.runs.update((effect.batch_id, effect) for effect in effects if isinstance(effect, RunBatch))
        return effects


class Credulous(Remembering):
    """The word of a superseded attempt is taken for that of the attempt that runs."""

    def complete(self, batch_id: int, attempt: int, outputs: object, *, now: float) -> Effects:
        return super().complete(batch_id, self.runs[batch_id].attempt, outputs, now=now)


class Blaming(Remembering):
    """When `run_batch` raises, all of its inputs are blamed."""

    def fail(self, batch_id: int, attempt: int, *, now: float) -> Effects:
        blamed = [request for request in self.runs[batch_id].requests if self.cancel(request.id)]
        refusals = [Refuse(request, Outcome.FAILED, InputFailed("guilty by association")) for request in blamed]
        return [*refusals, *super().fail(batch_id, attempt, now=now)]


class Favouring(Mutant):
    """Everything goes to the first worker."""

    def mutate(self, effects: Effects) -> Effects:
        return [
            msgspec.structs.replace(effect, worker_id=0, incarnation=1) if isinstance(effect, RunBatch) else effect
            for effect in effects
        ]


class Unforgiving(Mutant):
    """A worker that failed is not started again, though its start is waited for."""

    def mutate(self, effects: Effects) -> Effects:
        return [effect for effect in effects if not isinstance(effect, StartWorker)]


class Distrusting(Mutant):
    """A worker that failed is never found ready again."""

    def worker_ready(self, worker_id: int, incarnation: int, *, now: float) -> Effects:
        return super().worker_ready(worker_id, incarnation, now=now) if incarnation == 1 else ()


class OneLine(Mutant):
    """A tier has one line in order of arrival, whoever the tenants are: a burst of one delays all."""

    def __init__(self, config: DispatchConfig, *, now: float) -> None:
        super().__init__(config, now=now)
        self.requests: dict[int, Request] = {}

    def submit(self, request: Request, *, now: float) -> Effects:
        self.requests[request.id] = request
        return super().submit(msgspec.structs.replace(request, tenant="all"), now=now)

    def mutate(self, effects: Effects) -> Effects:
        return [self.restored(effect) for effect in effects]

    def restored(self, effect: Effect) -> Effect:
        """With the requests as they were submitted."""
        if isinstance(effect, RunBatch):
            return msgspec.structs.replace(effect, requests=tuple(self.requests[request.id] for request in effect.requests))
        if isinstance(effect, Answer | Refuse):
            return msgspec.structs.replace(effect, request=self.requests[effect.request.id])
        return effect


def configured(**settings: object) -> Callable[..., Dispatcher]:
    """A dispatcher that does not keep to the configuration that it was given."""

    def create(config: DispatchConfig, *, now: float) -> Dispatcher:
        return Mutant(msgspec.structs.replace(config, **settings), now=now)

    return create


def with_tiers_reversed(config: DispatchConfig, *, now: float) -> Dispatcher:
    return Mutant(msgspec.structs.replace(config, tiers=config.tiers[::-1]), now=now)
