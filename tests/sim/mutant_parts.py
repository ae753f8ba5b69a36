"""Dispatchers of which one inner part is wrong: the workers' probation and blame, the retries' budget, the starving's slot."""

from collections.abc import Callable

import msgspec

from batcher.config import DispatchConfig
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.dispatch.inflight import Batch
from batcher.core.dispatch.ledger import Ledger
from batcher.core.dispatch.retry import Retries, RetryBudget
from batcher.core.dispatch.tiers import STARVING_SHARE, Tiers
from batcher.core.dispatch.workers import Worker, Workers
from batcher.core.effects import Effect, Effects, Refuse
from batcher.errors import Overloaded
from batcher.types import Outcome, Request
from tests.sim.mutants import Mutant


class TrustingWorkers(Workers):
    """A worker that failed is at once as good as any."""

    __slots__ = ()

    def is_on_probation(self, worker: Worker) -> bool:
        return False


class PatientWorkers(Workers):
    """The first failures are forgiven: only a worker whose breaker was open is tried with one request."""

    __slots__ = ()

    def is_on_probation(self, worker: Worker) -> bool:
        return self.is_broken(worker)


class HastyWorkers(Workers):
    """A worker is to blame at the first batch that raises on it."""

    __slots__ = ()

    def is_to_blame(self, worker: Worker) -> bool:
        return worker.num_raised > 0


class LavishBudget(RetryBudget):
    """Splits may use all of it."""

    __slots__ = ()

    def withdraw(self, num_calls: int, *, share: float = 1.0) -> bool:
        return super().withdraw(num_calls)


class FreeCanaries(Retries):
    """What a canary leaves of its batch is paid by nobody."""

    __slots__ = ()

    def pop(self, live: Ledger, *, max_size: int) -> Batch | None:
        num_available = self.budget.num_available
        self.budget.num_available = 1e9
        batch = super().pop(live, max_size=max_size)
        self.budget.num_available = num_available
        return batch


class StarvingTiers(Tiers):
    """Nobody is ever old enough for a slot."""

    __slots__ = ()

    def take(self, num: int, *, now: float) -> tuple[Request, ...]:
        return super().take(num, now=0.0)


class GenerousTiers(Tiers):
    """Each batch has a slot for the starving."""

    __slots__ = ()

    def take(self, num: int, *, now: float) -> tuple[Request, ...]:
        self._num_slots_since = STARVING_SHARE
        return super().take(num, now=now)


class UnevenTiers(Tiers):
    """The slot goes to the second tier, however long the third has waited."""

    __slots__ = ()

    def take(self, num: int, *, now: float) -> tuple[Request, ...]:
        queues = self._queues
        if len(queues) > 2 and len(queues[1]):
            self._queues = queues[:2]
            taken = super().take(num, now=now)
            self._queues = queues
            rest: list[Request] = []
            queues[2].take(num - len(taken), rest)
            self.num_waiting -= len(rest)
            self.num_bytes = sum(queue.num_bytes for queue in queues)
            return (*taken, *rest)
        return super().take(num, now=now)


class Silent(Mutant):
    """Who finds no room is not told when to come back."""

    def mutate(self, effects: Effects) -> Effects:
        return [self.silenced(effect) for effect in effects]

    def silenced(self, effect: Effect) -> Effect:
        if isinstance(effect, Refuse) and effect.outcome is Outcome.REJECTED_CAPACITY:
            return msgspec.structs.replace(effect, error=Overloaded("the queue is full"))
        return effect


def with_workers(kind: type[Workers]) -> Callable[..., Dispatcher]:
    def create(config: DispatchConfig, *, now: float) -> Dispatcher:
        dispatcher = Mutant(config, now=now)
        dispatcher._workers = kind(config, now=now)
        return dispatcher

    return create


def with_tiers(kind: type[Tiers]) -> Callable[..., Dispatcher]:
    def create(config: DispatchConfig, *, now: float) -> Dispatcher:
        dispatcher = Mutant(config, now=now)
        dispatcher._tiers = kind(config.tiers, max_requests=config.max_waiting, max_bytes=config.max_waiting_bytes)
        return dispatcher

    return create


def with_lavish_splits(config: DispatchConfig, *, now: float) -> Dispatcher:
    dispatcher = Mutant(config, now=now)
    dispatcher._retries.budget = LavishBudget(ratio=config.retry_ratio, reserve=config.retry_reserve)
    return dispatcher


def with_free_canaries(config: DispatchConfig, *, now: float) -> Dispatcher:
    dispatcher = Mutant(config, now=now)
    dispatcher._retries = FreeCanaries(config, ids=dispatcher._batch_ids)
    return dispatcher
