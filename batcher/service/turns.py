"""Turns at what holds up the event loop: one or two in each round of it, so that whatever is short passes between.

A large request is not much work, but a thousand that come together are a second of it, and all that time nobody else would be
heard. Nothing is put off where there is no crowd: the first in a round has its turn at once. Tenants take turns, too, so that
one's thousand are no second for another's one.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TypeAlias

Work: TypeAlias = Callable[[], bool]
"""Returns whether it was still wanted; if not, the turn is the next one's. It raises nothing."""


class Turns:
    """Of one event loop. Bounded by whoever asks: each request waits for one turn at a time, and what its client is gone for
    goes with the next. A task that waits goes on in the round after its turn has come, beside that round's own."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Work]] = OrderedDict()
        """By tenant, whose turn is next first. Nobody is there without work."""
        self._is_taken = False
        """Whether this round's turn is; then `_give` is called in the next."""

    def __repr__(self) -> str:
        return f"Turns({self.num_waiting} waiting)"

    @property
    def num_waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def call(self, tenant: str, work: Work, *, goes_on: bool = False) -> None:
        """Calls it when its turn has come, perhaps at once, a tenant's in the order of asking. What goes on with work that had
        a turn stands before what has not begun: otherwise none of many would end before nearly all of them do."""
        line = self._waiting.setdefault(tenant, deque())
        line.appendleft(work) if goes_on else line.append(work)
        if not self._is_taken:
            self._give()

    async def take(self, tenant: str, *, goes_on: bool = False) -> None:
        """Returns when the turn has come. May be cancelled."""
        has_come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call(tenant, lambda: _settle(has_come), goes_on=goes_on)
        await has_come

    def _give(self) -> None:
        """Gives this round's turn to the first who still wants it."""
        self._is_taken = True
        while self._waiting:
            work = self._pop()
            is_used = True
            try:
                is_used = work()
            finally:
                if is_used:
                    asyncio.get_running_loop().call_soon(self._give)
            if is_used:
                return
        self._is_taken = False

    def _pop(self) -> Work:
        tenant, line = self._waiting.popitem(last=False)
        work = line.popleft()
        if line:
            self._waiting[tenant] = line  # Behind the others.
        return work


def _settle(has_come: "asyncio.Future[None]") -> bool:
    if has_come.done():
        return False  # Whoever waited was cancelled.
    has_come.set_result(None)
    return True
