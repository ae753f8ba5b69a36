"""What holds rate limits, as the stages of a request see it."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from batcher.core.admission.reservation import LimitRefusal, Reservation, StoreAway, Subject

Verdict: TypeAlias = Reservation | LimitRefusal | StoreAway
OnVerdict: TypeAlias = Callable[[Verdict], None]


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

    async def start(self) -> None: ...

    async def close(self) -> None: ...
