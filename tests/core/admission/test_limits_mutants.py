"""That the model can fail: counters that peers have shipped, put in the place of ours, are each found by it."""

from collections.abc import Callable

import pytest

from batcher.core.admission.limits import Limits
from batcher.core.admission.reservation import Reservation, Subject
from batcher.core.admission.window import EMPTY, Bucket, Window
from tests.core.admission.modelled_limits import soak

Mutate = Callable[[pytest.MonkeyPatch], None]


def two_buckets(patch: pytest.MonkeyPatch) -> None:
    """This minute's count and a share of the last one's: a burst at the end of a minute passes again in the next one."""

    def guess(self: Limits, subjects: tuple[Subject, ...], tokens: int) -> bool:
        minute, second = divmod(self._second, 60)
        for subject in subjects:
            num_requests, num_tokens = 1.0, float(tokens)
            for bucket in self._windows.get(subject.name, EMPTY).buckets:
                weight = {minute: 1.0, minute - 1: 1.0 - second / 60.0}.get(bucket.second // 60, 0.0)
                num_requests += weight * bucket.requests
                num_tokens += weight * bucket.tokens
            limit = subject.limit
            if num_requests > (limit.requests_per_minute or 1e18) or num_tokens > (limit.tokens_per_minute or 1e18):
                return False
        return True

    patch.setattr(Limits, "_has_room", guess)


def charge_after_check(patch: pytest.MonkeyPatch) -> None:
    """CASES B33: tokens are charged when the answer ends, and whoever comes meanwhile sees an empty bucket."""
    charge, end = Window.charge, Limits._end

    def later(self: Limits, reservation: Reservation, *, now: float) -> list[tuple[Window, Bucket]]:
        charges = end(self, reservation, now=now)
        for window, bucket in charges:
            window.tokens += reservation.tokens
            bucket.tokens += reservation.tokens
        return charges

    patch.setattr(Window, "charge", lambda self, second, ends_at, requests, _: charge(self, second, ends_at, requests, 0))
    patch.setattr(Limits, "_end", later)


def ends_with_its_first(patch: pytest.MonkeyPatch) -> None:
    """A bucket counts until the first charge to it is a minute old, and whatever else is in it goes too early."""
    charge = Window.charge

    def early(self: Window, second: int, ends_at: float, requests: int, tokens: int) -> Bucket:
        is_first = not self.buckets or self.buckets[-1].second != second
        return charge(self, second, ends_at if is_first else self.buckets[-1].ends_at, requests, tokens)

    patch.setattr(Window, "charge", early)


def ends_with_its_second(patch: pytest.MonkeyPatch) -> None:
    """A bucket counts for 61 seconds from its begin: who is told to come back after a minute at most may come in vain."""
    charge = Window.charge
    patch.setattr(Window, "charge", lambda self, second, ends_at, *counts: charge(self, second, second + 61.0, *counts))


def renewed_by_the_refused(patch: pytest.MonkeyPatch) -> None:
    """Whoever is refused keeps what he was charged before from leaving."""
    refuse = Limits._refuse

    def renewing(self: Limits, subjects: tuple[Subject, ...], tokens: int) -> object:
        for subject in subjects:
            if self._second in {bucket.second for bucket in self._windows.get(subject.name, EMPTY).buckets[-1:]}:
                self._windows[subject.name].charge(self._second, self._ends_at, 0, 0)
        return refuse(self, subjects, tokens)

    patch.setattr(Limits, "_refuse", renewing)


def corrected_when_gone(patch: pytest.MonkeyPatch) -> None:
    """As long as its second may count the whole of a reservation is corrected, where it has left a subject's sums, too."""

    def whole(self: Limits, reservation: Reservation, *, now: float) -> list[tuple[Window, Bucket]]:
        self._pass_until(now)
        held = self._open.pop(id(reservation), None)
        if held is None and reservation.at >= self._oldest:
            raise ValueError("the reservation has ended before, or was made elsewhere")
        return [] if held is None else held.charges

    patch.setattr(Limits, "_end", whole)


def time_goes_back(patch: pytest.MonkeyPatch) -> None:
    """CASES B34: the clock is believed when it steps back."""
    pass_until = Limits._pass_until

    def believing(self: Limits, now: float) -> None:
        if now < self._now:
            self._now = now - 1.0
            self._second = int(now) - 1
        pass_until(self, now)

    patch.setattr(Limits, "_pass_until", believing)


def charged_at_the_end(patch: pytest.MonkeyPatch) -> None:
    """The difference is booked in the second in which it becomes known."""

    def late(self: Limits, reservation: Reservation, tokens: int, *, now: float) -> None:
        for window, _ in self._end(reservation, now=now):
            window.charge(self._second, self._ends_at, 0, tokens - reservation.tokens)

    patch.setattr(Limits, "settle", late)


def free_when_late(patch: pytest.MonkeyPatch) -> None:
    """What an answer has cost more than was reserved is forgotten once its second counts no more."""
    charge = Limits._charge

    def forgetful(self: Limits, subjects: tuple[Subject, ...], requests: int, tokens: int) -> list[tuple[Window, Bucket]]:
        return charge(self, subjects, requests, tokens) if requests else []

    patch.setattr(Limits, "_charge", forgetful)


def ends_twice(patch: pytest.MonkeyPatch) -> None:
    """Nobody remembers which reservations have ended."""

    def trusting(self: Limits, reservation: Reservation, *, now: float) -> list[tuple[Window, Bucket]]:
        self._pass_until(now)
        return self._open[id(reservation)].charges if id(reservation) in self._open else []

    patch.setattr(Limits, "_end", trusting)


def first_subject_only(patch: pytest.MonkeyPatch) -> None:
    """The key is checked, and its tier is only charged."""
    has_room = Limits._has_room
    patch.setattr(Limits, "_has_room", lambda self, subjects, tokens: has_room(self, subjects[:1], tokens))


def kept_by_the_refused(patch: pytest.MonkeyPatch) -> None:
    """Whoever is refused has been charged all the same."""
    refuse = Limits._refuse

    def greedy(self: Limits, subjects: tuple[Subject, ...], tokens: int) -> object:
        for subject in subjects:
            self._windows.setdefault(subject.name, Window(subject.name, [])).charge(self._second, self._ends_at, 1, 0)
        return refuse(self, subjects, tokens)

    patch.setattr(Limits, "_refuse", greedy)


def told_too_early(patch: pytest.MonkeyPatch) -> None:
    """Retry-After is when the oldest bucket is a minute old, not when there is room."""
    patch.setattr(Window, "free_at", lambda self, **_: self.buckets[0].ends_at if self.buckets else float("inf"))


def given_back_by_name(patch: pytest.MonkeyPatch) -> None:
    """What a subject was charged before it was dropped becomes room in its new counters."""
    end = Limits._end

    def by_name(self: Limits, reservation: Reservation, *, now: float) -> list[tuple[Window, Bucket]]:
        charges = []
        for window, bucket in end(self, reservation, now=now):
            current = self._windows.get(window.name, window)
            charges += [(current, other) for other in current.buckets if other.second == bucket.second]
        return charges

    patch.setattr(Limits, "_end", by_name)


@pytest.mark.parametrize(
    "mutate",
    [
        two_buckets,
        charge_after_check,
        ends_with_its_first,
        ends_with_its_second,
        renewed_by_the_refused,
        corrected_when_gone,
        time_goes_back,
        charged_at_the_end,
        free_when_late,
        ends_twice,
        first_subject_only,
        kept_by_the_refused,
        told_too_early,
        given_back_by_name,
    ],
)
def test_a_fault_is_found(mutate: Mutate, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        soak(1, 1500, max_subjects=4 if mutate is given_back_by_name else 100)
