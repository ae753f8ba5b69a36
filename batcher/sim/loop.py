"""The virtual clock, and the event loop that it drives.

Time is a number that jumps from one thing that happens to the next, so an hour passes in seconds and a run is the same every
time. Running the real shell on a patched clock was refused: its order of callbacks is the machine's, and no seed brings a
failure back.

Three sources compete for what happens next: events asked for with `call_at`, arrivals, which are made lazily and never enter
the heap, since they are nearly everything that happens, and the owner's one timer. What is due at one instant goes in that
order, or, given a source of randomness, in any.
"""

import heapq
from collections.abc import Callable, Iterator
from math import inf
from random import Random
from typing import Any, Protocol

from batcher.types import Request

MAX_TICKS_AT_ONCE = 10_000
"""Ticks in a row at one instant. An owner that asks for more will never let time go on."""

_EVENT, _ARRIVAL, _TIMER = range(3)


class Owner(Protocol):
    """What lives on the loop. The loop calls; `loop.now` is the time of the call."""

    def arrive(self, request: Request) -> None: ...

    def next_deadline(self) -> float | None:
        """When the timer must ring, if nothing happens before."""
        ...

    def tick(self, due_at: float) -> None:
        """The timer rings, at its deadline or late."""
        ...


class Loop:
    """A clock that never goes back and the events that wait for it.

    `_heap` orders the events by their instant and then by the order of asking, which `_num_asked` counts.
    """

    __slots__ = ("_heap", "_num_asked", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._num_asked = 0

    def __repr__(self) -> str:
        return f"<Loop now={self.now:.6f} events={len(self._heap)}>"

    def call_at(self, at: float, act: Callable[..., None], *arguments: Any) -> None:
        """Has `act` called at the instant `at`; now, if that has passed."""
        self._num_asked += 1
        heapq.heappush(self._heap, (at, self._num_asked, act, arguments))

    def stall(self, duration_s: float) -> None:
        """Nothing happens for so long: what falls due meanwhile comes late, in a bunch, at the end."""
        self.now += duration_s

    def run(
        self,
        owner: Owner,
        arrivals: Iterator[Request],
        *,
        before_advance: Callable[[float], None] | None = None,
        ties: Random | None = None,
    ) -> None:
        """Lets everything happen until nothing is left to.

        `arrivals` are in order of `arrived_at`. `before_advance(to)` is called when all that was due has happened and before
        the clock moves to `to`. With `ties`, what is due together happens in an order drawn from it.
        """
        heap = self._heap
        arrive, next_deadline = owner.arrive, owner.next_deadline
        request = next(arrivals, None)
        num_ticks = 0
        armed_for: float | None = None
        timer_at = inf
        while True:
            event_at = heap[0][0] if heap else inf
            arrival_at = inf if request is None else request.arrived_at
            deadline = next_deadline()
            if deadline != armed_for:  # A deadline that has passed when it is set is due now, and not late.
                armed_for = deadline
                timer_at = inf if deadline is None else max(deadline, self.now)
            if event_at <= arrival_at:
                source, first_at = _EVENT, event_at
            else:
                source, first_at = _ARRIVAL, arrival_at
            if timer_at < first_at:
                source, first_at = _TIMER, timer_at
            if first_at > self.now:
                if first_at == inf:
                    return
                if before_advance is not None:
                    before_advance(first_at)
                self.now = first_at
                num_ticks = 0
            if ties is not None:
                source = _draw_due(ties, self.now, (event_at, arrival_at, timer_at))
            if source == _EVENT:
                _, _, act, arguments = heapq.heappop(heap)
                act(*arguments)
            elif source == _ARRIVAL and request is not None:
                arrive(request)
                request = next(arrivals, None)
            else:
                num_ticks += 1
                assert num_ticks <= MAX_TICKS_AT_ONCE, f"the timer is due at {deadline} again after each tick at {self.now}"
                due_at, armed_for, timer_at = timer_at, None, inf
                owner.tick(due_at)


def _draw_due(ties: Random, now: float, instants: tuple[float, float, float]) -> int:
    """One of the sources that are due, drawn."""
    due = [source for source, at in enumerate(instants) if at <= now]
    return due[0] if len(due) == 1 else ties.choice(due)
