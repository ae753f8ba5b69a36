"""When the next of the waiting sequences expires, though most are admitted before.

A heap of all that were submitted, in which the admitted and ended are skipped when they surface. Removing each as it starts
was refused: it costs a search on the way of every sequence. When most of the heap is stale it is built anew, so that it never
holds more than twice the live ones and a constant.
"""

import heapq
from math import inf

from batcher.core.replica.sequence import Sequence, SequenceState

_SLACK = 64
"""Stale entries tolerated beyond the number of live ones: below it a rebuild costs more than it frees."""


class Deadlines:
    """The deadlines of sequences that wait for their first start."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []
        """By instant; the order of submission settles ties, so that sequences are never compared."""

    def __len__(self) -> int:
        """Entries, the stale ones too."""
        return len(self._heap)

    def add(self, sequence: Sequence, *, num_live: int) -> None:
        """`num_live` is how many wait for their first start, this one included."""
        if sequence.deadline_at == inf:
            return
        heapq.heappush(self._heap, (sequence.deadline_at, sequence.order, sequence))
        if len(self._heap) > 2 * num_live + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2].state is SequenceState.WAITING]
            heapq.heapify(self._heap)

    def first(self) -> float:
        """The earliest instant; infinity when there is none."""
        heap = self._heap
        while heap and heap[0][2].state is not SequenceState.WAITING:
            heapq.heappop(heap)
        return heap[0][0] if heap else inf

    def pop_due(self, *, now: float) -> list[Sequence]:
        """Removes and returns those whose deadline is not after `now`, earliest first."""
        due = []
        while self.first() <= now:
            due.append(heapq.heappop(self._heap)[2])
        return due
