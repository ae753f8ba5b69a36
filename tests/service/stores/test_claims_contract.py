"""What every store of claims promises, of the one in memory and of the one in Redis."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from batcher.config import IdempotencyConfig
from batcher.service.claims import Claimed, ClaimStore, InFlight, Kept, Mismatch
from batcher.service.stores.memory_claims import MemoryClaims
from batcher.service.stores.redis_claims import RedisClaims
from benchmarks.redis_server import RedisServer

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest, redis_server: RedisServer) -> AsyncIterator[ClaimStore]:
    if request.param == "memory":
        yield MemoryClaims(IdempotencyConfig(max_answers=2))
        return
    store = RedisClaims(IdempotencyConfig(redis_url=redis_server.url, max_answers=2))
    await store.start()
    yield store
    await store.close()


async def test_of_many_at_the_same_moment_one_has_the_claim(store: ClaimStore) -> None:
    verdicts = await asyncio.gather(*[store.claim("s", "body", f"holder {i}") for i in range(40)])
    assert verdicts.count(Claimed()) == 1
    assert verdicts.count(InFlight()) == 39
    assert await store.claim("s", "another", "a") == Mismatch()
    assert await store.claim("t", "another", "a") == Claimed()


async def test_an_answer_is_kept_as_it_was(store: ClaimStore) -> None:
    await store.claim("s", "body", "a")
    await store.renew("s", "a")
    await store.keep("s", "a", bytes(range(256)), tenant="t")
    assert await store.claim("s", "body", "b") == Kept(bytes(range(256)))
    assert await store.claim("s", "another", "b") == Mismatch()


async def test_what_is_released_may_be_claimed_with_another_body(store: ClaimStore) -> None:
    await store.claim("s", "body", "a")
    await store.release("s", "a")
    assert await store.claim("s", "another", "b") == Claimed()


async def test_only_the_holder_ends_a_claim(store: ClaimStore) -> None:
    await store.claim("s", "body", "a")
    await store.release("s", "b")
    await store.keep("s", "b", b"wrong", tenant="t")
    await store.renew("s", "b")
    assert await store.claim("s", "body", "c") == InFlight()
    await store.keep("s", "a", b"right", tenant="t")
    await store.release("s", "a")
    await store.keep("s", "a", b"again", tenant="t")
    assert await store.claim("s", "body", "c") == Kept(b"right")
    await store.release("nobody's", "a")


async def test_the_oldest_answers_go_first(store: ClaimStore) -> None:
    for scope in ("r", "s", "t"):
        await store.claim(scope, "body", "a")
        await store.keep(scope, "a", b"answer", tenant="t")
    assert await store.claim("r", "body", "b") == Claimed()
    assert await store.claim("s", "body", "b") == Kept(b"answer")
    assert await store.claim("t", "body", "b") == Kept(b"answer")
