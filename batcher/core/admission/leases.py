"""Slices of hot limits that this gateway has taken from the shared store and admits from without asking it again.

A subject that is asked for often costs one trip to the store for each slice instead of one for each request. A slice is charged
in the store when it is taken, so what all gateways have taken never exceeds a limit in any sliding minute; but what was taken
just before a minute may be spent in it: the store counts a slice for WINDOW_S from when it was taken, and it is spent up to
LEASE_S later. A gateway has one slice of a subject at a time, asks for the next only after the last one has ended, and a slice
ends LEASE_S after it was asked for. So, with g gateways, a sliding minute may hold at most

    g * max(1, limit // SLICES)

requests (and tokens) more than the limit: `max_overshoot`. Subjects that are not hot, and requests that would use up half of a
slice, are counted in the store one by one and add nothing to it.
"""

from collections.abc import Iterable

import msgspec

from batcher.config import RateLimit
from batcher.core.admission.reservation import WINDOW_S, Reservation, Standing, Subject

LEASE_S = 1.0
"""How long a slice may be spent."""

SLICES = 60
"""A slice is so small a part of the limit: what it allows for in one second, which is as long as it lives."""

_HOT = 8
"""Asked for so often in one LEASE_S, or in the one before, a subject is hot."""

_NONE = (0, 0)
_UNLIMITED = 10**15
"""Above any sum of tokens that a slice of a second could meet."""


def max_overshoot(limit: int, num_gateways: int) -> int:
    """By how much a sliding minute may exceed this limit."""
    return num_gateways * _slice(limit)


def _slice(limit: int | None) -> int:
    return 0 if limit is None else max(1, limit // SLICES)


class Remainder(msgspec.Struct, frozen=True, gc=False):
    """What is left of a slice that has ended, to be given back where it was charged."""

    name: str
    """The subject's."""
    epoch: str
    """Of the store's memory, as in Reservation; likewise the next."""
    at: int
    requests: int
    tokens: int


class _Lease:
    """`requests` and `tokens` are what is left of it; `counted` is what the store counted of both with it."""

    __slots__ = ("at", "counted", "ends_at", "epoch", "limit", "requests", "tokens")

    def __init__(
        self, limit: RateLimit, granted: tuple[int, int], counted: tuple[int, int], *, at: int, epoch: str, ends_at: float
    ) -> None:
        self.limit = limit
        self.requests = _UNLIMITED if limit.requests_per_minute is None else granted[0]
        self.tokens = _UNLIMITED if limit.tokens_per_minute is None else granted[1]
        self.counted = counted
        self.at = at
        self.epoch = epoch
        self.ends_at = ends_at


class Leases:
    """Decides what is admitted here; takes no clock and does no I/O.

    `_leases` and `_asking` are by the subject's name and bounded by the subjects that were hot in the last seconds; `_asked`
    and `_asked_before` count the asks of this LEASE_S and of the last one, and are bounded by these asks.
    """

    def __init__(self) -> None:
        self._leases: dict[str, _Lease] = {}
        self._asking: set[str] = set()
        self._asked: dict[str, int] = {}
        self._asked_before: dict[str, int] = {}
        self._period_ends_at = 0.0

    def __len__(self) -> int:
        return len(self._leases)

    def admit(self, subjects: tuple[Subject, ...], tokens: int, *, now: float) -> Reservation | None:
        """Charges one request and `tokens` to slices of all subjects; None if one of them has no slice with room for it.

        The reservation's second is that of the oldest slice. What is given back to an older second than it was charged to
        stays counted for longer, never shorter: the older one counts no longer than the newer one does.
        """
        if now >= self._period_ends_at:
            is_next = now < self._period_ends_at + LEASE_S
            self._asked_before = self._asked if is_next else {}
            self._asked = {}
            self._period_ends_at = now + LEASE_S
        leases = []
        for subject in subjects:
            self._asked[subject.name] = self._asked.get(subject.name, 0) + 1
            lease = self._leases.get(subject.name)
            if lease is not None and now < lease.ends_at and lease.requests >= 1 and lease.tokens >= tokens:
                leases.append(lease)
        if len(leases) < len(subjects) or len({lease.epoch for lease in leases}) > 1:
            return None
        for lease in leases:
            lease.requests -= 1
            lease.tokens -= tokens
        at = min(lease.at for lease in leases)
        return Reservation(subjects, tokens, at, leases[0].epoch, _standing(leases[0], now))

    def wanted(self, subject: Subject, tokens: int, *, now: float) -> tuple[tuple[int, int], Remainder | None]:
        """The slice to ask the store for with this request, in requests and tokens, 0 where there is no limit or no need; and
        what is left of the one that ends for it. Each ask must be followed by `taken` or `not_taken`."""
        name = subject.name
        if name in self._asking or max(self._asked.get(name, 0), self._asked_before.get(name, 0)) < _HOT:
            return _NONE, None
        lease = self._leases.get(name)
        if lease is not None and now < lease.ends_at and lease.requests >= 1 and lease.tokens >= tokens:
            return _NONE, None  # It is another subject of the request that has none.
        limit = subject.limit
        requests, of_tokens = _slice(limit.requests_per_minute), _slice(limit.tokens_per_minute)
        if (requests and requests < 2) or (of_tokens and of_tokens < 2 * tokens):
            return _NONE, None
        self._asking.add(name)
        return (requests, of_tokens), None if lease is None else self._end(name)

    def taken(
        self, subject: Subject, granted: tuple[int, int], *, at: int, epoch: str, asked_at: float, counted: tuple[int, int]
    ) -> None:
        """The store has charged a slice to the second `at`, and counts so much with it; (0, 0) if there was no room for any."""
        self._asking.discard(subject.name)
        if granted == _NONE:
            return
        lease = _Lease(subject.limit, granted, counted, at=at, epoch=epoch, ends_at=asked_at + LEASE_S)
        self._leases[subject.name] = lease

    def not_taken(self, subject: Subject) -> None:
        self._asking.discard(subject.name)

    def end_old(self, *, now: float) -> list[Remainder]:
        """What is left of slices whose time is over."""
        return self._end_all([name for name, lease in self._leases.items() if now >= lease.ends_at])

    def end_all(self) -> list[Remainder]:
        return self._end_all(list(self._leases))

    def _end_all(self, names: Iterable[str]) -> list[Remainder]:
        return [remainder for name in names if (remainder := self._end(name)) is not None]

    def _end(self, name: str) -> Remainder | None:
        lease = self._leases.pop(name)
        requests = 0 if lease.limit.requests_per_minute is None else lease.requests
        tokens = 0 if lease.limit.tokens_per_minute is None else lease.tokens
        return Remainder(name, lease.epoch, lease.at, requests, tokens) if requests or tokens else None


def _standing(lease: _Lease, now: float) -> Standing:
    """As the store counted when it gave the slice, and what is left of it. The resets are as if
    nobody had been charged since it was asked for, so they are a second too early at most."""
    limit, reset_s = lease.limit, lease.ends_at - LEASE_S + WINDOW_S - now
    of_requests, of_tokens = limit.requests_per_minute, limit.tokens_per_minute
    return Standing(
        of_requests,
        None if of_requests is None else max(0, of_requests - lease.counted[0] + lease.requests),
        reset_s,
        of_tokens,
        None if of_tokens is None else max(0, of_tokens - lease.counted[1] + lease.tokens),
        reset_s,
    )
