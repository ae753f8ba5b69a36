"""Turns at what holds up the event loop: one in each round of it, so that whatever is short passes between.

A large request is not much work, but a thousand that come together are a second of it, and all that time nobody else would be
heard. Nothing is put off where there is no crowd: the first in a round has its turn at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Of one event loop. Bounded by whoever asks: each connection waits for one turn at a time, and an answer for one."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_taken = False
        """Whether this round's turn is; then the next one's is given in `_go_on`."""

    def __repr__(self) -> str:
        return f"Turns({len(self._waiting)} waiting)"

    def call(self, work: Callable[[], None]) -> None:
        """Calls it when its turn has come, perhaps at once, in the order of asking. It raises nothing."""
        if self._is_taken:
            self._waiting.append(work)
        else:
            self._take()
            work()

    async def take(self) -> None:
        """Returns when the turn has come. May be cancelled."""
        if not self._is_taken:
            self._take()
            return
        has_come: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(lambda: _settle(has_come))
        await has_come

    def _take(self) -> None:
        self._is_taken = True
        asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_taken = False
        if self._waiting:
            self._take()
            self._waiting.popleft()()


def _settle(has_come: "asyncio.Future[None]") -> None:
    if not has_come.done():  # Whoever waited was cancelled.
        has_come.set_result(None)
