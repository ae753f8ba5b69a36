"""Rate limits: in every sliding minute, no more requests and tokens than the limit says are admitted.

Requests are counted in buckets of one second, and a bucket counts until the last charge to it is a minute old: 61 of them at
most. So the law is exact and nobody waits for longer than a minute; the price is that what was charged early in a second
becomes free with what was charged last in it. To count a bucket until its whole second is a minute old was refused: a wait may
then be of 61 seconds, and Retry-After says 60 at most. Two buckets of a minute with the older one weighted were refused: they
guess where in the older minute its requests were, and a burst at the right moment passes twice. A token bucket was refused as
well: full when a minute starts, it lets through nearly twice its rate in that minute.

Check and charge are one step (CASES B33): whoever is let in has already paid when the next one is looked at. A request is
charged at the second of its admission, and what it turns out to have cost corrects that second's bucket. When the bucket
counts no more, for each subject by itself, what was charged too much is free already, and what was charged too little is
charged to the second in which that becomes known: an answer that takes longer than a minute would cost nothing where little or
nothing of it is reserved.

Time is monotonic seconds, given by the owner; if it steps back, no time has passed (CASES B34).
"""

from collections import OrderedDict
from math import floor, inf

import msgspec

from batcher.core.admission.reservation import WINDOW_S, LimitRefusal, Reservation, Standing, Subject
from batcher.core.admission.window import EMPTY, Bucket, Window

_MAX_TOGETHER = 4
"""Subjects that one request is charged to: a key and its tier today. So many are always held, so that a request's own subjects
never push each other out."""

_LONGEST_S = float(WINDOW_S)
"""No wait is longer, though the sum by which it ends may have been rounded up: whoever waits for so long gets the same sum."""

_MAX_SWEPT = 250
"""Subjects of which nothing counts any more that are let go at most when a second begins: a quarter of a millisecond's work."""


class _Open(msgspec.Struct, frozen=True, gc=False):
    """A reservation that has not ended, and where it was charged."""

    reservation: Reservation
    charges: list[tuple[Window, Bucket]]


class LimitsStatistics(msgspec.Struct, frozen=True):
    num_subjects: int
    """That something may be counted of."""
    num_open: int
    """Reservations of the last minute that have not ended."""
    num_forgotten: int
    """Subjects dropped for want of room while something of theirs counted: their limits were not kept for up to a minute."""


class Limits:
    """Sliding-window counters by subject.

    `_windows` are in the order of their last charge, so those idle for the longest are first. `_open` holds the reservations
    that may still be corrected, by identity, in the order of their seconds; one that surely counts no more is dropped from it,
    so it holds no more than 61 seconds'. A reservation keeps the very buckets that it was charged to: what is given back of it
    never becomes room in the new counters of a subject that was dropped and came back.
    """

    __slots__ = ("_ends_at", "_max_subjects", "_now", "_num_forgotten", "_oldest", "_open", "_second", "_windows")

    def __init__(self, *, max_subjects: int, now: float) -> None:
        self._max_subjects = max(max_subjects, _MAX_TOGETHER)
        self._now = now
        self._ends_at = now + WINDOW_S
        """Until then counts what is charged now."""
        self._second = floor(now)
        self._oldest = self._second - WINDOW_S
        """The first second of which anything may count; all of those after it do."""
        self._windows: OrderedDict[str, Window] = OrderedDict()
        self._open: dict[int, _Open] = {}
        self._num_forgotten = 0

    def __repr__(self) -> str:
        return f"Limits({len(self._windows)} subjects, {len(self._open)} open)"

    def reserve(self, subjects: tuple[Subject, ...], tokens: int, *, now: float) -> Reservation | LimitRefusal:
        """Charges one request and `tokens` to all subjects, or to none. The subjects are 1 to 4, all different.

        Raises ValueError if there are none or more, or `tokens` is negative.
        """
        if tokens < 0 or not 0 < len(subjects) <= _MAX_TOGETHER:
            raise ValueError(f"{tokens} tokens cannot be reserved for {len(subjects)} subjects")
        self._pass_until(now)
        if not self._has_room(subjects, tokens):
            return self._refuse(subjects, tokens)
        charges = self._charge(subjects, 1, tokens)
        reservation = Reservation(subjects, tokens, self._second, "", self._standing(subjects[0]))
        self._open[id(reservation)] = _Open(reservation, charges)
        return reservation

    def settle(self, reservation: Reservation, tokens: int, *, now: float) -> None:
        """The request has cost so many tokens, fewer than reserved or more.

        Raises ValueError if `tokens` is negative, or the reservation has ended or is not ours.
        """
        if tokens < 0:
            raise ValueError(f"a request cannot have cost {tokens} tokens")
        more = tokens - reservation.tokens
        charges = self._end(reservation, now=now)
        for window, bucket in charges:
            bucket.tokens += more
            window.tokens += more
        if more > 0 and len(charges) < len(reservation.subjects):
            names = [window.name for window, _ in charges]
            self._charge(tuple([subject for subject in reservation.subjects if subject.name not in names]), 0, more)

    def give_back(self, reservation: Reservation, *, now: float) -> None:
        """The request was not served and counts for nothing. Raises ValueError if the reservation has ended or is not ours."""
        for window, bucket in self._end(reservation, now=now):
            bucket.requests -= 1
            bucket.tokens -= reservation.tokens
            window.requests -= 1
            window.tokens -= reservation.tokens
            if window.requests == window.tokens == 0 and self._windows.get(window.name) is window:
                del self._windows[window.name]

    def peek(self, subjects: tuple[Subject, ...], *, now: float) -> LimitRefusal | None:
        """The refusal that one more request with one token would get. Changes nothing."""
        self._pass_until(now)
        return None if self._has_room(subjects, 1) else self._refuse(subjects, 1)

    def statistics(self) -> LimitsStatistics:
        return LimitsStatistics(len(self._windows), len(self._open), self._num_forgotten)

    def _pass_until(self, now: float) -> None:
        if now <= self._now:
            return
        self._now = now
        self._ends_at = now + WINDOW_S
        second = floor(now)
        if second != self._second:
            self._second = second
            self._oldest = second - WINDOW_S
            self._sweep()

    def _sweep(self) -> None:
        """Lets go of what counts no more: a table that was large once does not stay so. O(1) for each reservation ever made."""
        old = []
        for key, held in self._open.items():
            if held.reservation.at >= self._oldest:
                break
            old.append(key)
        for key in old:
            del self._open[key]
        for _ in range(min(_MAX_SWEPT, len(self._windows))):
            if not next(iter(self._windows.values())).is_idle(self._now):
                break
            self._windows.popitem(last=False)

    def _charge(self, subjects: tuple[Subject, ...], requests: int, tokens: int) -> list[tuple[Window, Bucket]]:
        """To this second."""
        windows, second, ends_at = self._windows, self._second, self._ends_at
        charges = []
        for subject in subjects:
            window = windows.get(subject.name)
            if window is None:
                window = windows[subject.name] = Window(subject.name, [])
            else:
                windows.move_to_end(subject.name)
            charges.append((window, window.charge(second, ends_at, requests, tokens)))
        while len(windows) > self._max_subjects:
            _, dropped = windows.popitem(last=False)
            self._num_forgotten += not dropped.is_idle(self._now)
        return charges

    def _has_room(self, subjects: tuple[Subject, ...], tokens: int) -> bool:
        windows = self._windows
        now = self._now
        for subject in subjects:
            window = windows.get(subject.name, EMPTY)
            if window.buckets and window.buckets[0].ends_at <= now:
                window.expire(now)
            limit = subject.limit
            if limit.requests_per_minute is not None and window.requests >= limit.requests_per_minute:
                return False
            if limit.tokens_per_minute is not None and window.tokens + tokens > limit.tokens_per_minute:
                return False
        return True

    def _refuse(self, subjects: tuple[Subject, ...], tokens: int) -> LimitRefusal:
        """Of the limits without room, the one that has none for the longest."""
        last_at, last, is_tokens = -inf, subjects[0], False
        for subject in subjects:
            window = self._windows.get(subject.name, EMPTY)
            window.expire(self._now)
            limit = subject.limit
            if limit.requests_per_minute is not None and window.requests >= limit.requests_per_minute:
                at = window.free_at(num_requests=window.requests + 1 - limit.requests_per_minute)
                if at > last_at:
                    last_at, last, is_tokens = at, subject, False
            if limit.tokens_per_minute is not None and window.tokens + tokens > limit.tokens_per_minute:
                at = window.free_at(num_tokens=window.tokens + tokens - limit.tokens_per_minute)
                if at > last_at:
                    last_at, last, is_tokens = at, subject, True
        wait_s = last_at - self._now
        if WINDOW_S < wait_s < inf:
            wait_s = _LONGEST_S
        return LimitRefusal(last, is_tokens, wait_s, self._standing(subjects[0]))

    def _end(self, reservation: Reservation, *, now: float) -> list[tuple[Window, Bucket]]:
        """Where it was charged and that still counts: of its subjects all, some or none."""
        self._pass_until(now)
        held = self._open.pop(id(reservation), None)
        if held is not None:
            if reservation.at > self._oldest:
                return held.charges
            return [charge for charge in held.charges if charge[1].ends_at > self._now]
        if reservation.at >= self._oldest:
            raise ValueError("the reservation has ended before, or was made elsewhere")
        return []

    def _standing(self, subject: Subject) -> Standing:
        window = self._windows.get(subject.name, EMPTY)
        now = self._now
        requests_s = tokens_s = 0.0
        for bucket in reversed(window.buckets):
            wait_s = bucket.ends_at - now
            if wait_s > WINDOW_S:
                wait_s = _LONGEST_S
            if bucket.requests and wait_s > requests_s:
                requests_s = wait_s
            if bucket.tokens and wait_s > tokens_s:
                tokens_s = wait_s
            if requests_s and tokens_s:
                break
        max_requests, max_tokens = subject.limit.requests_per_minute, subject.limit.tokens_per_minute
        return Standing(
            max_requests,
            None if max_requests is None else max(0, max_requests - window.requests),
            requests_s,
            max_tokens,
            None if max_tokens is None else max(0, max_tokens - window.tokens),
            tokens_s,
        )

    def check(self) -> None:
        """For tests, which call it after every event. Not for a service that is idle: a full table takes it over a second, and
        what is counted wrong is gone after a minute."""
        assert len(self._windows) <= self._max_subjects, "the table is over its bound"
        last_at = -inf
        for name, window in self._windows.items():
            assert window.name == name
            seconds = [bucket.second for bucket in window.buckets]
            assert seconds == sorted(set(seconds)), f"{name}: seconds are out of order"
            assert not seconds or seconds[-1] - max(seconds[0], self._oldest) <= WINDOW_S, f"{name}: too many buckets"
            assert all(b.second <= b.ends_at - WINDOW_S <= b.second + 1 for b in window.buckets), (
                f"{name}: a bucket that does not end a minute after a charge to it"
            )
            assert all(b.requests >= 0 and b.tokens >= 0 for b in window.buckets), f"{name}: a negative count"
            assert window.requests == sum(b.requests for b in window.buckets), f"{name}: requests are miscounted"
            assert window.tokens == sum(b.tokens for b in window.buckets), f"{name}: tokens are miscounted"
            charged_at = -inf if window.is_idle(self._now) else window.buckets[-1].ends_at
            assert charged_at >= last_at, f"{name}: out of the order of charges"
            last_at = charged_at
        owed: dict[int, int] = {}
        for key, held in self._open.items():
            assert key == id(held.reservation)
            for _, bucket in held.charges:
                assert bucket.second == held.reservation.at, "charged to another second"
                owed[id(bucket)] = owed.get(id(bucket), 0) + held.reservation.tokens
                assert owed[id(bucket)] <= bucket.tokens, "open reservations were given back"


def never_fits(subjects: tuple[Subject, ...], tokens: int) -> Subject | None:
    """The first whose limit is below these tokens even when nothing else counts."""
    for subject in subjects:
        limit = subject.limit.tokens_per_minute
        if limit is not None and tokens > limit:
            return subject
    return None
