"""What the core's tests build again and again, with one default for everything that a test does not care about."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

import msgspec

from batcher.config import DispatchConfig
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.dispatch.workers import Workers
from batcher.core.effects import Answer, Effect, Effects, Refuse, RunBatch, StartWorker, StopWorker
from batcher.types import Outcome, Request, WorkerFault


def a_request(
    request_id: int,
    *,
    tenant: str = "ann",
    tier: str = "paid",
    num_bytes: int = 10,
    arrived_at: float = 0.0,
    deadline_at: float = 1000.0,
) -> Request:
    """A request whose input is its id in words, so that an answer shows whose it is."""
    return Request(request_id, tenant, tier, f"in-{request_id}", num_bytes, arrived_at, deadline_at)


def a_dispatcher(*, num_ready: int = 1, now: float = 0.0, **settings: Any) -> Dispatcher:
    """A dispatcher with `num_ready` workers, all of them ready, unless `num_workers` says that there are more."""
    settings.setdefault("num_workers", max(num_ready, 1))
    dispatcher = Dispatcher(DispatchConfig(**settings), now=now)
    for worker_id in range(num_ready):
        dispatcher.worker_ready(worker_id, 1, now=now)
    return dispatcher


def some_workers(*, num_ready: int = 0, **settings: Any) -> Workers:
    workers = Workers(DispatchConfig(**settings), now=0.0)
    for worker_id in range(num_ready):
        workers.ready(workers[worker_id])
    return workers


def submit_all(dispatcher: Dispatcher, requests: Iterable[Request], *, now: float) -> list[Effect]:
    return [effect for request in requests for effect in dispatcher.submit(request, now=now)]


def runs(effects: Effects) -> list[RunBatch]:
    return [effect for effect in effects if isinstance(effect, RunBatch)]


def the_run(effects: Effects) -> RunBatch:
    """The one batch that left."""
    (run,) = runs(effects)
    return run


def ids(run: RunBatch) -> list[int]:
    return [request.id for request in run.requests]


def echo(run: RunBatch) -> list[str]:
    """What a good worker returns."""
    return [f"<{request.input}>" for request in run.requests]


def answers(effects: Effects) -> dict[int, str]:
    """Outputs by request id; no request may be answered twice."""
    found = [(effect.request.id, effect.output) for effect in effects if isinstance(effect, Answer)]
    assert len(found) == len(dict(found))
    return dict(found)


def refusals(effects: Effects) -> dict[int, Outcome]:
    """Outcomes by request id; no request may be refused twice."""
    found = [(effect.request.id, effect.outcome) for effect in effects if isinstance(effect, Refuse)]
    assert len(found) == len(dict(found))
    return dict(found)


def the_refusal(effects: Effects) -> Refuse:
    """The one request that was refused."""
    (refusal,) = [effect for effect in effects if isinstance(effect, Refuse)]
    return refusal


def hold_all_workers(dispatcher: Dispatcher, *, now: float) -> list[RunBatch]:
    """Sends a request of its own to each worker, so that whoever comes next must wait. Its policy must be `single`."""
    held = []
    for index in range(dispatcher.num_ready_workers):
        effects = dispatcher.submit(a_request(-1 - index, tenant="holder", arrived_at=now), now=now)
        held.append(the_run(effects))
    return held


class Raised(Exception):
    """`run_batch` raised an ordinary exception."""


class Crashed(Exception):
    """`run_batch` took its process down."""


class Played(msgspec.Struct):
    """What came out of a play: every effect, in order, and the inputs of every call of `run_batch`."""

    effects: list[Effect]
    calls: list[list[str]]
    ended_at: float


def play(
    dispatcher: Dispatcher,
    effects: Effects,
    run_batch: Callable[[list[str]], Sequence[object]],
    *,
    now: float,
    service_s: float = 0.2,
    until: float = 1000.0,
) -> Played:
    """Performs effects on a virtual clock until no request is live: a shell in small, whose workers start at once.

    `run_batch` may raise `Raised` or `Crashed`. It asserts the dispatcher's laws after each input.
    """
    played = Played([], [], now)
    events: list[tuple[float, int, Callable[[float], Effects]]] = []
    order = count()
    given_up: set[tuple[int, int]] = set()

    def perform(effect: Effect, at: float) -> None:
        played.effects.append(effect)
        if isinstance(effect, StartWorker):
            worker, incarnation = effect.worker_id, effect.incarnation
            heapq.heappush(events, (at, next(order), lambda t: dispatcher.worker_ready(worker, incarnation, now=t)))
        elif isinstance(effect, StopWorker):
            given_up.add((effect.worker_id, effect.incarnation))
        elif isinstance(effect, RunBatch):
            assert (effect.worker_id, effect.incarnation) not in given_up
            heapq.heappush(events, (at + service_s, next(order), end_of(effect)))

    def end_of(run: RunBatch) -> Callable[[float], Effects]:
        inputs = [request.input for request in run.requests]
        played.calls.append(inputs)
        try:
            outputs = run_batch(inputs)
        except Raised:
            return lambda t: dispatcher.fail(run.batch_id, run.attempt, now=t)
        except Crashed:
            return lambda t: dispatcher.worker_lost(run.worker_id, run.incarnation, WorkerFault.DIED, now=t)
        return lambda t: dispatcher.complete(run.batch_id, run.attempt, outputs, now=t)

    for effect in effects:
        perform(effect, now)
    while dispatcher.live_requests and now < until:
        due_at = dispatcher.next_deadline()
        if events and (due_at is None or events[0][0] <= due_at):
            at, _, happens = heapq.heappop(events)
            now = max(now, at)
            new = happens(now)
        else:
            assert due_at is not None, "live requests, and nothing will ever happen"
            now = max(now, due_at)
            new = dispatcher.tick(now=now)
        dispatcher.check()
        for effect in new:
            perform(effect, now)
    played.ended_at = now
    return played
