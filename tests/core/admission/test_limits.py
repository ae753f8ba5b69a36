"""The limits: who is let in, what is counted of him, and when there is room again."""

from math import inf

import pytest

from batcher.config import NO_LIMIT
from batcher.core.admission.limits import never_fits
from batcher.core.admission.reservation import Reservation, Standing, Subject
from tests.core.admission.literal_limits import a_key, admitted, refused, some_limits


def test_as_many_requests_as_the_limit_says_and_no_more() -> None:
    limits, ann = some_limits(), a_key(requests=2)

    assert admitted(limits.reserve(ann, 10, now=1.0)) == Reservation(ann, 10, 1, "", Standing(2, 1, 60.0, None, None, 60.0))
    admitted(limits.reserve(ann, 10, now=1.5))
    refusal = refused(limits.reserve(ann, 10, now=1.5))

    assert (refusal.subject, refusal.is_tokens, refusal.retry_after_s) == (ann[0], False, 60.0)
    assert refusal.standing == Standing(2, 0, 60.0, None, None, 60.0)


def test_parallel_requests_each_see_what_the_others_have_taken() -> None:
    """CASES B33: a bucket of 100 tokens, five parallel requests of 58 to 175, none of which has ended."""
    limits, ann = some_limits(), a_key(tokens=100)
    wanted = [58, 175, 90, 120, 77]

    verdicts = [limits.reserve(ann, tokens, now=1.0) for tokens in wanted]

    assert [isinstance(verdict, Reservation) for verdict in verdicts] == [True, False, False, False, False]
    assert [never_fits(ann, tokens) for tokens in wanted] == [None, ann[0], None, ann[0], None]
    assert [refused(verdict).retry_after_s for verdict in verdicts[1:]] == [inf, 60.0, inf, 60.0]


def test_a_second_counts_until_the_last_charge_to_it_is_a_minute_old() -> None:
    limits, ann = some_limits(), a_key(requests=2)
    admitted(limits.reserve(ann, 0, now=0.125))
    admitted(limits.reserve(ann, 0, now=0.75))

    # The first is more than a minute ago; what else is in its second is not.
    assert refused(limits.reserve(ann, 0, now=60.5)).retry_after_s == 0.25
    admitted(limits.reserve(ann, 0, now=60.75))
    admitted(limits.reserve(ann, 0, now=60.75))


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.25, 0.3, 0.7, 0.999])
def test_who_was_alone_is_free_again_after_a_minute(phase: float) -> None:
    """He was told 60 seconds and was refused after them while a bucket counted until the end of its second."""
    at, ann = 1000.0 + phase, a_key(requests=1)
    limits = some_limits(now=at)
    assert admitted(limits.reserve(ann, 0, now=at)).standing.requests_reset_s <= 60.0
    assert refused(limits.reserve(ann, 0, now=at)).retry_after_s <= 60.0
    assert refused(limits.peek(ann, now=at + 59.999)).retry_after_s == pytest.approx(0.001)

    admitted(limits.reserve(ann, 0, now=at + 60.0))


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

    # The key's own are free at 65; the tier has 90 of the 99 tokens that it needs at 61, and the rest at 67.
    refusal = refused(limits.reserve(both, 99, now=8.0))
    assert (refusal.subject, refusal.is_tokens, refusal.retry_after_s) == (both[1], True, 59.0)
    # With less to ask for, the key's own is what is waited for; its requests and its tokens for as long.
    assert refused(limits.reserve(both, 90, now=8.0)).subject is both[0]


def test_all_are_charged_or_none() -> None:
    limits = some_limits()
    both = (*a_key(requests=5), *a_key(requests=1, name="tier:free"))
    admitted(limits.reserve(both, 1, now=1.0))

    for _ in range(10):
        refused(limits.reserve(both, 1, now=1.0))

    assert admitted(limits.reserve(both[:1], 1, now=1.0)).standing.requests_remaining == 3


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
    assert refused(limits.reserve(ann, 0, now=6_401.0)).retry_after_s == 60.0
    assert refused(limits.reserve(ann, 0, now=10_001.0)).retry_after_s == 59.0
    admitted(limits.reserve(ann, 0, now=10_060.0))


def test_a_limit_that_changes_counts_what_was_counted() -> None:
    limits = some_limits()
    for _ in range(6):
        admitted(limits.reserve(a_key(requests=10), 0, now=1.0))

    refusal = refused(limits.reserve(a_key(requests=5), 0, now=2.0))
    assert (refusal.retry_after_s, refusal.standing.requests_remaining) == (59.0, 0)
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
    assert refused(limits.peek(ann, now=2.0)).retry_after_s == 59.0
    assert limits.peek(ann, now=61.0) is None


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
    for index in range(3990):
        limits.settle(admitted(limits.reserve(ann, 10, now=index / 20.0)), 5, now=index / 20.0)

    assert len(limits._windows["key:ann"].buckets) == 61
    limits.check()
