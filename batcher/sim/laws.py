"""The laws, each checker a family of them, over books that are kept from inputs and effects alone.

Their numbers stand here again and are not the core's: a checker that asks the core what is right finds nothing wrong with it.
"""

from math import inf

from batcher.config import DispatchConfig, PolicyName
from batcher.core.admission.gate import Refusal
from batcher.core.effects import Refuse, RunBatch, StopWorker
from batcher.errors import InputFailed
from batcher.sim.books import AGAIN, Books, require
from batcher.sim.faults import POISON
from batcher.types import BatchReason, Outcome, Request, WorkerFault

NUM_SPLITS = 3
"""Times that a batch of 50 can be split in four until each part is one."""

AMPLE_RESERVE = 1000
"""Extra calls that no small world uses up: with them nobody fails for want of a retry, and no canary is larger than one."""

SPLITS_SHARE = 0.5
"""Of the reserve may go into the search for bad inputs."""

EPSILON_S = 1e-9
"""Instants that were computed in two ways are equal within this."""

STARVING_S = 1.0
"""Age at which a request of a lower tier has a claim to a slot."""

STARVING_SHARE = 50
"""One slot in so many is theirs."""

SEARCH_SHARE = 3
"""One worker in so many may look for bad inputs while others wait."""

NUM_RAISED_TO_BLAME = 5
"""A worker is given up for what raises on it after so many in a row, never sooner."""

MAX_RETRY_AFTER_S = 60
"""Nobody is sent away for longer."""


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
        num_searching = sum(bench.run is not None and bench.run.reason is BatchReason.SPLIT for bench in books.benches)
        num_allowed = max(1, sum(bench.is_ready for bench in books.benches) // SEARCH_SHARE)
        has_its_share = num_searching >= num_allowed and bool(books.waiting)
        idle = [request for request in books.again if not (has_its_share and request in books.suspected)]
        require(not idle, "what must run again does not wait beside a free worker, but for a search with its share", idle)
        if not books.waiting:
            return
        num_full = 1 if config.policy is PolicyName.SINGLE or books.is_draining else config.max_batch_size
        require(len(books.waiting) < num_full, "a full batch leaves at once when a worker is free", len(books.waiting))
        if config.policy is not PolicyName.STATIC:
            due_at = min(request.arrived_at for request in books.waiting.values()) + config.batch_timeout_s
            require(to <= due_at + EPSILON_S, "nobody waits longer than the timeout while a worker is free", due_at, to)


class Order(Checker):
    """Who is in a fresh batch: higher tiers first but for one slot in fifty of the starving, tenants of a tier in turn, each in
    order of arrival, as many as fit.

    `_served[tier, tenant]` are the others of the tier that were served since the tenant's last turn: nobody twice.
    `_num_slots_since` are the slots of fresh batches since the starving had one.
    """

    def __init__(self, books: Books, config: DispatchConfig) -> None:
        super().__init__(books, config)
        self._rank = {tier: rank for rank, tier in enumerate(config.tiers)}
        self._served: dict[tuple[str, str], set[str]] = {}
        self._num_slots_since = 0

    def before(self, effect: object, *, now: float) -> None:
        if not isinstance(effect, RunBatch) or effect.reason in AGAIN:
            return
        books, config = self._books, self._config
        is_canary = books.benches[effect.worker_id].is_on_probation
        most = 1 if is_canary or config.policy is PolicyName.SINGLE else config.max_batch_size
        num_due = min(most, len(books.waiting))
        require(len(effect.requests) == num_due, "a batch takes all that fits", len(effect.requests), num_due)
        lines: dict[tuple[str, str], list[Request]] = {}
        for request in books.waiting.values():
            lines.setdefault((request.tier, request.tenant), []).append(request)
        self._served = {line: others for line, others in self._served.items() if line in lines}
        starving = self._starving_due(lines, most, now=now)
        for request in effect.requests:
            self._serve(request, lines)
        in_order = effect.requests
        if starving:
            require(in_order[0].tier in starving, "a slot goes to the tier of the oldest that starves", starving, effect)
            in_order = in_order[1:]
        worst = max((self._rank[request.tier] for request in in_order), default=0)
        left = [line for line in lines if self._rank[line[0]] < worst]
        require(not left, "a lower tier is never taken before a higher one", left, effect)

    def _starving_due(self, lines: dict[tuple[str, str], list[Request]], most: int, *, now: float) -> list[str]:
        """The tiers, nearly always one, of which the first slot of a batch of `most` is; none if it is nobody's due."""
        oldest_at: dict[str, float] = {}
        for (tier, _), line in lines.items():
            if self._rank[tier] and line[0].arrived_at <= now - STARVING_S:
                oldest_at[tier] = min(line[0].arrived_at, oldest_at.get(tier, inf))
        self._num_slots_since += most
        if not oldest_at or self._num_slots_since < STARVING_SHARE:
            return []
        self._num_slots_since = 0
        return [tier for tier, at in oldest_at.items() if at == min(oldest_at.values())]

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
    """Attempts and extra calls are bounded, a worker that failed is tried with one request, none is given up too early, and
    only culprits are blamed."""

    def __init__(self, books: Books, config: DispatchConfig, *, only_poison_raises: bool) -> None:
        super().__init__(books, config)
        self._only_poison_raises = only_poison_raises
        self._num_earning = 0
        """Fresh batches that were no canaries."""
        self._num_extra = 0
        self._num_splits = 0

    def before(self, effect: object, *, now: float) -> None:
        if isinstance(effect, RunBatch):
            self._count(effect)
        elif isinstance(effect, Refuse) and effect.outcome is Outcome.FAILED:
            self._require_fair(effect)
        elif isinstance(effect, StopWorker):
            self._require_failed(effect, now=now)

    def _require_failed(self, effect: StopWorker, *, now: float) -> None:
        bench, config = self._books.benches[effect.worker_id], self._config
        if effect.fault is WorkerFault.HUNG:
            least_s = config.service_time_s * config.hang_factor if bench.has_completed else config.first_batch_timeout_s
            taken_s = now - bench.departed_at
            require(bench.run is not None and taken_s >= least_s - EPSILON_S, "a slow worker is no hung one", taken_s, least_s)
        elif effect.fault is WorkerFault.RAISING:
            is_enough = bench.num_raised >= NUM_RAISED_TO_BLAME
            require(is_enough, "a worker is blamed for raises when there were many in a row", bench.num_raised)

    def _count(self, effect: RunBatch) -> None:
        config = self._config
        require(1 <= effect.attempt <= config.max_attempts, "attempts are bounded", effect)
        for request in effect.requests:
            entry = self._books.live.get(request.id)
            if entry is not None:
                require(entry.num_runs < config.max_attempts + NUM_SPLITS, "runs of a request are bounded", effect)
                require(effect.attempt == entry.num_lost + 1, "an attempt more for each lost worker", effect, entry.num_lost)
        is_on_probation = self._books.benches[effect.worker_id].is_on_probation
        if effect.reason in AGAIN:
            self._count_extra(effect, is_canary=is_on_probation and len(effect.requests) == 1)
            is_whole = len(effect.requests) > 1 and is_on_probation
            require(
                not is_whole or config.retry_reserve < AMPLE_RESERVE, "a worker that failed is tried with one request", effect
            )
        elif not is_on_probation or config.policy is PolicyName.SINGLE or config.max_batch_size == 1:
            self._num_earning += 1

    def _count_extra(self, effect: RunBatch, *, is_canary: bool) -> None:
        """The canary of a split batch, and what it leaves behind, are two calls, of which losses pay for one."""
        config = self._config
        earned = config.retry_ratio * self._num_earning
        self._num_extra += 1
        most = config.retry_reserve + earned
        require(self._num_extra <= most + EPSILON_S, "extra calls stay in their budget", self._num_extra, most)
        self._num_splits += effect.reason is BatchReason.SPLIT and not is_canary
        most = config.retry_reserve * SPLITS_SHARE + earned
        require(self._num_splits <= most + EPSILON_S, "splits leave losses their share", self._num_splits, most)

    def _require_fair(self, effect: Refuse) -> None:
        if isinstance(effect.error, InputFailed):
            is_poison = effect.request.input.startswith(POISON)
            require(is_poison or not self._only_poison_raises, "only a poison input is refused as one", effect)
        elif self._config.retry_reserve >= AMPLE_RESERVE:
            num_lost = self._books.live[effect.request.id].num_lost if effect.request.id in self._books.live else 0
            require(num_lost == self._config.max_attempts, "a request fails after its last attempt", effect, num_lost)


def check_refusal(refusal: Refusal, books: Books, config: DispatchConfig, *, num_parked: int) -> None:
    """The gate's word: honest, and never against somebody who would fit into the next batch of a worker that is up.

    Batches that are parked to run again go before that one, with members that have ended meanwhile, as nobody looks into them.
    """
    after_s = refusal.error.retry_after_s
    require(type(after_s) is int and 1 <= after_s <= MAX_RETRY_AFTER_S, "who is refused is told when to come back", after_s)
    if refusal.outcome is Outcome.REJECTED_CAPACITY and not num_parked and any(bench.is_ready for bench in books.benches):
        num_ahead = len(books.waiting)
        num_full = 1 if config.policy is PolicyName.SINGLE else config.max_batch_size
        require(num_ahead >= num_full, "nobody is refused who fits into the next batch", num_ahead, refusal)


class Room(Checker):
    """What waits is bounded, and makes room only for a higher tier; who finds none is told for how long."""

    def before(self, effect: object, *, now: float) -> None:
        if isinstance(effect, Refuse) and effect.outcome is Outcome.REJECTED_CAPACITY:
            newcomer = self._books.submitting
            is_displaced = newcomer is not None and effect.request.id != newcomer.id
            rank = self._config.tiers.index
            require(newcomer is not None, "only a newcomer causes a refusal", effect)
            after_s = effect.error.retry_after_s
            is_told = type(after_s) is int and 1 <= after_s <= MAX_RETRY_AFTER_S
            require(is_told, "who finds no room is told when to come back", after_s)
            if newcomer is not None and is_displaced:
                require(rank(newcomer.tier) < rank(effect.request.tier), "only a lower tier makes room", effect, newcomer)

    def after_input(self, *, now: float) -> None:
        waiting = self._books.waiting.values()
        num_bytes = sum(request.num_bytes for request in waiting)
        require(len(waiting) <= self._config.max_waiting, "requests that wait are bounded", len(waiting))
        require(num_bytes <= self._config.max_waiting_bytes, "bytes that wait are bounded", num_bytes)
