"""How reservations end: what is corrected of them, what is owed late, and what is given back."""

import pytest

from batcher.core.admission.reservation import Standing
from tests.core.admission.literal_limits import a_key, admitted, refused, some_limits


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
    assert (standing.tokens_reset_s, standing.requests_reset_s) == (0.0, 60.0)


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
    assert refusal.retry_after_s == 56.0
    assert refusal.standing.tokens_remaining == 0
    limits.check()


def test_what_is_given_back_was_charged_all_the_same() -> None:
    """Its instant is that of what else is in its second: for longer than a minute nobody waits for that, either."""
    limits, ann = some_limits(), a_key(requests=2)
    admitted(limits.reserve(ann, 0, now=1.0))
    limits.give_back(admitted(limits.reserve(ann, 0, now=1.5)), now=2.0)
    admitted(limits.reserve(ann, 0, now=3.0))

    assert refused(limits.reserve(ann, 0, now=4.0)).retry_after_s == 57.5
    limits.check()


def test_what_counts_of_one_subject_only_is_corrected_there_and_owed_elsewhere() -> None:
    """Both were charged in one second, and the tier once more in it."""
    limits = some_limits()
    both = (*a_key(tokens=100), *a_key(tokens=200, name="tier:free"))
    dear = admitted(limits.reserve(both, 10, now=1.0))
    cheap = admitted(limits.reserve(both, 10, now=1.0))
    admitted(limits.reserve(both[1:], 10, now=1.75))

    limits.settle(dear, 50, now=61.25)
    limits.settle(cheap, 0, now=61.25)

    # The key has the 40 that it owes; the tier has 10, 50 and 0 until the second is over for it, and then it has none.
    assert admitted(limits.reserve(both[:1], 0, now=61.5)).standing.tokens_remaining == 60
    assert admitted(limits.reserve(both[1:], 0, now=61.5)).standing.tokens_remaining == 140
    assert admitted(limits.reserve(both[1:], 0, now=61.75)).standing.tokens_remaining == 200
    limits.check()


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
    assert (refusal.is_tokens, refusal.retry_after_s) == (True, 59.5)
    # It is no request of this minute, though, and when there is room again there is all of it.
    assert refusal.standing == Standing(1, 1, 0.0, 100, 0, 59.5)
    assert admitted(limits.reserve(ann, 100, now=130.0)).standing.requests_remaining == 0
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
