"""The limits: who is let in, what is counted of him, and when there is room again."""

from math import inf

import pytest

from batcher.config import NO_LIMIT, RateLimit
from batcher.core.admission.limits import Limits, never_fits
from batcher.core.admission.reservation import LimitRefusal, Reservation, Standing, Subject


def a_key(requests: int | None = None, tokens: int | None = None, *, name: str = "key:ann") -> tuple[Subject, ...]:
    return (Subject(name, RateLimit(requests, tokens)),)


def some_limits(*, max_subjects: int = 100, now: float = 0.0) -> Limits:
    return Limits(max_subjects=max_subjects, now=now)


def admitted(verdict: Reservation | LimitRefusal) -> Reservation:
    assert isinstance(verdict, Reservation)
    return verdict


def refused(verdict: Reservation | LimitRefusal | None) -> LimitRefusal:
    assert isinstance(verdict, LimitRefusal)
    return verdict


def test_as_many_requests_as_the_limit_says_and_no_more() -> None:
    limits, ann = some_limits(), a_key(requests=2)

    assert admitted(limits.reserve(ann, 10, now=1.0)) == Reservation(ann, 10, 1, "", Standing(2, 1, 61.0, None, None, 61.0))
    admitted(limits.reserve(ann, 10, now=1.5))
    refusal = refused(limits.reserve(ann, 10, now=1.5))

    assert (refusal.subject, refusal.is_tokens, refusal.retry_after_s) == (ann[0], False, 60.5)
    assert refusal.standing == Standing(2, 0, 60.5, None, None, 60.5)


def test_parallel_requests_each_see_what_the_others_have_taken() -> None:
    """CASES B33: a bucket of 100 tokens, five parallel requests of 58 to 175, none of which has ended."""
    limits, ann = some_limits(), a_key(tokens=100)
    wanted = [58, 175, 90, 120, 77]

    verdicts = [limits.reserve(ann, tokens, now=1.0) for tokens in wanted]

    assert [isinstance(verdict, Reservation) for verdict in verdicts] == [True, False, False, False, False]
    assert [never_fits(ann, tokens) for tokens in wanted] == [None, ann[0], None, ann[0], None]
    assert [refused(verdict).retry_after_s for verdict in verdicts[1:]] == [inf, 61.0, inf, 61.0]


def test_what_was_not_used_is_room_at_once() -> None:
    limits, ann = some_limits(), a_key(tokens=100)
    first = admitted(limits.reserve(ann, 90, now=1.0))
    refused(limits.reserve(ann, 20, now=2.0))

    limits.settle(first, 30, now=3.0)

    assert admitted(limits.reserve(ann, 70, now=3.0)).standing.tokens_remaining == 0
    limits.check()


def test_zero_tokens_are_a_cost_like_any_other() -> None:
    """CASES B41: a true 0 is not an absent number."""
    limits, ann = some_limits(), a_key(requests=5, tokens=100)
    first = admitted(limits.reserve(ann, 100, now=1.0))

    limits.settle(first, 0, now=2.0)

    standing = admitted(limits.reserve(ann, 0, now=2.0)).standing
    assert (standing.tokens_remaining, standing.requests_remaining) == (100, 3)
    assert (standing.tokens_reset_s, standing.requests_reset_s) == (0.0, 61.0)


def test_who_was_not_served_has_not_even_asked() -> None:
    limits, ann = some_limits(), a_key(requests=1)
    first = admitted(limits.reserve(ann, 10, now=1.0))

    limits.give_back(first, now=2.0)

    assert limits.statistics().num_subjects == 0
    admitted(limits.reserve(ann, 10, now=2.0))


def test_an_answer_may_cost_more_than_was_expected() -> None:
    limits, ann = some_limits(), a_key(tokens=100)
    first = admitted(limits.reserve(ann, 10, now=1.0))

    limits.settle(first, 150, now=5.0)

    refusal = refused(limits.reserve(ann, 1, now=5.0))
    assert refusal.retry_after_s == 57.0
    assert refusal.standing.tokens_remaining == 0
    limits.check()


def test_a_second_counts_until_all_of_it_is_older_than_a_minute() -> None:
    limits, ann = some_limits(), a_key(requests=2)
    admitted(limits.reserve(ann, 0, now=0.1))
    admitted(limits.reserve(ann, 0, now=0.9))

    # The first is more than a minute ago; what else is in its second is not.
    assert refused(limits.reserve(ann, 0, now=60.5)).retry_after_s == 0.5
    admitted(limits.reserve(ann, 0, now=61.0))
    admitted(limits.reserve(ann, 0, now=61.0))


def test_no_burst_at_the_turn_of_a_minute() -> None:
    """Where two buckets of a minute are weighted, twice the limit passes within seconds."""
    limits, ann = some_limits(), a_key(requests=10)

    verdicts = [limits.reserve(ann, 0, now=59.0 + index / 8.0) for index in range(40)]

    assert sum(isinstance(verdict, Reservation) for verdict in verdicts) == 10


def test_the_longest_of_several_reasons_is_told() -> None:
    limits = some_limits()
    both = (*a_key(requests=1, tokens=100), *a_key(tokens=100, name="tier:free"))
    admitted(limits.reserve(both[1:], 90, now=1.0))
    admitted(limits.reserve(both[:1], 95, now=5.0))
    admitted(limits.reserve(a_key(name="tier:free"), 10, now=7.0))

    # The key's own are free at 66; the tier has 90 of the 99 tokens that it needs at 62, and the rest at 68.
    refusal = refused(limits.reserve(both, 99, now=8.0))
    assert (refusal.subject, refusal.is_tokens, refusal.retry_after_s) == (both[1], True, 60.0)
    # With less to ask for, the key's own is what is waited for; its requests and its tokens for as long.
    assert refused(limits.reserve(both, 90, now=8.0)).subject is both[0]


def test_all_are_charged_or_none() -> None:
    limits = some_limits()
    both = (*a_key(requests=5), *a_key(requests=1, name="tier:free"))
    admitted(limits.reserve(both, 1, now=1.0))

    for _ in range(10):
        refused(limits.reserve(both, 1, now=1.0))

    assert admitted(limits.reserve(both[:1], 1, now=1.0)).standing.requests_remaining == 3


def test_a_reservation_ends_once() -> None:
    limits, ann = some_limits(), a_key(tokens=100)
    first = admitted(limits.reserve(ann, 60, now=1.0))
    other = admitted(some_limits().reserve(ann, 60, now=1.0))
    limits.settle(first, 40, now=2.0)

    for wrong in (first, other):
        with pytest.raises(ValueError, match="ended before, or was made elsewhere"):
            limits.settle(wrong, 10, now=2.0)
        with pytest.raises(ValueError, match="ended before, or was made elsewhere"):
            limits.give_back(wrong, now=2.0)

    assert refused(limits.reserve(ann, 61, now=2.0)).standing.tokens_remaining == 60
    limits.check()


def test_an_answer_that_takes_longer_than_a_minute_costs_what_it_cost() -> None:
    """Where nothing is reserved for it, it would be free once its second counts no more: whoever asks for long answers would
    have no limit at all."""
    limits, ann = some_limits(), a_key(requests=1, tokens=100)
    slow = admitted(limits.reserve(ann, 0, now=1.0))

    limits.settle(slow, 250, now=70.0)

    refusal = refused(limits.reserve(ann, 1, now=70.5))
    assert (refusal.is_tokens, refusal.retry_after_s) == (True, 60.5)
    # It is no request of this minute, though, and when there is room again there is all of it.
    assert refusal.standing == Standing(1, 1, 0.0, 100, 0, 60.5)
    assert admitted(limits.reserve(ann, 100, now=131.0)).standing.requests_remaining == 0
    limits.check()


def test_what_is_known_late_stays_counted_when_the_request_beside_it_is_given_back() -> None:
    limits, ann = some_limits(), a_key(tokens=100)
    slow = admitted(limits.reserve(ann, 0, now=1.0))
    other = admitted(limits.reserve(ann, 10, now=70.0))
    limits.settle(slow, 60, now=70.5)

    limits.give_back(other, now=71.0)

    assert refused(limits.reserve(ann, 41, now=71.0)).standing.tokens_remaining == 40
    limits.check()


def test_who_ends_after_his_second_counts_no_more_is_given_nothing_back() -> None:
    limits, ann = some_limits(), a_key(tokens=100)
    early = admitted(limits.reserve(ann, 60, now=1.0))
    late = admitted(limits.reserve(ann, 60, now=62.0))

    limits.settle(early, 10, now=63.0)
    limits.give_back(early, now=63.0)

    assert refused(limits.reserve(ann, 41, now=63.0)).standing.tokens_remaining == 40
    limits.give_back(late, now=63.0)
    limits.check()


@pytest.mark.parametrize("tokens", [-1, -100])
def test_nobody_is_paid_for_asking(tokens: int) -> None:
    limits, ann = some_limits(), a_key(tokens=100)
    first = admitted(limits.reserve(ann, 60, now=1.0))

    with pytest.raises(ValueError, match="cannot be reserved"):
        limits.reserve(ann, tokens, now=1.0)
    with pytest.raises(ValueError, match="cannot have cost"):
        limits.settle(first, tokens, now=1.0)

    limits.settle(first, 60, now=1.0)
    assert refused(limits.reserve(ann, 41, now=1.0)).standing.tokens_remaining == 40


@pytest.mark.parametrize("num", [0, 5])
def test_a_request_has_one_to_four_subjects(num: int) -> None:
    with pytest.raises(ValueError, match=f"for {num} subjects"):
        some_limits().reserve(tuple(a_key(name=f"key:{index}")[0] for index in range(num)), 1, now=1.0)


def test_a_clock_that_steps_back_gives_nothing_and_takes_nothing() -> None:
    """CASES B34: an hour back and forth again."""
    limits, ann = some_limits(now=10_000.0), a_key(requests=2)
    admitted(limits.reserve(ann, 0, now=10_000.0))

    admitted(limits.reserve(ann, 0, now=6_400.0))
    assert refused(limits.reserve(ann, 0, now=6_401.0)).retry_after_s == 61.0
    assert refused(limits.reserve(ann, 0, now=10_001.0)).retry_after_s == 60.0
    admitted(limits.reserve(ann, 0, now=10_061.0))


def test_a_limit_that_changes_counts_what_was_counted() -> None:
    limits = some_limits()
    for _ in range(6):
        admitted(limits.reserve(a_key(requests=10), 0, now=1.0))

    refusal = refused(limits.reserve(a_key(requests=5), 0, now=2.0))
    assert (refusal.retry_after_s, refusal.standing.requests_remaining) == (60.0, 0)
    assert admitted(limits.reserve(a_key(requests=10), 0, now=2.0)).standing.requests_remaining == 3
    assert admitted(limits.reserve((Subject("key:ann", NO_LIMIT),), 0, now=2.0)).standing.requests_limit is None
    assert admitted(limits.reserve(a_key(requests=10), 0, now=2.0)).standing.requests_remaining == 1


def test_a_limit_below_the_request_has_no_time_to_wait_for() -> None:
    """A throttle may have tightened it so; whether it ever had room is `never_fits` of the limit as configured."""
    assert refused(some_limits().reserve(a_key(tokens=50), 80, now=1.0)).retry_after_s == inf


def test_a_peek_charges_nothing() -> None:
    limits, ann = some_limits(), a_key(requests=1, tokens=100)

    assert limits.peek(ann, now=1.0) is None
    assert limits.statistics().num_subjects == 0
    admitted(limits.reserve(ann, 100, now=1.0))
    assert refused(limits.peek(ann, now=2.0)).retry_after_s == 60.0
    assert limits.peek(ann, now=62.0) is None


def test_who_was_charged_the_longest_ago_is_dropped_first() -> None:
    limits = some_limits(max_subjects=4)
    names = [f"key:{name}" for name in ("a", "b", "c", "d")]
    held = [admitted(limits.reserve(a_key(requests=2, name=name), 10, now=1.0)) for name in names]
    admitted(limits.reserve(a_key(requests=2, name="key:a"), 10, now=1.0))

    admitted(limits.reserve(a_key(requests=2, name="key:e"), 10, now=2.0))

    # b was dropped, with its count; what is left open of it finds nothing to change.
    assert limits.statistics().num_forgotten == 1
    refused(limits.reserve(a_key(requests=2, name="key:a"), 10, now=2.0))
    assert admitted(limits.reserve(a_key(requests=2, name="key:b"), 10, now=2.0)).standing.requests_remaining == 1
    limits.give_back(held[1], now=2.0)
    assert admitted(limits.reserve(a_key(requests=2, name="key:b"), 10, now=2.0)).standing.requests_remaining == 0
    limits.check()


def test_idle_subjects_leave_the_table_by_themselves() -> None:
    limits = some_limits(max_subjects=5000)
    for index in range(700):
        limits.reserve(a_key(requests=2, name=f"key:{index}"), 10, now=index / 700.0)
    assert repr(limits) == "Limits(700 subjects, 700 open)"

    for second in (61.0, 62.0, 63.0):
        admitted(limits.reserve(a_key(name="key:new"), 10, now=second))

    # 250 a second at most, so that nobody waits for the sweeping.
    assert repr(limits) == "Limits(1 subjects, 3 open)"
    assert limits.statistics().num_forgotten == 0


def test_a_busy_subject_has_a_bucket_a_second_and_no_more() -> None:
    limits, ann = some_limits(), a_key(requests=10**6)
    for index in range(4000):
        limits.settle(admitted(limits.reserve(ann, 10, now=index / 20.0)), 5, now=index / 20.0)

    assert len(limits._windows["key:ann"].buckets) == 61
    limits.check()
