"""The limiter: whom a request is charged to, and what its caller is told."""

from math import inf

import msgspec
import pytest

from batcher.config import DEFAULT_TIERS, LimitsConfig, RateLimit
from batcher.core.admission.reservation import Reservation, StoreAway, Subject
from batcher.errors import InvalidRequest, Overloaded, RateLimited
from batcher.service.auth import Caller
from batcher.service.limiter import Admitted, Judgement, Limiter, LimiterStatistics, LimitKind, LimitReached, LimitsAway
from tests.service.limited import ANN, BOB, TIERS, Clock, SilentStore, a_limiter, admitted, ask, num_refused, refused


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_without_any_limit_nobody_is_asked() -> None:
    """The default tiers have none, and a key's own are none."""
    store = SilentStore()
    limiter = Limiter(LimitsConfig(), DEFAULT_TIERS, store)
    caller = Caller("ann", "paid", "key_ann")

    judgement = admitted(ask(limiter, caller, 10**9, 10**9))
    assert judgement.standing is None
    assert limiter.peek(caller) is None
    limiter.settle(judgement, 5)
    limiter.give_back(judgement)

    assert store.asked == []
    assert limiter.statistics() == LimiterStatistics(0, 0, 0, {(t, kind): 0 for t in ("paid", "free") for kind in LimitKind})


def test_a_request_is_charged_to_its_key_and_to_its_tier() -> None:
    store = SilentStore()
    limiter = Limiter(LimitsConfig(), TIERS, store)
    for caller in (ANN, BOB, msgspec.structs.replace(BOB, limit=RateLimit())):
        limiter.reserve(caller, "m", 10, 20, lambda judgement: None)

    free = Subject("tier:free", RateLimit(4, 400))
    assert [(subjects, tokens) for subjects, tokens, _ in store.asked] == [
        ((Subject("key:key_ann", ANN.limit),), 30),
        ((Subject("key:key_bob", BOB.limit), free), 30),
        ((free,), 30),
    ]


def test_the_room_is_what_the_tightest_limit_would_ever_let_in(clock: Clock) -> None:
    """As configured: a throttle passes."""
    limiter = a_limiter(clock, factors={"paid": 0.5, "free": 0.5})
    assert limiter.room(ANN) == 100
    assert limiter.room(BOB) == 400, "its tier's"
    assert limiter.room(msgspec.structs.replace(ANN, limit=RateLimit(2, None))) == inf
    assert limiter.room(msgspec.structs.replace(ANN, limit=RateLimit())) == inf


def test_the_verdict_may_come_later() -> None:
    store = SilentStore()
    limiter = Limiter(LimitsConfig(), TIERS, store)
    judgements: list[Judgement] = []

    limiter.reserve(ANN, "m", 10, 20, judgements.append)
    assert not judgements
    subjects, tokens, on_verdict = store.asked[0]
    on_verdict(reservation := Reservation(subjects, tokens, 1000))

    assert judgements == [Admitted("key_ann", "m", 10, reservation)]
    assert limiter.statistics().num_open == 1


def test_the_key_s_limit_refuses_in_words_and_numbers(clock: Clock) -> None:
    limiter = a_limiter(clock)
    first = admitted(ask(limiter, ANN))
    assert first.standing is not None
    assert (first.standing.requests_remaining, first.standing.tokens_remaining) == (1, 70)

    clock.now += 0.5
    by_tokens = refused(ask(limiter, ANN, 60, 20))
    assert by_tokens.message == "this key's limit of 100 tokens per minute has no room for this request now"
    assert (by_tokens.status, by_tokens.retry_after_s) == (429, 60)
    assert by_tokens.standing is not None
    assert by_tokens.standing.tokens_remaining == 70
    admitted(ask(limiter, ANN))
    clock.now += 20.0
    by_requests = refused(ask(limiter, ANN))
    assert by_requests.message == "this key's limit of 2 requests per minute has no room for this request now"
    assert by_requests.retry_after_s == 40

    assert num_refused(limiter) == {("paid", LimitKind.KEY_TOKENS): 1, ("paid", LimitKind.KEY_REQUESTS): 1}


def test_the_tier_s_limit_is_everybody_s(clock: Clock) -> None:
    limiter = a_limiter(clock)
    others = [Caller("t", "free", f"key_{index}", RateLimit(100, 1000)) for index in range(5)]
    for other in others[:3]:
        admitted(ask(limiter, other, 0, 120))

    assert (
        refused(ask(limiter, BOB, 0, 41)).message == "tier free's common limit of 400 tokens per minute has no room for "
        "this request now"
    )
    admitted(ask(limiter, BOB, 0, 40))
    refusal = refused(ask(limiter, others[4], 0, 0))
    assert refusal.message == "tier free's common limit of 4 requests per minute has no room for this request now"
    assert refusal.standing is None, "the key's own has all of its room: headers that said so would belie the refusal"
    assert num_refused(limiter) == {("free", LimitKind.TIER_TOKENS): 1, ("free", LimitKind.TIER_REQUESTS): 1}


def test_what_can_never_fit_is_the_caller_s_own_mistake(clock: Clock) -> None:
    limiter = a_limiter(clock)

    with pytest.raises(InvalidRequest) as by_key:
        ask(limiter, ANN, 60, 41)
    with pytest.raises(InvalidRequest) as by_tier:
        ask(limiter, BOB, 1, 400)

    assert by_key.value.message == (
        "the request counts 60 tokens of input and 41 of output, together 101: "
        "this key's limit of 100 tokens per minute will never have room for it"
    )
    assert "tier free's common limit of 400 tokens per minute will never" in by_tier.value.message
    admitted(ask(limiter, ANN, 60, 40))
    assert limiter.statistics().num_open == 1


def test_every_way_out_is_counted_and_gives_back_what_is_due(clock: Clock) -> None:
    limiter = a_limiter(clock)
    limiter.settle(admitted(ask(limiter, ANN, 10, 90)), 0)
    limiter.give_back(admitted(ask(limiter, ANN, 0, 90)))
    last = admitted(ask(limiter, ANN, 0, 90))

    assert last.standing is not None
    assert (last.standing.tokens_remaining, last.standing.requests_remaining) == (0, 0)
    statistics = limiter.statistics()
    assert (statistics.num_open, statistics.num_settled, statistics.num_given_back) == (1, 1, 1)
    assert repr(limiter) == "Limiter(1 open, MemoryLimits(Limits(1 subjects, 1 open)))"


def test_a_handle_ends_once(clock: Clock) -> None:
    limiter = a_limiter(clock)
    first = admitted(ask(limiter, ANN))
    limiter.settle(first, 5)

    with pytest.raises(ValueError, match="ended before"):
        limiter.settle(first, 5)
    with pytest.raises(ValueError, match="ended before"):
        limiter.give_back(first)

    statistics = limiter.statistics()
    assert (statistics.num_open, statistics.num_settled, statistics.num_given_back) == (0, 1, 0)


def test_a_peek_refuses_before_the_body_is_read(clock: Clock) -> None:
    limiter = a_limiter(clock)
    assert limiter.peek(ANN) is None
    admitted(ask(limiter, ANN, 100, 0))

    assert refused(limiter.peek(ANN)).message == "this key's limit of 100 tokens per minute has no room for this request now"
    assert num_refused(limiter) == {("paid", LimitKind.KEY_TOKENS): 1}
    clock.now += 60.0
    assert limiter.peek(ANN) is None


@pytest.mark.parametrize("phase", [0.0, 0.001, 0.1, 0.25, 0.3, 0.5, 0.75, 0.9, 0.999])
@pytest.mark.parametrize("pause_s", [0.0, 0.002, 0.4, 0.75, 1.0, 7.7, 58.9, 59.25, 59.999])
def test_who_comes_back_after_retry_after_is_let_in(clock: Clock, phase: float, pause_s: float) -> None:
    """A key of one request a minute was told 60 and was refused again after them, as its second had not ended yet."""
    clock.now += phase
    limiter, one = a_limiter(clock), Caller("o", "paid", "key_one", RateLimit(1))
    admitted(ask(limiter, one))
    let_in_at = clock.now + 60.0

    clock.now += pause_s
    told = refused(ask(limiter, one))
    assert told.retry_after_s is not None
    assert 1 <= told.retry_after_s <= 60
    assert told.standing is not None
    assert 0.0 < told.standing.requests_reset_s <= 60.0
    # Not a second more than it takes: it is rounded up, and to nothing else.
    assert clock.now + told.retry_after_s - let_in_at < 1.001

    clock.now += told.retry_after_s
    again = admitted(ask(limiter, one))
    assert again.standing is not None
    assert again.standing.requests_reset_s <= 60.0
    assert refused(ask(limiter, one)).retry_after_s == 60


@pytest.mark.parametrize("phase", [0.0, 0.1, 0.375, 0.8])
def test_who_waits_for_several_of_his_requests_to_leave_is_let_in_then(clock: Clock, phase: float) -> None:
    """Uneven asks, within seconds and over them; what is charged early in a second leaves with what was charged late in it."""
    clock.now += phase
    limiter, five = a_limiter(clock), Caller("f", "paid", "key_five", RateLimit(5, 100))
    told = []
    for pause_s in [0.0, 0.3, 0.3, 2.5, 11.1, 0.2, 0.2, 33.3, 0.7, 0.1] * 3:
        clock.now += pause_s
        judgement = ask(limiter, five, 10, 15)
        if isinstance(judgement, LimitReached):
            assert judgement.retry_after_s is not None
            told.append(judgement.retry_after_s)
            clock.now += judgement.retry_after_s
            judgement = ask(limiter, five, 10, 15)
        admitted(judgement)
    assert len(told) > 3
    assert all(1 <= seconds <= 60 for seconds in told)


def test_a_key_without_room_is_refused_in_the_same_words_for_a_moment(clock: Clock) -> None:
    """And counted each time; what its seconds have become is told when they may have become others."""
    limiter = a_limiter(clock)
    for _ in range(2):
        admitted(ask(limiter, ANN))
    first = refused(limiter.peek(ANN))
    clock.now += 0.01
    assert limiter.peek(ANN) is first
    clock.now += 1.01
    later = refused(limiter.peek(ANN))
    assert (first.retry_after_s, later.retry_after_s) == (60, 59)
    assert num_refused(limiter) == {("paid", LimitKind.KEY_REQUESTS): 3}


def test_what_was_refused_a_moment_ago_is_let_in_when_there_is_room(clock: Clock) -> None:
    """Its own request was given back or cost less, its minute is over, or its limit is another."""
    limiter = a_limiter(clock)
    one = admitted(ask(limiter, ANN, 10, 20))
    other = admitted(ask(limiter, ANN, 10, 60))
    refused(limiter.peek(ANN))
    limiter.give_back(one)
    assert limiter.peek(ANN) is None

    third = admitted(ask(limiter, ANN, 10, 20))
    refused(limiter.peek(ANN))
    assert limiter.peek(msgspec.structs.replace(ANN, limit=RateLimit(3, 1000))) is None
    refused(limiter.peek(ANN))
    clock.now += 59.995
    refused(limiter.peek(ANN))
    clock.now += 0.005
    assert limiter.peek(ANN) is None
    limiter.settle(other, 60)
    limiter.settle(third, 20)
    assert limiter.statistics().num_open == 0


def test_a_key_that_cost_fewer_tokens_than_reserved_is_let_in_at_once(clock: Clock) -> None:
    limiter = a_limiter(clock)
    reserved = admitted(ask(limiter, ANN, 10, 90))
    assert refused(limiter.peek(ANN)).kind is LimitKind.KEY_TOKENS
    limiter.settle(reserved, 5)
    assert limiter.peek(ANN) is None


def test_a_tier_without_room_is_asked_each_time(clock: Clock) -> None:
    """Anybody of it may give back."""
    limiter = a_limiter(clock)
    eve = msgspec.structs.replace(BOB, tenant="eve", key_id="key_eve")
    reserved = [admitted(ask(limiter, caller, 1, 1)) for caller in (BOB, BOB, eve, eve)]
    assert refused(limiter.peek(BOB)).kind is LimitKind.TIER_REQUESTS
    limiter.give_back(reserved[-1])
    assert limiter.peek(BOB) is None


def test_a_key_whose_limit_was_changed_has_the_new_one(clock: Clock) -> None:
    limiter = a_limiter(clock)
    for _ in range(2):
        admitted(ask(limiter, ANN))
    refused(ask(limiter, ANN))

    admitted(ask(limiter, msgspec.structs.replace(ANN, limit=RateLimit(3, 100))))
    refused(ask(limiter, msgspec.structs.replace(ANN, limit=RateLimit(1, 100))))


def test_more_keys_than_are_kept_ready(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batcher.service.limiter._MAX_BILLS", 2)
    limiter = a_limiter(clock)
    callers = [Caller("t", "paid", f"key_{index}", RateLimit(1, 100)) for index in range(5)]
    for caller in callers:
        admitted(ask(limiter, caller))
        refused(ask(limiter, caller))
    for caller in callers:
        refused(ask(limiter, caller))
    assert len(limiter._bills) <= 2


def test_a_store_that_is_away_is_no_fault_of_the_key() -> None:
    store = SilentStore()
    limiter = Limiter(LimitsConfig(), TIERS, store)
    judgements: list[Judgement] = []
    limiter.reserve(ANN, "m", 10, 20, judgements.append)

    store.asked[0][2](StoreAway(0.2))

    (error,) = judgements
    assert type(error) is LimitsAway
    assert isinstance(error, Overloaded)
    assert not isinstance(error, RateLimited)
    assert (error.status, error.retry_after_s, error.standing) == (529, 1, None)
    assert num_refused(limiter) == {("paid", LimitKind.STORE_AWAY): 1}
