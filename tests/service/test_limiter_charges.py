"""The limiter under a throttle, and by what it charges for an answer that nobody knows yet."""

import pytest

from batcher.config import RateLimit
from batcher.errors import InvalidRequest
from batcher.service.auth import Caller
from tests.service.limited import ANN, BOB, Clock, a_limiter, admitted, ask, refused


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_the_throttle_tightens_the_lower_tier_and_loosens_it_again(clock: Clock) -> None:
    """SPEC S8.4: counts stay, the limit that is in force applies."""
    factors = {"free": 0.5}
    limiter = a_limiter(clock, factors=factors)
    admitted(ask(limiter, ANN))
    admitted(ask(limiter, ANN))
    admitted(ask(limiter, BOB))

    refusal = refused(ask(limiter, BOB))
    assert refusal.message == (
        "this key's limit of 1 requests per minute has no room for this request now; "
        "it is tightened to 50% while the server is under load"
    )
    factors["free"] = 1.0
    standing = admitted(ask(limiter, BOB)).standing
    assert standing is not None
    assert (standing.requests_limit, standing.requests_remaining) == (3, 1)


def test_a_tightened_limit_refuses_what_it_would_else_have_room_for(clock: Clock) -> None:
    """It is no mistake of the caller's: he is told to come back, in a minute, as nobody knows when it is loosened."""
    limiter = a_limiter(clock, factors={"free": 0.001})

    refusal = refused(ask(limiter, BOB, 10, 20))

    assert refusal.retry_after_s == 60
    assert refusal.standing is not None
    assert (refusal.standing.requests_limit, refusal.standing.tokens_limit) == (1, 1)
    admitted(ask(limiter, BOB, 0, 0))


def test_expected_answers_are_charged_as_the_last_ones_were(clock: Clock) -> None:
    limiter = a_limiter(clock, estimate="expected")
    caller = Caller("ann", "paid", "key_ann", RateLimit(None, 1000))
    for _ in range(5):
        limiter.settle(admitted(ask(limiter, caller, 10, 500)), 20)

    handles = [admitted(ask(limiter, caller, 10, 500)) for _ in range(28)]
    assert refused(ask(limiter, caller, 10, 500)).standing == handles[-1].standing
    # Longer ones than expected are charged in full, over the limit too, and then nobody comes in.
    limiter.settle(handles[0], 500)
    assert limiter.peek(caller) is not None


def test_what_reserves_no_output_teaches_nothing_of_answers(clock: Clock) -> None:
    """`POST /v1/run` is charged its input alone, under the same model's name: with enough of such calls between them, answers
    would be expected to cost nothing."""
    limiter = a_limiter(clock, estimate="expected")
    caller = Caller("ann", "paid", "key_ann", RateLimit(None, 1000))
    for _ in range(8):
        limiter.settle(admitted(ask(limiter, caller, 0, 0)), 0)

    standing = admitted(ask(limiter, caller, 0, 600)).standing
    assert standing is not None
    assert standing.tokens_remaining == 400


def test_exact_answers_are_charged_when_they_are_known(clock: Clock) -> None:
    limiter = a_limiter(clock, estimate="exact")
    caller = Caller("ann", "paid", "key_ann", RateLimit(None, 100))
    first, second = admitted(ask(limiter, caller, 10, 500)), admitted(ask(limiter, caller, 10, 500))
    assert second.standing is not None
    assert second.standing.tokens_remaining == 80

    limiter.settle(first, 80)

    assert limiter.peek(caller) is not None
    with pytest.raises(InvalidRequest):
        ask(limiter, caller, 101, 1)
