"""The gate: a request that would wait longer than its tier's budget is refused at once and told when to come back.

Refusing late was refused: a caller that waits a minute and times out is worse off than one that is told no in a millisecond
(SPEC S4). The gate decides on the estimate alone and holds no queue.
"""

from math import ceil, isinf
from random import Random

import msgspec

from batcher.config import TierConfig, check_tiers
from batcher.core.admission.wait import ArrivalRate, estimate_wait_s
from batcher.errors import MAX_RETRY_AFTER_S, NO_WORKER_RETRY_AFTER_S, Overloaded, ServiceError, ShuttingDown
from batcher.types import Outcome


class Refusal(msgspec.Struct, frozen=True):
    """Why a request may not enter, as a value."""

    outcome: Outcome
    error: ServiceError


class Gate:
    """Admission by estimated wait (SPEC S8.1), strictest for the lowest tier (SPEC S1.4).

    `_rates` are the arrivals that each tier's requests have been admitted at; `_jitter` spreads those who are told to retry.
    """

    def __init__(self, tiers: tuple[TierConfig, ...], *, jitter: Random) -> None:
        check_tiers(tiers)
        self._budgets_s = {tier.name: tier.wait_budget_s for tier in tiers}
        self._rates = {tier.name: ArrivalRate() for tier in tiers}
        self._jitter = jitter
        self._is_draining = False

    def drain(self) -> None:
        """Refuses everything from now on."""
        self._is_draining = True

    def admit(self, tier: str, *, num_ahead: int, capacity_rate: float, now: float, batch_size: int = 1) -> Refusal | None:
        """None if the request may enter, and then it counts as an arrival of its tier.

        `num_ahead` is how many leave before it, `batch_size` at a time; `capacity_rate` what the ready workers serve, in
        requests per second.
        """
        if self._is_draining:
            return Refusal(Outcome.REJECTED_SHUTDOWN, ShuttingDown("this server is shutting down", retry_after_s=1))
        wait_s = self.estimate_wait_s(tier, num_ahead=num_ahead, capacity_rate=capacity_rate, now=now, batch_size=batch_size)
        budget_s = self._budgets_s[tier]
        if wait_s <= budget_s:
            self._rates[tier].observe(now=now)
            return None
        return Refusal(Outcome.REJECTED_CAPACITY, self._overloaded(wait_s, budget_s))

    def estimate_wait_s(self, tier: str, *, num_ahead: int, capacity_rate: float, now: float, batch_size: int = 1) -> float:
        """Seconds; infinity while no worker is ready."""
        higher_rate = 0.0
        for name, rate in self._rates.items():
            if name == tier:
                break
            higher_rate += rate.rate(now=now)
        return estimate_wait_s(num_ahead, batch_size=batch_size, capacity_rate=capacity_rate, higher_rate=higher_rate)

    def _overloaded(self, wait_s: float, budget_s: float) -> Overloaded:
        if isinf(wait_s):
            return Overloaded("no worker is ready", retry_after_s=NO_WORKER_RETRY_AFTER_S)
        # Until the queue has drained to the budget, jittered upward by up to a half so that not all come back together.
        retry_after_s = ceil((wait_s - budget_s) * (1.0 + self._jitter.random() / 2.0))
        return Overloaded(
            f"the estimated wait of {wait_s:.3f} s is over this tier's budget of {budget_s:g} s",
            retry_after_s=min(max(retry_after_s, 1), MAX_RETRY_AFTER_S),
        )
