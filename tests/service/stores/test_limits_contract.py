"""What every store of limits promises, of the one in memory and of the one in Redis."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from batcher.config import LimitMode, LimitsConfig, RateLimit
from batcher.core.admission.reservation import LimitRefusal, Reservation, Subject
from batcher.service.limits import LimitStore
from batcher.service.stores.memory_limits import MemoryLimits
from batcher.service.stores.redis_limits import RedisLimits
from benchmarks.redis_server import RedisServer
from tests.service.stores.gateways import admitted, ask

pytestmark = pytest.mark.anyio


def subject(name: str, requests: int | None = None, tokens: int | None = None) -> Subject:
    return Subject(f"key:{name}", RateLimit(requests, tokens))


@pytest.fixture(params=["memory", "redis", "redis, leased"])
async def store(request: pytest.FixtureRequest, redis_server: RedisServer) -> AsyncIterator[LimitStore]:
    """In lease mode nothing here is hot, so the promises are the same."""
    if request.param == "memory":
        store: LimitStore = MemoryLimits(max_keys=100)
    else:
        mode = LimitMode.SHARED if request.param == "redis" else LimitMode.LEASE
        store = RedisLimits(LimitsConfig(redis_url=redis_server.url, mode=mode))
    await store.start()
    yield store
    await store.close()


async def refused(store: LimitStore, *subjects: Subject, tokens: int = 0) -> LimitRefusal:
    verdict = await ask(store, *subjects, tokens=tokens)
    assert isinstance(verdict, LimitRefusal)
    return verdict


async def test_as_many_requests_as_the_limit_says(store: LimitStore) -> None:
    ann = subject("ann", requests=3)
    for left in (2, 1, 0):
        standing = (await admitted(store, ann)).standing
        assert (standing.requests_limit, standing.requests_remaining) == (3, left)
        assert 59.0 < standing.requests_reset_s <= 60.0
        assert (standing.tokens_limit, standing.tokens_remaining) == (None, None)
    refusal = await refused(store, ann)
    assert (refusal.subject, refusal.is_tokens) == (ann, False)
    assert 57.0 < refusal.retry_after_s <= 60.0
    assert refusal.standing.requests_remaining == 0
    await admitted(store, subject("ben", requests=3))


async def test_tokens_are_reserved_with_the_check(store: LimitStore) -> None:
    """CASES B33: of five at the same moment only those get in that fit together."""
    ann = subject("ann", tokens=100)
    verdicts = await asyncio.gather(*[ask(store, ann, tokens=tokens) for tokens in (58, 60, 42, 1, 0)])
    assert [isinstance(verdict, Reservation) for verdict in verdicts] == [True, False, True, False, True]
    refusal = verdicts[1]
    assert isinstance(refusal, LimitRefusal)
    assert refusal.is_tokens
    assert refusal.standing.tokens_remaining == 42


async def test_what_was_not_used_is_given_back(store: LimitStore) -> None:
    ann = subject("ann", requests=10, tokens=100)
    first = await admitted(store, ann, tokens=90)
    store.settle(first, 20)
    second = await admitted(store, ann, tokens=80)
    assert second.standing.tokens_remaining == 0
    assert second.standing.requests_remaining == 8, "a request that was settled counts"
    store.give_back(second)
    third = await admitted(store, ann, tokens=80)
    assert third.standing.requests_remaining == 8, "one that was given back does not"


async def test_what_cost_more_is_charged(store: LimitStore) -> None:
    ann = subject("ann", tokens=100)
    store.settle(await admitted(store, ann, tokens=0), 100)
    assert (await refused(store, ann, tokens=1)).standing.tokens_remaining == 0
    store.settle(await admitted(store, ann, tokens=0), 50)
    assert (await refused(store, ann, tokens=0)).standing.tokens_remaining == 0


async def test_all_subjects_or_none_are_charged(store: LimitStore) -> None:
    ann, tier = subject("ann", requests=5), Subject("tier:free", RateLimit(2, 1000))
    for _ in range(2):
        await admitted(store, ann, tier, tokens=10)
    refusal = await refused(store, ann, tier, tokens=10)
    assert refusal.subject == tier
    assert refusal.standing.requests_limit == 5, "a caller is told about itself, not about its tier"
    assert refusal.standing.requests_remaining == 3, "what was refused was charged to nobody"


async def test_the_refusal_names_the_limit_that_has_no_room_for_the_longest(store: LimitStore) -> None:
    """One that waits for charges of two seconds against one that waits for the first of them."""
    ann, ben = subject("ann", tokens=20), subject("ben", tokens=20)
    begin = time.monotonic()
    first = await admitted(store, ann, ben, tokens=10)
    first_until = asked_at = time.monotonic()
    while (second := await admitted(store, ann, tokens=10)).at == first.at:
        store.give_back(second)
        await asyncio.sleep(0.05)
        asked_at = time.monotonic()
    second_until = time.monotonic()
    await admitted(store, ben, tokens=5)
    # Ann has room for 15 when both are a minute old, Ben when the first is.
    refused_from = time.monotonic()
    alone = await refused(store, ben, tokens=15)
    for subjects in ((ann, ben), (ben, ann)):
        refusal = await refused(store, *subjects, tokens=15)
        assert (refusal.subject, refusal.is_tokens) == (ann, True)
        # Later than alone was refused, by the time between the two charges less that between the two refusals.
        later_s = refusal.retry_after_s - alone.retry_after_s
        passed_s = time.monotonic() - refused_from
        assert asked_at - first_until - passed_s - 0.1 <= later_s <= second_until - begin + 0.1


async def test_who_has_no_limit_is_not_refused(store: LimitStore) -> None:
    nobody, tier = subject("nobody"), Subject("tier:free", RateLimit(2))
    for _ in range(5):
        store.settle(await admitted(store, nobody, tokens=10**9), 5)
    store.give_back(await admitted(store, nobody, tokens=1))
    for _ in range(2):
        assert (await admitted(store, nobody, tier)).standing.requests_limit is None
    assert (await refused(store, nobody, tier)).standing.requests_limit is None


async def test_a_refusal_is_known_before_the_next_body_is_read(store: LimitStore) -> None:
    ann, tier = subject("ann", requests=1), Subject("tier:free", RateLimit(100))
    assert store.peek((ann, tier)) is None
    reservation = await admitted(store, ann, tier)
    refusal = await refused(store, ann, tier)
    known = store.peek((ann, tier))
    assert known is not None
    assert (known.subject, known.is_tokens) == (ann, False)
    assert known.retry_after_s == pytest.approx(refusal.retry_after_s, abs=0.5)
    assert known.standing.requests_remaining == 0
    assert store.peek((subject("ben", requests=1), tier)) is None
    store.give_back(reservation)
    assert store.peek((ann, tier)) is None
    await admitted(store, ann, tier)


async def test_largest_limits_count_exactly(store: LimitStore) -> None:
    ann = subject("ann", tokens=10**12)
    store.settle(await admitted(store, ann, tokens=10**12 - 1), 10**12 - 1)
    assert (await admitted(store, ann, tokens=1)).standing.tokens_remaining == 0
    assert (await refused(store, ann, tokens=1)).standing.tokens_remaining == 0
