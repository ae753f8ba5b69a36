"""The gate: a request that would wait longer than its tier's budget is refused at once and told when to come back.

Refusing late was refused: a caller that waits a minute and times out is worse off than one that is told no in a millisecond
(SPEC S4). The gate decides on the estimate alone and holds no queue. Beside it stand the throttle, which chooses whose budget
is cut so that the same keys are refused while it lasts, and the book of promises, which says when to come back:

    has a promise that is due    budget and a little more: before whoever comes fresh
    any other key                budget
    a key that is shed           a quarter of the budget: it gets what the others leave

So nobody is refused for what the throttle or the book believes while the queue is short, whoever may be promised what: the
capacity is never idle for it. A lower tier may use all that higher ones leave, their reserve too; only, what is promised
leaves the reserve on top of what they use: when they want it, they do not take what others were told.
"""

from collections.abc import Mapping
from math import ceil, inf, isinf, sqrt

import msgspec

from batcher.config import TierConfig, check_tiers
from batcher.core.admission.fairness import Scores
from batcher.core.admission.promises import PromiseCounts, Promises
from batcher.core.admission.throttle import SHED_BUDGET, Throttle
from batcher.core.admission.wait import TIME_CONSTANT_S, ArrivalRate, estimate_wait_s, left_rate
from batcher.errors import MAX_RETRY_AFTER_S, NO_WORKER_RETRY_AFTER_S, SHED, Overloaded, ServiceError, ShuttingDown
from batcher.types import Outcome

PROMISED_BUDGET = 1.25
"""What who redeems a promise may wait for, in budgets, and a batch on top: estimates tremble, and the queue that fresh arrivals
left is as long as their budget."""


UNPROMISED_SPREAD_S = 4.0
"""Over how long, and the time to drain the queue again, those are spread who are refused without a promise."""


_GOLDEN = (sqrt(5.0) - 1.0) / 2.0
"""Its multiples, less their whole parts, fill an interval as evenly as any number's, however many there are."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a request may not enter, as a value."""

    outcome: Outcome
    error: ServiceError


class GateStatistics(msgspec.Struct, frozen=True):
    """One tier, as it stands."""

    tier: str
    pressure: float
    """Estimated wait over budget."""
    admitted_share: float
    """Of its keys, those that are not shed."""
    limit_factor: float
    num_open_promises: int
    promises: PromiseCounts
    """A snapshot."""


class _Tier:
    """`higher` are the arrivals of the tiers before it, `reserved_share` their reserve."""

    __slots__ = ("arrivals", "budget_s", "higher", "is_first", "name", "promises", "reserved_share", "throttle")

    def __init__(self, name: str, budget_s: float, before: "list[_Tier]", reserved_share: float, memory_s: float) -> None:
        self.name = name
        self.budget_s = budget_s
        self.arrivals = ArrivalRate(memory_s)
        self.higher: tuple[ArrivalRate, ...] = tuple([tier.arrivals for tier in before])
        self.is_first = not before
        self.reserved_share = reserved_share
        self.throttle = Throttle()
        self.promises = Promises()


class Gate:
    """Admission by estimated wait (SPEC S8.1), strictest for the lowest tier (SPEC S1.4). One owner calls it; it has no locks.

    Work is in the owner's unit: requests, or tokens. `secret` decides which keys are shed first.
    """

    def __init__(
        self,
        tiers: tuple[TierConfig, ...],
        *,
        secret: bytes,
        budgets_s: Mapping[str, float] | None = None,
        memory_s: float = TIME_CONSTANT_S,
    ) -> None:
        """`budgets_s` by tier, in place of their `wait_budget_s`; `memory_s` is over how long arrivals are measured."""
        check_tiers(tiers)
        self._tiers: dict[str, _Tier] = {}
        reserved_share = 0.0
        for tier in tiers:
            budget_s = tier.wait_budget_s if budgets_s is None else budgets_s[tier.name]
            self._tiers[tier.name] = _Tier(tier.name, budget_s, list(self._tiers.values()), reserved_share, memory_s)
            reserved_share = min(reserved_share + tier.reserved_share, 1.0)
        self._scores = Scores(secret)
        self._is_draining = False

    def __repr__(self) -> str:
        return f"<Gate {' '.join(f'{tier.name}={tier.throttle.admitted_share:.2f}' for tier in self._tiers.values())}>"

    def drain(self) -> None:
        """Refuses everything from now on."""
        self._is_draining = True

    def admit(
        self,
        tier: str,
        *,
        work_ahead: float,
        capacity_rate: float,
        now: float,
        key: str = "",
        batch_size: int = 1,
        work: float = 1.0,
        sure_rate: float = inf,
        is_early: bool = False,
    ) -> Refusal | None:
        """None if the request may enter, and then it counts as an arrival of its tier.

        `work_ahead` is what leaves before it, `batch_size` at a time; `capacity_rate` what is served in a second, `work` one
        request's. No more than `sure_rate` is promised to those who are refused. `is_early` asks before the request is read: if
        it may enter nothing changes, and it is asked for again.
        """
        if self._is_draining:
            return Refusal(Outcome.REJECTED_SHUTDOWN, ShuttingDown("this server is shutting down", retry_after_s=1))
        state = self._tiers[tier]
        throttle, promises = state.throttle, state.promises
        higher_rate = sum([rate.rate(now=now) for rate in state.higher]) if state.higher else 0.0
        wait_s = estimate_wait_s(work_ahead, batch_size=batch_size, capacity_rate=capacity_rate, higher_rate=higher_rate)
        limit_s = state.budget_s
        is_due = is_shed = False
        if promises.num_open and promises.is_due(key, now=now):
            is_due = True
            limit_s *= PROMISED_BUDGET
            if capacity_rate > 0.0:
                limit_s += max(work, batch_size) / left_rate(capacity_rate, higher_rate)
        elif throttle.admitted_share < 1.0:
            is_shed = self._scores.score(tier, key, now=now) >= throttle.admitted_share
            if is_shed:
                limit_s *= SHED_BUDGET
        if is_early and wait_s <= limit_s:
            return None
        throttle.observe(wait_s, limit_s, now=now)
        if wait_s <= limit_s:
            state.arrivals.observe(work, now=now)
            if is_due:
                promises.redeem(key, is_kept=True, now=now)
            elif not is_shed:
                throttle.count(is_refused=False)
            return None
        if is_due:
            promises.redeem(key, is_kept=False, now=now)
        elif not is_shed:
            throttle.count(is_refused=True)
        if isinf(wait_s):
            error = Overloaded("no worker is ready", retry_after_s=NO_WORKER_RETRY_AFTER_S)
        else:
            left = min(capacity_rate, sure_rate) * (1.0 - state.reserved_share) - higher_rate
            rate = max(left, 0.0) / work
            drained_s = _seconds(wait_s - limit_s)
            retry_after_s = promises.make(key, rate=rate, at_least_s=drained_s, now=now)
            if retry_after_s is None:
                retry_after_s = _spread(drained_s, promises.counts.num_unpromised)
            message = f"the estimated wait of {wait_s:.3f} s is over the budget of {limit_s:g} s"
            error = Overloaded(message, retry_after_s=retry_after_s, refused=SHED if is_shed else "")
        return Refusal(Outcome.REJECTED_CAPACITY, error)

    def estimate_wait_s(self, tier: str, *, work_ahead: float, capacity_rate: float, now: float, batch_size: int = 1) -> float:
        """Seconds; infinity while no worker is ready."""
        higher_rate = self.higher_rate(tier, now=now)
        return estimate_wait_s(work_ahead, batch_size=batch_size, capacity_rate=capacity_rate, higher_rate=higher_rate)

    def fresh_share(self, tier: str, *, capacity_rate: float, now: float) -> float:
        """What the tier lets in of late, as a part of what it is left: from 0, and above 1 while its queue grows."""
        rate = self._tiers[tier].arrivals.rate(now=now)
        return rate / left_rate(capacity_rate, self.higher_rate(tier, now=now)) if capacity_rate > 0.0 else 1.0

    @property
    def lower_budgets_s(self) -> dict[str, float]:
        """By tier, of all but the first."""
        return {name: state.budget_s for name, state in self._tiers.items() if not state.is_first}

    def has_promised_above(self, tier: str, *, now: float) -> bool:
        """Whether callers of higher tiers are to come back: then they have what will be left."""
        for name, state in self._tiers.items():
            if name == tier:
                return False
            if state.promises.is_open(now=now):
                return True
        raise KeyError(tier)

    def higher_rate(self, tier: str, *, now: float) -> float:
        """Work per second that higher tiers bring of late."""
        return sum([rate.rate(now=now) for rate in self._tiers[tier].higher])

    def limit_factor(self, tier: str, *, now: float) -> float:
        """What a tier's limits are to be multiplied by, above 0 and at most 1: always 1 for the first (SPEC S8.2)."""
        state = self._tiers[tier]
        return 1.0 if state.is_first else state.throttle.limit_factor(now=now)

    def statistics(self, *, now: float) -> tuple[GateStatistics, ...]:
        return tuple(
            GateStatistics(
                tier=name,
                pressure=state.throttle.pressure_at(now),
                admitted_share=state.throttle.admitted_share,
                limit_factor=self.limit_factor(name, now=now),
                num_open_promises=state.promises.num_open,
                promises=msgspec.structs.replace(state.promises.counts, late_counts=list(state.promises.counts.late_counts)),
            )
            for name, state in self._tiers.items()
        )

    def check(self) -> None:
        """Asserts the laws of its parts. O(promises)."""
        for state in self._tiers.values():
            state.throttle.check()
            state.promises.check()


def _spread(drained_s: int, number: int) -> int:
    """When to come back without a promise: a guess, for a burst that ends. The longest time would keep callers away from a
    server that has been idle for most of it, and one time for all would bring them back together."""
    part = number * _GOLDEN % 1.0
    return min(drained_s + int(part * (drained_s + UNPROMISED_SPREAD_S)), MAX_RETRY_AFTER_S)


def _seconds(excess_s: float) -> int:
    """Until the queue has drained to the budget."""
    return min(max(1, ceil(excess_s)), MAX_RETRY_AFTER_S)
