"""The laws, each checker a family of them, over books that are kept from inputs and effects alone.

`Checkers` is the world's watcher: it enters what happens, asks every checker, and lets the dispatcher check itself. It raises
`LawBroken` at the first wrong thing, with the last events, so that a failure is read as a story and not as a number.
"""

from collections import deque
from collections.abc import Callable, Sequence
from math import inf

from batcher.config import DispatchConfig, PolicyName
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.effects import Effects, Refuse, RunBatch, StopWorker
from batcher.errors import InputFailed
from batcher.sim.books import AGAIN, Books, LawBroken, require
from batcher.sim.faults import POISON
from batcher.sim.world import run_batch
from batcher.types import Outcome, Request, WorkerFault

NUM_SPLITS = 3
"""Times that a batch of 50 can be split in four until each part is one."""

AMPLE_RESERVE = 1000
"""Extra calls that no small world uses up: with them nobody fails for want of a retry."""

EPSILON_S = 1e-9
"""Instants that were computed in two ways are equal within this."""

STARVING_S = 1.0
"""Age at which a request of a lower tier has a claim to a slot."""

NUM_EVENTS_TOLD = 40


class Checker:
    """Asked at three moments; by itself content with everything."""

    def __init__(self, books: Books, config: DispatchConfig) -> None:
        self._books = books
        self._config = config

    def before(self, effect: object, *, now: float) -> None:
        """`effect` is about to be entered."""

    def after_input(self, *, now: float) -> None:
        """All effects of an input were entered."""

    def before_advance(self, to: float) -> None:
        """All that was due has happened, and the clock is about to move."""


class Promptness(Checker):
    """What is due happens, at once: deadlines (also while every worker is busy), full batches, the timeout, retries."""

    def before_advance(self, to: float) -> None:
        books, config = self._books, self._config
        first_deadline_at = min((entry.request.deadline_at for entry in books.live.values()), default=inf)
        require(
            to <= first_deadline_at + EPSILON_S, "a request ends at its deadline, waiting or running", first_deadline_at, to
        )
        if not books.has_free_worker:
            return
        require(not books.again, "what must run again does not wait beside a free worker", books.again)
        if not books.waiting:
            return
        num_full = 1 if config.policy is PolicyName.SINGLE or books.is_draining else config.max_batch_size
        require(len(books.waiting) < num_full, "a full batch leaves at once when a worker is free", len(books.waiting))
        if config.policy is not PolicyName.STATIC:
            due_at = min(request.arrived_at for request in books.waiting.values()) + config.batch_timeout_s
            require(to <= due_at + EPSILON_S, "nobody waits longer than the timeout while a worker is free", due_at, to)


class Order(Checker):
    """Who is in a fresh batch: higher tiers first but for one slot of the starving, tenants of a tier in turn, each in order of
    arrival, as many as fit.

    `_served[tier, tenant]` are the others of the tier that were served since the tenant's last turn: nobody twice.
    """

    def __init__(self, books: Books, config: DispatchConfig) -> None:
        super().__init__(books, config)
        self._rank = {tier: rank for rank, tier in enumerate(config.tiers)}
        self._served: dict[tuple[str, str], set[str]] = {}

    def before(self, effect: object, *, now: float) -> None:
        if not isinstance(effect, RunBatch) or effect.reason in AGAIN:
            return
        books, config = self._books, self._config
        most = 1 if config.policy is PolicyName.SINGLE else config.max_batch_size
        most = 1 if books.benches[effect.worker_id].num_failures >= config.breaker_threshold else most
        num_due = min(most, len(books.waiting))
        require(len(effect.requests) == num_due, "a batch takes all that fits", len(effect.requests), num_due)
        lines: dict[tuple[str, str], list[Request]] = {}
        for request in books.waiting.values():
            lines.setdefault((request.tier, request.tenant), []).append(request)
        self._served = {line: others for line, others in self._served.items() if line in lines}
        starving = {tier for (tier, _), line in lines.items() if self._rank[tier] and line[0].arrived_at <= now - STARVING_S}
        for request in effect.requests:
            self._serve(request, lines)
        in_order = effect.requests
        if most > 1 and starving:
            require(any(request.tier in starving for request in in_order), "a slot goes to the starving", starving, effect)
            in_order = in_order[1:] if in_order[0].tier in starving else in_order
        worst = max((self._rank[request.tier] for request in in_order), default=0)
        left = [line for line in lines if self._rank[line[0]] < worst]
        require(not left, "a lower tier is never taken before a higher one", left, effect)

    def _serve(self, request: Request, lines: dict[tuple[str, str], list[Request]]) -> None:
        mine = (request.tier, request.tenant)
        require(mine in lines and lines[mine][0] is request, "a tenant is served in order of arrival", request)
        for other in lines:
            if other[0] == request.tier and other != mine:
                served = self._served.setdefault(other, set())
                require(request.tenant not in served, "no tenant has two turns while another waits for one", request, other)
                served.add(request.tenant)
        self._served.pop(mine, None)
        del lines[mine][0]
        if not lines[mine]:
            del lines[mine]

    def after_input(self, *, now: float) -> None:
        if self._served:
            lines = {(request.tier, request.tenant) for request in self._books.waiting.values()}
            self._served = {line: others for line, others in self._served.items() if line in lines}


class Retries(Checker):
    """Attempts and extra calls are bounded, a worker is not called hung too early, and only culprits are blamed."""

    def __init__(self, books: Books, config: DispatchConfig, *, only_poison_raises: bool) -> None:
        super().__init__(books, config)
        self._only_poison_raises = only_poison_raises
        self._num_fresh = 0
        self._num_extra = 0

    def before(self, effect: object, *, now: float) -> None:
        if isinstance(effect, RunBatch):
            self._count(effect)
        elif isinstance(effect, Refuse) and effect.outcome is Outcome.FAILED:
            self._require_fair(effect)
        elif isinstance(effect, StopWorker) and effect.fault is WorkerFault.HUNG:
            bench, config = self._books.benches[effect.worker_id], self._config
            least_s = config.service_time_s * config.hang_factor if bench.has_completed else config.first_batch_timeout_s
            taken_s = now - bench.departed_at
            require(bench.run is not None and taken_s >= least_s - EPSILON_S, "a slow worker is no hung one", taken_s, least_s)

    def _count(self, effect: RunBatch) -> None:
        config = self._config
        require(1 <= effect.attempt <= config.max_attempts, "attempts are bounded", effect)
        for request in effect.requests:
            entry = self._books.live.get(request.id)
            if entry is not None:
                require(entry.num_runs < config.max_attempts + NUM_SPLITS, "runs of a request are bounded", effect)
                require(effect.attempt == entry.num_lost + 1, "an attempt more for each lost worker", effect, entry.num_lost)
        is_canary = self._books.benches[effect.worker_id].num_failures >= config.breaker_threshold
        if effect.reason in AGAIN and not (is_canary and len(effect.requests) == 1):
            # What a canary leaves of its batch was paid for together with it.
            self._num_extra += 1
            most = config.retry_reserve + config.retry_ratio * self._num_fresh
            require(self._num_extra <= most + EPSILON_S, "extra calls stay in their budget", self._num_extra, most)
        elif effect.reason not in AGAIN:
            self._num_fresh += 1

    def _require_fair(self, effect: Refuse) -> None:
        if isinstance(effect.error, InputFailed):
            is_poison = effect.request.input.startswith(POISON)
            require(is_poison or not self._only_poison_raises, "only a poison input is refused as one", effect)
        elif self._config.retry_reserve >= AMPLE_RESERVE:
            num_lost = self._books.live[effect.request.id].num_lost if effect.request.id in self._books.live else 0
            require(num_lost == self._config.max_attempts, "a request fails after its last attempt", effect, num_lost)


class Room(Checker):
    """What waits is bounded, and makes room only for a higher tier."""

    def before(self, effect: object, *, now: float) -> None:
        if isinstance(effect, Refuse) and effect.outcome is Outcome.REJECTED_CAPACITY:
            newcomer = self._books.submitting
            is_displaced = newcomer is not None and effect.request.id != newcomer.id
            rank = self._config.tiers.index
            require(newcomer is not None, "only a newcomer causes a refusal", effect)
            if newcomer is not None and is_displaced:
                require(rank(newcomer.tier) < rank(effect.request.tier), "only a lower tier makes room", effect, newcomer)

    def after_input(self, *, now: float) -> None:
        waiting = self._books.waiting.values()
        num_bytes = sum(request.num_bytes for request in waiting)
        require(len(waiting) <= self._config.max_waiting, "requests that wait are bounded", len(waiting))
        require(num_bytes <= self._config.max_waiting_bytes, "bytes that wait are bounded", num_bytes)


class Checkers:
    """The watcher: enters everything in the books and asks every checker."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        config: DispatchConfig,
        *,
        finishes_by: float,
        only_poison_raises: bool = True,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._books = Books(num_workers=config.num_workers, answer_of=lambda word: run_batch([word])[0])
        self._checkers: list[Checker] = [kind(self._books, config) for kind in (Promptness, Order, Room)]
        self._checkers.append(Retries(self._books, config, only_poison_raises=only_poison_raises))
        self._events: deque[tuple[float, object]] = deque(maxlen=NUM_EVENTS_TOLD)
        self._finishes_by = finishes_by
        self._tell = tell
        self._now = 0.0

    def story(self) -> str:
        """The last events, one a line."""
        return "\n".join(_line(at, event) for at, event in self._events)

    def submitted(self, request: Request, *, now: float) -> None:
        self._note(request, now=now)
        self._books.submitted(request)

    def cancelled(self, request_id: int, was_live: bool, *, now: float) -> None:
        self._note(("cancel", request_id, was_live), now=now)
        self._books.cancelled(request_id, was_live)
        self._after(now=now)

    def drained(self, *, now: float) -> None:
        self._note(("drain",), now=now)
        self._books.drained()

    def became_ready(self, worker_id: int, incarnation: int, *, now: float) -> None:
        self._note(("ready", worker_id, incarnation), now=now)
        self._books.became_ready(worker_id, incarnation)

    def was_lost(self, worker_id: int, incarnation: int, *, now: float) -> None:
        self._note(("lost", worker_id, incarnation), now=now)
        self._books.was_lost(worker_id, incarnation)

    def completed(self, batch_id: int, attempt: int, outputs: object, *, now: float) -> None:
        self._note(("complete", batch_id, attempt), now=now)
        self._books.completed(batch_id, attempt, outputs)

    def raised(self, batch_id: int, attempt: int, *, now: float) -> None:
        self._note(("raise", batch_id, attempt), now=now)
        self._books.raised(batch_id, attempt)

    def ticked(self, *, now: float) -> None:
        self._note(("tick",), now=now)
        self._books.ticked()

    def performs(self, effects: Effects, *, now: float) -> None:
        for effect in effects:
            self._note(effect, now=now)
            for checker in self._checkers:
                checker.before(effect, now=now)
            self._books.enter(effect, now=now)
        self._books.performed(effects)
        self._after(now=now)

    def before_advance(self, to: float) -> None:
        require(to <= self._finishes_by, "everything finishes in time", to, self._finishes_by)
        for checker in self._checkers:
            checker.before_advance(to)

    def finished(self, *, probes: Sequence[int]) -> None:
        """Nothing is left to happen: all has ended, all tables are empty, every worker is back, the probes were answered."""
        books = self._books
        require(not books.live, "everything that was accepted ends", sorted(books.live))
        require(all(bench.is_free for bench in books.benches), "every worker comes back", self._dispatcher)
        statistics = self._dispatcher.statistics()
        left = (statistics.num_live, statistics.num_running, statistics.num_inflight, statistics.num_parked)
        require(left == (0, 0, 0, 0), "all tables are empty in the end", self._dispatcher)
        require(
            all(tier.num_waiting == tier.num_bytes == tier.num_tenants == 0 for tier in statistics.tiers), "queues are empty"
        )
        require(self._dispatcher.next_deadline() is None, "nothing is due when nothing is left", self._dispatcher)
        require(books.answered.issuperset(probes), "after the faults everything is answered", probes)

    def _note(self, event: object, *, now: float) -> None:
        require(now >= self._now, "time never goes back", now)
        self._now = now
        self._events.append((now, event))
        if self._tell is not None:
            self._tell(_line(now, event))

    def _after(self, *, now: float) -> None:
        for checker in self._checkers:
            checker.after_input(now=now)
        try:
            self._dispatcher.check()
        except AssertionError as error:
            raise LawBroken(f"the dispatcher's own laws hold: {error}") from error


def _line(at: float, event: object) -> str:
    return f"  {at:12.6f}  {event!r}"
