"""Which of many things is due next, when most are called off before their time.

Nearly every deadline is called off (the answer came), so removing one must be O(1): it is forgotten in the table, and its
heap entry is skipped when it surfaces. A heap that could be searched was refused for its cost on the path of every request.
"""

import heapq
from math import inf

_SLACK = 64
"""Forgotten entries tolerated beyond the number of live ones: below it a rebuild costs more than it frees."""


class Deadlines:
    """Instants by key; at most one for a key.

    `_at` is the truth. `_heap` holds every pair in `_at` and at most `len(_at) + _SLACK` forgotten ones.
    """

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._at: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._at)

    def set(self, key: int, at: float) -> None:
        """Sets or moves the deadline of `key`."""
        self._at[key] = at
        heapq.heappush(self._heap, (at, key))
        self._compact()

    def postpone(self, key: int, delay_s: float) -> None:
        """Moves the deadline of `key`, which must have one."""
        self.set(key, self._at[key] + delay_s)

    def discard(self, key: int) -> None:
        """Calls the deadline of `key` off, if it has one."""
        if self._at.pop(key, None) is not None:
            self._compact()

    def first(self) -> float:
        """The earliest instant; infinity when there is none."""
        heap = self._heap
        while heap:
            at, key = heap[0]
            if self._at.get(key) == at:
                return at
            heapq.heappop(heap)
        return inf

    def pop_due(self, *, now: float) -> list[int]:
        """Removes and returns the keys whose instant is not after `now`, earliest first."""
        due = []
        while self.first() <= now:
            _, key = heapq.heappop(self._heap)
            del self._at[key]
            due.append(key)
        self._compact()
        return due

    def _compact(self) -> None:
        """Rebuilds the heap when most of it is forgotten: O(1) for each deadline that was ever set, over time."""
        if len(self._heap) > 2 * len(self._at) + _SLACK:
            self._heap = [(at, key) for key, at in self._at.items()]
            heapq.heapify(self._heap)

    def check(self) -> None:
        """Asserts that the heap can still deliver every live deadline, and is bounded."""
        entries = set(self._heap)
        assert all((at, key) in entries for key, at in self._at.items()), "a live deadline is missing from the heap"
        assert len(self._heap) <= 2 * len(self._at) + _SLACK, "forgotten deadlines pile up"
