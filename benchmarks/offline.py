"""A scheduler and a backend without a service between them: what the engine does, at once and on a clock that counts its turns.

Arrivals are drawn from a seed, so that batches form and re-form as under traffic, and every run of one seed is the same.
"""

from collections import deque
from collections.abc import Sequence as Items
from random import Random
from typing import NamedTuple

from backends.base import StepBackend
from batcher.config import ReplicaConfig
from batcher.core.effects import EndSequence, ReplicaEffects
from batcher.core.replica.counters import Counters
from batcher.core.replica.scheduler import Scheduler
from batcher.core.replica.sequence import Sequence
from batcher.types import GREEDY, Step

MAX_ARRIVALS = 3
"""Most sequences that arrive between two steps."""


class Case(NamedTuple):
    prompt: list[int]
    max_tokens: int


class Served(NamedTuple):
    answers: list[list[int]]
    """One for each case."""
    counters: Counters


def serve(
    backend: StepBackend,
    config: ReplicaConfig,
    cases: Items[Case],
    *,
    stop_ids: frozenset[int] = frozenset(),
    seed: int = 0,
    is_ahead: bool = False,
) -> Served:
    """Runs every case to its end, greedily.

    With `is_ahead` each step is scheduled before the tokens of the one before are known, as with a backend that has two steps
    in flight. Raises RuntimeError if a case is refused or fails."""
    scheduler = Scheduler(config)
    random = Random(seed)
    to_come = deque(random.sample(range(len(cases)), len(cases)))
    answers: list[list[int]] = [[] for _ in cases]
    flights: deque[tuple[Step, list[int]]] = deque()
    now = 0.0
    while to_come or scheduler.has_work:
        now += 1.0
        for _ in range(min(random.randint(0, MAX_ARRIVALS), len(to_come))):
            index = to_come.popleft()
            _take(answers, scheduler.submit(_sequence(index, cases[index], stop_ids, now), now=now))
        step = scheduler.schedule(now=now)
        if step is not None:
            backend.launch(step)
            flights.append((step, backend.collect()))
        if flights and (step is None or len(flights) > is_ahead):
            _take(answers, scheduler.update(*flights.popleft(), now=now))
    return Served(answers, scheduler.statistics().counters)


def _sequence(index: int, case: Case, stop_ids: frozenset[int], now: float) -> Sequence:
    return Sequence(
        id=index,
        tenant="anybody",
        tier="paid",
        prompt=case.prompt,
        max_tokens=case.max_tokens,
        sampling=GREEDY,
        stop_ids=stop_ids,
        arrived_at=now,
    )


def _take(answers: list[list[int]], effects: ReplicaEffects) -> None:
    for effect in effects:
        if isinstance(effect, EndSequence):
            raise RuntimeError(f"sequence {effect.sequence_id} ended as {effect.outcome}: {effect.error}")
        answers[effect.sequence_id].append(effect.token)
