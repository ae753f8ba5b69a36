"""Idempotent requests of one gateway: who answers which, and the answers kept, in memory.

A restart forgets all of it, so a request that was answered just before may run again; the usage log tells by its digest that it
is one request (`UsageRecord.idempotency`). Gateways that share keys need a store that they share.

Room is bounded in answers and in bytes. When it is used up the oldest answer goes, whoever it is for; but a tenant that has
half of either makes room out of its own, so that one who floods pushes out its own answers and not everybody's.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from batcher.config import IdempotencyConfig
from batcher.service.claims import Claimed, InFlight, Kept, MemoryClaimsStatistics, Mismatch

_ANSWER_OVERHEAD = 600
"""Bytes of memory that an answer costs beside its reply: two digests, the entry and its place in the table."""

_MAX_EXPIRED = 8
"""Answers dropped in one call: more than are added in one, so that none piles up, and few enough that no caller waits."""


class _Claim(msgspec.Struct, frozen=True):
    body: str
    holder: str


class _Answer(msgspec.Struct, frozen=True):
    tenant: str
    body: str
    reply: bytes
    expires_at: float

    @property
    def num_bytes(self) -> int:
        return len(self.reply) + _ANSWER_OVERHEAD


class _Share:
    """What one tenant has: the scopes of its answers, the oldest first, and their bytes."""

    __slots__ = ("num_bytes", "scopes")

    def __init__(self) -> None:
        self.scopes: OrderedDict[str, None] = OrderedDict()
        self.num_bytes = 0


class MemoryClaims:
    """A ClaimStore. Every call takes constant time and never waits, so each is atomic.

    Claims do not expire: who holds one is a part of this process and ends its claim whatever happens, and a loop that stood
    still for a while must not let a second one in. Answers are in the order in which they expire, which is the order in which
    they were kept. `_shares` has the same ones by tenant, and no tenant without any.
    """

    def __init__(self, config: IdempotencyConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._clock = clock
        self._claims: dict[str, _Claim] = {}
        self._answers: OrderedDict[str, _Answer] = OrderedDict()
        self._shares: dict[str, _Share] = {}
        self._num_bytes = 0

    async def claim(self, scope: str, body: str, holder: str) -> Claimed | InFlight | Mismatch | Kept:
        now = self._clock()
        self._drop_expired(now)
        answer = self._answers.get(scope)
        if answer is not None and answer.expires_at > now:
            return Kept(answer.reply) if answer.body == body else Mismatch()
        claim = self._claims.get(scope)
        if claim is not None:
            return InFlight() if claim.body == body else Mismatch()
        if answer is not None:
            self._drop(scope)
        self._claims[scope] = _Claim(body, holder)
        return Claimed()

    async def renew(self, scope: str, holder: str) -> None:
        """Nothing: claims here do not expire."""

    async def keep(self, scope: str, holder: str, reply: bytes, *, tenant: str) -> None:
        claim = self._end(scope, holder)
        if claim is None:
            return
        answer = _Answer(tenant, claim.body, reply, self._clock() + self._config.keep_s)
        if answer.num_bytes > self._config.max_bytes:
            return
        while self._answers and (
            len(self._answers) >= self._config.max_answers or self._num_bytes + answer.num_bytes > self._config.max_bytes
        ):
            self._drop(self._first_to_go(tenant))
        self._answers[scope] = answer
        self._num_bytes += answer.num_bytes
        share = self._shares.setdefault(tenant, _Share())
        share.scopes[scope] = None
        share.num_bytes += answer.num_bytes

    async def release(self, scope: str, holder: str) -> None:
        self._end(scope, holder)

    async def start(self) -> None:
        """There is nothing to start."""

    async def close(self) -> None:
        """There is nothing to close."""

    def statistics(self) -> MemoryClaimsStatistics:
        return MemoryClaimsStatistics(len(self._claims), len(self._answers), self._num_bytes)

    def _end(self, scope: str, holder: str) -> _Claim | None:
        claim = self._claims.get(scope)
        return self._claims.pop(scope) if claim is not None and claim.holder == holder else None

    def _drop_expired(self, now: float) -> None:
        for _ in range(_MAX_EXPIRED):
            scope = next(iter(self._answers), None)
            if scope is None or self._answers[scope].expires_at > now:
                return
            self._drop(scope)

    def _first_to_go(self, tenant: str) -> str:
        """The scope of the answer that makes room for one of this tenant's."""
        share = self._shares.get(tenant)
        if share is not None:
            has_half = 2 * len(share.scopes) >= self._config.max_answers or 2 * share.num_bytes >= self._config.max_bytes
            if has_half:
                return next(iter(share.scopes))
        return next(iter(self._answers))

    def _drop(self, scope: str) -> None:
        answer = self._answers.pop(scope)
        self._num_bytes -= answer.num_bytes
        share = self._shares[answer.tenant]
        del share.scopes[scope]
        share.num_bytes -= answer.num_bytes
        if not share.scopes:
            del self._shares[answer.tenant]
