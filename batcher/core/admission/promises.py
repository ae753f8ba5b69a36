"""Retry-After that is kept: whoever is refused is booked for the second that it is told.

A time from the length of the queue alone is no promise: all who are refused in a second are told the same, come back together,
and nearly all are refused again. So there is a book, as at a ferry: each second has room for a part of what the tier is left,
each refusal takes the first room there is, and whoever comes back when it was told is let in before fresh arrivals (see the
gate). Nothing is kept free for those who do not come: the gate looks at the real queue only, so a promise that nobody redeems
costs nothing.

A promise is a key's, not a request's: from that instant on, one request of yours is let in before fresh ones. Nothing in a
request tells a retry from a fresh one; only some clients say how often they have tried, and what a caller says of itself is
not believed. So the first request of the key from then on redeems it. If that is another one than was refused, the one that
comes back later is judged as fresh. A key with few requests at a time has what it was told. Where one key carries all the
traffic, some request of its is let in for each promise and hardly the same one: of its first retries little more than half
were. That is its owner's to share out, who loses nothing by it, for as many are let in.
"""

from bisect import bisect_left, insort
from heapq import heappop, heappush
from math import ceil

import msgspec

from batcher.errors import MAX_RETRY_AFTER_S

PROMISED_SHARE = 0.5
"""The part of a tier's rate that is promised. The rest is for the keys that are not shed: with all of it promised, a customer
who was served well would have to make way for those who were refused, and be refused in turn."""

GRACE_S = 5.0
"""How late one may come: a client that rounds up, jitters a little and connects anew is in time."""

EARLY_S = 0.005
"""How early: timers and clocks differ by a little. No more, for who comes early may be another request of the same key, and
take the place of the one that was refused."""

MAX_PROMISES = 32_768
"""In one tier's book; some 6 MB. A minute of promises at 500 a second."""

LATE_BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, GRACE_S)
"""Upper bounds of how long after the promised instant those came who were let in."""

_SLOTS_PER_S = 20
"""Room is counted in slots of 50 ms. Retry-After has whole seconds, so those who are refused within one slot come back within
one: the room of a whole second would be filled in its first moments, by more than can be served in them."""

_HORIZON = MAX_RETRY_AFTER_S * _SLOTS_PER_S


class PromiseCounts(msgspec.Struct):
    """Totals since birth. Every promise that was made is kept, broken, expired or still open."""

    num_made: int = 0
    num_kept: int = 0
    """Redeemed, and let in."""
    num_broken: int = 0
    """Redeemed, and refused again."""
    num_expired: int = 0
    """Never redeemed."""
    num_unpromised: int = 0
    """Refused without a promise: the book was full, or higher tiers leave nothing."""
    late_counts: list[int] = msgspec.field(default_factory=lambda: [0] * len(LATE_BOUNDS_S))
    """Of those kept, by LATE_BOUNDS_S."""
    late_sum_s: float = 0.0


class Promises:
    """One tier's book. A slot is 50 ms of the owner's clock.

    `_due` has a key's open promises, a heap of instants. `_slots` are those in which anything was promised, in order; `_keys`
    to whom, and `_taken` how many. Slots before `_first` have expired. Of those that are whole seconds apart, none before
    `_full[phase]` has room, if each has `_full_room` or less.
    """

    __slots__ = ("_due", "_first", "_full", "_full_room", "_keys", "_slots", "_taken", "counts", "num_open")

    def __init__(self) -> None:
        self.counts = PromiseCounts()
        self.num_open = 0
        self._due: dict[str, list[float]] = {}
        self._slots: list[int] = []
        self._taken: dict[int, int] = {}
        self._keys: dict[int, list[str]] = {}
        self._first = 0
        self._full = [0] * _SLOTS_PER_S
        self._full_room = 0.0

    def is_due(self, key: str, *, now: float) -> bool:
        """Whether one of the key's promises may be redeemed now."""
        self._expire(now=now)
        due = self._due.get(key)
        return due is not None and due[0] <= now + EARLY_S

    def is_open(self, *, now: float) -> bool:
        """Whether anybody may still come for what was promised."""
        self._expire(now=now)
        return self.num_open > 0

    def redeem(self, key: str, *, is_kept: bool, now: float) -> None:
        """The key came back: it was let in, or refused again. Asserts `is_due`."""
        due = self._due[key]
        assert due[0] <= now + EARLY_S
        late_s = max(0.0, now - heappop(due))
        if not due:
            del self._due[key]
        self.num_open -= 1
        if not is_kept:
            self.counts.num_broken += 1
            return
        self.counts.num_kept += 1
        self.counts.late_sum_s += late_s
        for index, bound_s in enumerate(LATE_BOUNDS_S):
            if late_s <= bound_s:
                self.counts.late_counts[index] += 1
                break

    def make(self, key: str, *, rate: float, at_least_s: int, now: float) -> int | None:
        """Promises the first room from `at_least_s` seconds on, where `rate` requests a second fit, and returns in how many
        whole seconds that is; MAX_RETRY_AFTER_S, and nothing is promised, if there is none by then. None, and nothing is
        promised, if nothing is left to promise: when there will be room is then the higher tiers' business.

        A key may hold as many promises as still fit into the book, so that one alone fills half of it (as in
        `core.dispatch.tiers`).
        """
        self._expire(now=now)
        room = rate * PROMISED_SHARE / _SLOTS_PER_S
        if room <= 0.0:
            self.counts.num_unpromised += 1
            return None
        due = self._due.get(key)
        if (len(due) if due is not None else 0) < MAX_PROMISES - self.num_open:
            slot = self._find(room, at_least_s, now=now)
            if slot is not None:
                return self._enter(key, slot, now=now)
        self.counts.num_unpromised += 1
        return MAX_RETRY_AFTER_S

    def _find(self, room: float, at_least_s: int, *, now: float) -> int | None:
        """The first slot with room for one more, of those that are whole seconds from now."""
        here = int(now * _SLOTS_PER_S)
        phase = here % _SLOTS_PER_S
        if room > 1.2 * self._full_room:
            # Room may be where there was none. A little more is not looked for: it would be at each refusal.
            self._full = [0] * _SLOTS_PER_S
            self._full_room = room
        full = self._full[phase]
        start = here + at_least_s * _SLOTS_PER_S
        knows_all_before = start <= max(full, here + _SLOTS_PER_S)
        start = max(start, full)
        end = here + _HORIZON + 1
        found = None
        for slot in range(start, end, _SLOTS_PER_S):
            if self._has_room(slot, room):
                found = slot
                break
        if knows_all_before:
            self._full[phase] = found if found is not None else max(start, here + _HORIZON + _SLOTS_PER_S)
        return found

    def _has_room(self, slot: int, room: float) -> bool:
        if room >= 1.0:
            # Fractions are not lost: every slot has what is whole at its end and was not at its beginning.
            return self._taken.get(slot, 0) < int((slot + 1) * room) - int(slot * room)
        gap = ceil(1.0 / room)
        index = bisect_left(self._slots, slot - gap + 1)
        return index == len(self._slots) or self._slots[index] >= slot + gap

    def _enter(self, key: str, slot: int, *, now: float) -> int:
        here = int(now * _SLOTS_PER_S)
        seconds = (slot - here) // _SLOTS_PER_S
        heappush(self._due.setdefault(key, []), now + seconds)
        if slot not in self._taken:
            insort(self._slots, slot)
            self._keys[slot] = []
        self._taken[slot] = self._taken.get(slot, 0) + 1
        self._keys[slot].append(key)
        self.num_open += 1
        self.counts.num_made += 1
        return seconds

    def _expire(self, *, now: float) -> None:
        """Forgets who did not come in time."""
        first = int((now - GRACE_S) * _SLOTS_PER_S)
        if first <= self._first:
            return
        num_passed = bisect_left(self._slots, first)
        for slot in self._slots[:num_passed]:
            del self._taken[slot]
            for key in self._keys.pop(slot):
                due = self._due.get(key)
                while due and due[0] < now - GRACE_S + 1e-6:  # Its slot has passed, whatever rounding says.
                    heappop(due)
                    self.num_open -= 1
                    self.counts.num_expired += 1
                if due is not None and not due:
                    del self._due[key]
        del self._slots[:num_passed]
        self._first = first

    def check(self) -> None:
        counts = self.counts
        assert self.num_open == sum(map(len, self._due.values())) <= MAX_PROMISES, "open promises are miscounted"
        num_ended = counts.num_kept + counts.num_broken + counts.num_expired
        assert counts.num_made == num_ended + self.num_open, "a promise has two ends, or none"
        assert all(self._due.values()), "a key without promises is in the book"
        assert self._slots == sorted(self._taken) == sorted(self._keys), "slots are out of order"
        assert all(len(self._keys[slot]) == num for slot, num in self._taken.items()), "a slot is miscounted"
        assert len(self._slots) <= _HORIZON + (GRACE_S + 1) * _SLOTS_PER_S, "slots are kept for ever"
