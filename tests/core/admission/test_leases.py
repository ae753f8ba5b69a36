"""Slices of hot limits: when one is asked for, what is admitted from it, and how it ends."""

from batcher.config import RateLimit
from batcher.core.admission.leases import LEASE_S, SLICES, Leases, Remainder, max_overshoot
from batcher.core.admission.reservation import Reservation, Subject

ANN = Subject("key:ann", RateLimit(600, 60_000))
TIER = Subject("tier:free", RateLimit(6000, None))
NUM_HOT = 8
NOTHING = ((0, 0), None)


def hot(*subjects: Subject, now: float = 1.0) -> Leases:
    leases = Leases()
    for _ in range(NUM_HOT):
        assert leases.admit(subjects, 10, now=now) is None
    return leases


def take(leases: Leases, subject: Subject, granted: tuple[int, int], *, at: int = 50, asked_at: float = 1.0) -> None:
    leases.wanted(subject, 10, now=asked_at)
    leases.taken(subject, granted, at=at, epoch="e", asked_at=asked_at, counted=(300, 20_000))


def test_only_a_hot_subject_is_leased() -> None:
    leases = Leases()
    for _ in range(NUM_HOT - 1):
        leases.admit((ANN,), 10, now=1.0)
        assert leases.wanted(ANN, 10, now=1.0) == NOTHING
    leases.admit((ANN,), 10, now=1.0)
    assert leases.wanted(ANN, 10, now=1.0) == ((600 // SLICES, 60_000 // SLICES), None)
    assert leases.wanted(ANN, 10, now=1.0) == NOTHING, "one is being asked for"
    leases.not_taken(ANN)
    assert leases.wanted(ANN, 10, now=1.5)[0] != (0, 0)


def test_a_subject_cools() -> None:
    leases = hot(ANN)
    assert leases.admit((ANN,), 10, now=2.5) is None
    assert leases.wanted(ANN, 10, now=2.5)[0] != (0, 0), "it was hot in the second before"
    leases.not_taken(ANN)
    assert leases.admit((ANN,), 10, now=9.0) is None
    assert leases.wanted(ANN, 10, now=9.0) == NOTHING


def test_a_slice_that_two_requests_would_not_fit_is_not_worth_a_lease() -> None:
    assert hot(ANN).wanted(ANN, 501, now=1.0) == NOTHING
    small = Subject("key:small", RateLimit(60, None))
    assert hot(small).wanted(small, 10, now=1.0) == NOTHING


def test_requests_are_admitted_until_the_slice_is_spent() -> None:
    leases = hot(ANN)
    take(leases, ANN, (10, 100))
    for left in (9, 8, 7):
        admitted = leases.admit((ANN,), 30, now=1.1)
        assert isinstance(admitted, Reservation)
        assert (admitted.at, admitted.epoch, admitted.tokens) == (50, "e", 30)
        assert admitted.standing.requests_remaining == 600 - 300 + left
        assert admitted.standing.tokens_remaining == 60_000 - 20_000 + 100 - 30 * (10 - left)
    assert leases.admit((ANN,), 30, now=1.1) is None
    # What is left goes back before the next slice is asked for: one at a time.
    assert leases.wanted(ANN, 30, now=1.1) == ((10, 1000), Remainder("key:ann", "e", 50, 7, 10))
    assert leases.admit((ANN,), 1, now=1.1) is None


def test_a_slice_is_over_a_second_after_it_was_asked_for() -> None:
    leases = hot(ANN)
    take(leases, ANN, (10, 100))
    assert leases.admit((ANN,), 10, now=1.0 + LEASE_S - 0.01) is not None
    assert leases.end_old(now=1.0 + LEASE_S - 0.01) == []
    assert leases.admit((ANN,), 10, now=1.0 + LEASE_S) is None
    assert leases.end_old(now=1.0 + LEASE_S) == [Remainder("key:ann", "e", 50, 9, 90)]
    assert leases.end_old(now=5.0) == []
    assert len(leases) == 0


def test_all_subjects_of_a_request_need_a_slice() -> None:
    leases = hot(ANN, TIER)
    take(leases, ANN, (10, 1000), at=50)
    assert leases.admit((ANN, TIER), 10, now=1.1) is None
    assert leases.wanted(ANN, 10, now=1.1) == NOTHING, "its slice is as it was"
    assert leases.wanted(TIER, 10, now=1.1) == ((100, 0), None)
    leases.taken(TIER, (100, 0), at=51, epoch="e", asked_at=1.1, counted=(0, 0))
    admitted = leases.admit((ANN, TIER), 10, now=1.2)
    assert admitted is not None
    assert admitted.at == 50, "the older of both: what is given back there stays counted for longer, never shorter"
    assert leases.end_all() == [Remainder("key:ann", "e", 50, 9, 990), Remainder("tier:free", "e", 51, 99, 0)]


def test_slices_of_a_store_that_forgot_in_between_are_not_mixed() -> None:
    leases = hot(ANN, TIER)
    take(leases, ANN, (10, 1000))
    leases.wanted(TIER, 10, now=1.1)
    leases.taken(TIER, (100, 0), at=51, epoch="another", asked_at=1.1, counted=(0, 0))
    assert leases.admit((ANN, TIER), 10, now=1.2) is None


def test_no_room_for_a_slice_is_no_slice() -> None:
    leases = hot(ANN)
    take(leases, ANN, (0, 0))
    assert len(leases) == 0
    assert leases.wanted(ANN, 10, now=1.0)[0] != (0, 0), "it may be asked for again"


def test_the_bound() -> None:
    assert max_overshoot(6000, 4) == 400
    assert max_overshoot(30, 4) == 4
