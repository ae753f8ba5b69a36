"""What a store of rate limits promises, wherever it counts: in this process (`stores.memory_limits`) or in Redis, for several
gateways (`stores.redis_limits`).

What stores tell of themselves stands here too, so that whoever shows it needs no store's own client.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from batcher.core.admission.limits import LimitsStatistics
from batcher.core.admission.reservation import LimitRefusal, Reservation, StoreAway, Subject

Verdict: TypeAlias = Reservation | LimitRefusal | StoreAway
OnVerdict: TypeAlias = Callable[[Verdict], None]


class RedisLimitsStatistics(msgspec.Struct, frozen=True):
    """All but the first three count up."""

    is_failing: bool
    """Whether Redis is away, or refuses what it is asked."""
    num_waiting: int
    num_leases: int
    num_losses: int
    """Times that Redis went away."""
    num_calls: int
    """Of the script."""
    num_asked: int
    """Requests that went to Redis."""
    num_leased: int
    """Requests admitted from a lease."""
    num_alone: int
    """Requests decided without Redis because it was away, either way."""
    num_dropped: int
    """Corrections that were not made, or of which nobody knows."""


class LimitStore(Protocol):
    """Counts requests and tokens of sliding minutes. Lives on one event loop; callback-shaped: the hot path has no task."""

    def reserve(self, subjects: tuple[Subject, ...], tokens: int, on_verdict: OnVerdict) -> None:
        """Checks and charges one request and `tokens` to each subject, in one atomic step for all. `on_verdict` is called once,
        perhaps before this returns."""

    def settle(self, reservation: Reservation, tokens: int) -> None:
        """The request was served and cost so many tokens: the difference is given back, or charged. Never waits."""

    def give_back(self, reservation: Reservation) -> None:
        """The request was not served: all of it, the request too, is given back. Never waits."""

    def peek(self, subjects: tuple[Subject, ...]) -> LimitRefusal | None:
        """A refusal if what is known here says that not even one more request with one token would be let in; changes
        nothing and asks nobody. For refusing before a body is read."""

    def statistics(self) -> LimitsStatistics | RedisLimitsStatistics: ...

    async def start(self) -> None:
        """Once, before the first reserve. A store that is away is no error yet."""

    async def close(self) -> None:
        """Once, after the last settle."""
