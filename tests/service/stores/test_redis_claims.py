"""Claims in Redis: what expires, what survives a crash, and what is said while Redis is away."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing

import pytest
import redis

from batcher.config import IdempotencyConfig
from batcher.errors import Overloaded
from batcher.service.claims import CLAIM_S, Claimed, InFlight, Kept
from batcher.service.stores.redis_claims import MAX_REPLY_BYTES, RedisClaims
from benchmarks.redis_server import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture
def beside(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with closing(redis_server.client()) as client:
        yield client


@asynccontextmanager
async def opened(server: RedisServer, *, max_answers: int = 1000, timeout_s: float = 2.0) -> AsyncIterator[RedisClaims]:
    config = IdempotencyConfig(redis_url=server.url, redis_timeout_s=timeout_s, keep_s=5000.0, max_answers=max_answers)
    store = RedisClaims(config)
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def store(redis_server: RedisServer) -> AsyncIterator[RedisClaims]:
    async with opened(redis_server) as store:
        yield store


async def test_a_claim_ends_by_itself_unless_it_is_renewed(store: RedisClaims, beside: redis.Redis) -> None:
    await store.claim("s", "body", "a")
    assert CLAIM_S - 2 < beside.pttl("batcher:claims:of:s") / 1000 <= CLAIM_S
    beside.pexpire("batcher:claims:of:s", 3000)
    await store.renew("s", "a")
    assert CLAIM_S - 2 < beside.pttl("batcher:claims:of:s") / 1000 <= CLAIM_S
    # Its holder died, and its time has passed.
    beside.delete("batcher:claims:of:s")
    assert await store.claim("s", "another", "b") == Claimed()
    await store.keep("s", "a", b"too late", tenant="t")
    assert await store.claim("s", "another", "c") == InFlight()


async def test_an_answer_is_kept_for_so_long(store: RedisClaims, beside: redis.Redis) -> None:
    await store.claim("s", "body", "a")
    await store.keep("s", "a", b"answer", tenant="t")
    assert 4998 < beside.pttl("batcher:claims:of:s") / 1000 <= 5000


async def test_of_expired_answers_nothing_is_left(store: RedisClaims, beside: redis.Redis) -> None:
    beside.zadd("batcher:claims:kept", {f"old {i}": i for i in range(10)})
    for scope in ("s", "t"):
        await store.claim(scope, "body", "a")
        await store.keep(scope, "a", b"answer", tenant="t")
    assert beside.zrange("batcher:claims:kept", 0, -1) == [b"s", b"t"]


async def test_a_claim_is_not_dropped_for_an_older_answer_of_its_scope(redis_server: RedisServer, beside: redis.Redis) -> None:
    """The answer expired and its place in the order is the oldest; meanwhile the scope was claimed anew."""
    async with opened(redis_server, max_answers=1) as store:
        await store.claim("s", "body", "a")
        beside.zadd("batcher:claims:kept", {"s": int(beside.time()[0]) - 1})
        await store.claim("t", "body", "a")
        await store.keep("t", "a", b"answer", tenant="t")
        assert await store.claim("s", "body", "b") == InFlight()


async def test_a_reply_too_large_is_not_kept(store: RedisClaims) -> None:
    """Up to a MiB was: 100,000 answers could be 100 GB, and whoever sized Redis for 2 kB each ran it full."""
    await store.claim("s", "body", "a")
    await store.keep("s", "a", bytes(MAX_REPLY_BYTES + 1), tenant="t")
    assert store.statistics().num_too_large == 1
    assert await store.claim("s", "body", "b") == Claimed()
    await store.keep("s", "b", bytes(MAX_REPLY_BYTES), tenant="t")
    assert await store.claim("s", "body", "c") == Kept(bytes(MAX_REPLY_BYTES))


async def test_who_asks_again_for_its_own_claim_has_it(store: RedisClaims) -> None:
    """The reply to its first try was lost."""
    await store.claim("s", "body", "a")
    assert await store.claim("s", "body", "a") == Claimed()


async def test_claims_and_answers_survive_a_crash_and_nothing_is_claimed_meanwhile(
    store: RedisClaims, redis_server: RedisServer
) -> None:
    await store.claim("s", "body", "a")
    await store.claim("t", "body", "a")
    await store.keep("t", "a", b"answer", tenant="t")
    redis_server.kill()
    for _ in range(3):
        with pytest.raises(Overloaded) as refused:
            await store.claim("u", "body", "a")
        assert (refused.value.retry_after_s, refused.value.refused) == (1, "claims_away")
    # What ends a claim waits for Redis to come back, for a while.
    keeping = asyncio.create_task(store.keep("s", "a", b"late", tenant="t"))
    await asyncio.get_running_loop().run_in_executor(None, redis_server.start)
    await keeping
    assert await store.claim("s", "body", "b") == Kept(b"late")
    assert await store.claim("t", "body", "b") == Kept(b"answer")


async def test_a_keep_that_cannot_be_kept_says_so(redis_server: RedisServer) -> None:
    async with opened(redis_server, timeout_s=1.0) as store:
        await store.claim("s", "body", "a")
        redis_server.kill()
        with pytest.raises(Overloaded):
            await store.keep("s", "a", b"answer", tenant="t")
    redis_server.start()


async def test_in_a_full_redis_nothing_is_begun_and_what_was_kept_is_given(store: RedisClaims, beside: redis.Redis) -> None:
    """With the policy that it must have. `release` needs no memory, and so the request may be asked elsewhere."""
    await store.claim("kept", "body", "a")
    await store.keep("kept", "a", b"answer", tenant="t")
    await store.claim("claimed", "body", "a")
    await store.claim("released", "body", "a")
    limits = {name: beside.config_get(name)[name] for name in ("maxmemory", "maxmemory-policy")}
    try:
        beside.config_set("maxmemory-policy", "noeviction")
        beside.config_set("maxmemory", "1")
        with pytest.raises(Overloaded):
            await store.claim("new", "body", "a")
        with pytest.raises(Overloaded):
            await store.keep("claimed", "a", b"answer", tenant="t")
        await store.release("released", "a")
        assert await store.claim("kept", "body", "b") == Kept(b"answer")
        assert await store.claim("claimed", "body", "b") == InFlight()
    finally:
        for name, value in limits.items():
            beside.config_set(name, value or "")
    assert await store.claim("released", "body", "b") == Claimed()
