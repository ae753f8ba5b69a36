"""Answers kept in this process: who may claim, what is bounded, and what goes first."""

import pytest

from batcher.config import IdempotencyConfig
from batcher.service.claims import Claimed, ClaimStore, InFlight, Kept, MemoryClaimsStatistics, Mismatch
from batcher.service.stores.memory_claims import _ANSWER_OVERHEAD, MemoryClaims

pytestmark = pytest.mark.anyio


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def keep(store: MemoryClaims, scope: str, reply: bytes = b"r", *, tenant: str = "t") -> None:
    assert await store.claim(scope, "body", "me") == Claimed()
    await store.keep(scope, "me", reply, tenant=tenant)


async def test_a_claim_and_its_ends() -> None:
    store: ClaimStore = MemoryClaims(IdempotencyConfig())
    assert await store.claim("s", "body", "a") == Claimed()
    assert await store.claim("s", "body", "b") == InFlight()
    assert await store.claim("s", "other", "b") == Mismatch()
    assert await store.claim("t", "other", "b") == Claimed()
    await store.release("s", "a")
    assert await store.claim("s", "other", "b") == Claimed()
    await store.keep("s", "b", b"answer", tenant="t")
    assert await store.claim("s", "other", "c") == Kept(b"answer")
    assert await store.claim("s", "body", "c") == Mismatch()


async def test_only_the_holder_ends_a_claim() -> None:
    store = MemoryClaims(IdempotencyConfig())
    await store.claim("s", "body", "a")
    await store.release("s", "b")
    await store.keep("s", "b", b"answer", tenant="t")
    await store.renew("s", "b")
    assert await store.claim("s", "body", "c") == InFlight()
    await store.keep("s", "a", b"answer", tenant="t")
    await store.release("s", "a")
    await store.keep("s", "a", b"another", tenant="t")
    assert await store.claim("s", "body", "c") == Kept(b"answer")
    await store.release("nobody's", "a")
    assert store.statistics().num_claims == 0


async def test_an_answer_is_kept_for_so_long() -> None:
    clock = Clock()
    store = MemoryClaims(IdempotencyConfig(keep_s=10.0), clock=clock)
    await keep(store, "s")
    clock.now = 109.9
    assert await store.claim("s", "body", "b") == Kept(b"r")
    assert await store.claim("s", "other", "b") == Mismatch()
    clock.now = 110.0
    assert await store.claim("s", "other", "b") == Claimed()
    assert store.statistics() == MemoryClaimsStatistics(num_claims=1, num_answers=0, num_bytes=0)


async def test_expired_answers_go_a_few_at_a_time_and_are_never_given() -> None:
    clock = Clock()
    store = MemoryClaims(IdempotencyConfig(keep_s=10.0), clock=clock)
    for number in range(20):
        await keep(store, f"s{number}")
    clock.now = 200.0
    assert await store.claim("s19", "body", "b") == Claimed()
    assert store.statistics().num_answers == 11
    for number in range(2):
        await store.claim(f"t{number}", "body", "b")
    assert store.statistics().num_answers == 0


async def test_the_oldest_answers_go_first_and_claims_never() -> None:
    store = MemoryClaims(IdempotencyConfig(max_answers=2))
    for scope in ("a", "b", "c", "d"):
        assert await store.claim(scope, "body", "me") == Claimed()
    for scope in ("b", "a", "c"):
        await store.keep(scope, "me", b"r", tenant="t")
    assert store.statistics() == MemoryClaimsStatistics(num_claims=1, num_answers=2, num_bytes=2 * (1 + _ANSWER_OVERHEAD))
    assert await store.claim("b", "body", "you") == Claimed()
    assert await store.claim("a", "body", "you") == Kept(b"r")
    assert await store.claim("d", "body", "you") == InFlight()


async def test_bytes_are_bounded() -> None:
    store = MemoryClaims(IdempotencyConfig(max_bytes=1_000_000))
    for number in range(10):
        await keep(store, f"s{number}", b"x" * 300_000)
    assert store.statistics() == MemoryClaimsStatistics(num_claims=0, num_answers=3, num_bytes=3 * (300_000 + _ANSWER_OVERHEAD))
    await keep(store, "huge", b"x" * 1_000_000)
    assert store.statistics().num_answers == 3
    assert await store.claim("huge", "body", "you") == Claimed()
    assert await store.claim("s9", "body", "you") == Kept(b"x" * 300_000)


async def test_a_tenant_that_floods_pushes_out_its_own_answers() -> None:
    """It pushed out everybody's: who asked again after that got a second run."""
    store = MemoryClaims(IdempotencyConfig(max_answers=6))
    for number in range(2):
        await keep(store, f"old{number}", tenant="quiet")
    for number in range(20):
        await keep(store, f"s{number}", tenant="loud")
    assert [await store.claim(f"old{number}", "body", "you") for number in range(2)] == [Kept(b"r")] * 2
    assert store.statistics().num_answers == 6
    assert await store.claim("s15", "body", "you") == Claimed(), "its oldest went"
    assert await store.claim("s16", "body", "you") == Kept(b"r")
    # Whoever comes has the room that it takes from the oldest of all, until it has half.
    for number in range(3):
        await keep(store, f"new{number}", tenant="third")
    assert await store.claim("old0", "body", "you") == Claimed()
    assert await store.claim("s18", "body", "you") == Kept(b"r")
    await keep(store, "new3", tenant="third")
    assert await store.claim("s18", "body", "you") == Kept(b"r")
    assert await store.claim("new0", "body", "you") == Claimed()


async def test_a_tenant_s_share_is_of_bytes_too() -> None:
    store = MemoryClaims(IdempotencyConfig(max_bytes=1_000_000))
    await keep(store, "old", tenant="quiet")
    for number in range(10):
        await keep(store, f"s{number}", b"x" * 300_000, tenant="loud")
    assert await store.claim("old", "body", "you") == Kept(b"r")
    assert store.statistics().num_answers == 4


async def test_of_answers_that_went_no_tenant_is_left() -> None:
    clock = Clock()
    store = MemoryClaims(IdempotencyConfig(keep_s=10.0), clock=clock)
    for number in range(5):
        await keep(store, f"s{number}", tenant=f"t{number}")
    clock.now = 200.0
    assert await store.claim("s", "body", "b") == Claimed()
    assert store._shares == {}
    assert store.statistics().num_bytes == 0
