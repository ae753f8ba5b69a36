"""Idempotent requests of several gateways: a claim is one atomic step in Redis, and an answer is kept for all of them.

While Redis is away no idempotent request is begun, whatever the policy for limits says: its caller asks again on the strength
of our word that it runs once. Redis must keep what it was told when it is killed (`redis_link` says how), and its clock must be
slewed and not set: a claim or an answer that is forgotten may run a request again.

What is kept is bounded by number and size, and the oldest goes first, whoever it is for. If Redis is full all the same, its
policy decides. With `noeviction`, which it must have, no new claim is made: an idempotent request gets a 529 before it begins,
and an answer that was under way is given and not kept. Any other policy (`allkeys-*`, and `volatile-*` too, as all of this
expires some day) lets Redis drop claims and answers without a word, so that a request runs twice, and limits' counters beside.
"""

from batcher.config import IdempotencyConfig
from batcher.errors import Overloaded
from batcher.service.claims import CLAIM_S, Claimed, InFlight, Kept, Mismatch, RedisClaimsStatistics
from batcher.service.records import Refused
from batcher.service.stores.redis_link import RedisAway, RedisLink, Script

MAX_REPLY_BYTES = 65_536
"""A larger reply is not kept: it is counted, and its request would run again (and be billed once). So all that is kept is at
most `max_answers` of these, of 100,000 answers 6.5 GB, and that can be planned for. The usual answer is 2 kB; one of 8,000
tokens of English is 40 kB."""

_MAX_CONNECTIONS = 16
"""Each carries one question at a time: at a millisecond each, 16,000 a second."""

_SCRIPT = Script("redis_claims.lua")
_CLAIM_MS = int(CLAIM_S * 1000)


class RedisClaims:
    """A ClaimStore. Lives on one event loop. Raises Overloaded, to be tried again after a second, while Redis is away."""

    def __init__(self, config: IdempotencyConfig) -> None:
        assert config.redis_url is not None, "claims in Redis without its address"
        self._max_answers = config.max_answers
        self._num_too_large = 0
        self._keep_ms = int(config.keep_s * 1000)
        self._link = RedisLink(
            config.redis_url, store="claims", timeout_s=config.redis_timeout_s, max_connections=_MAX_CONNECTIONS
        )

    async def start(self) -> None:
        """Returns once Redis has answered, or has failed to within the time limit."""
        await self._link.start()

    async def close(self) -> None:
        await self._link.close()

    def statistics(self) -> RedisClaimsStatistics:
        return RedisClaimsStatistics(self._link.is_failing, self._num_too_large)

    async def claim(self, scope: str, body: str, holder: str) -> Claimed | InFlight | Mismatch | Kept:
        """Of a claim whose reply was lost the holder is told that it has it when it asks again."""
        match await self._ask("claim", scope, holder, body, _CLAIM_MS):
            case [b"claimed"]:
                return Claimed()
            case [b"in_flight"]:
                return InFlight()
            case [b"mismatch"]:
                return Mismatch()
            case [b"kept", bytes(reply)]:
                return Kept(reply)
            case other:
                raise AssertionError(f"the script answered {other!r}")

    async def renew(self, scope: str, holder: str) -> None:
        await self._ask("renew", scope, holder, _CLAIM_MS)

    async def keep(self, scope: str, holder: str, reply: bytes, *, tenant: str) -> None:
        """A reply above MAX_REPLY_BYTES ends the claim and is not kept. Tenants have no shares: `max_answers` is for all."""
        if len(reply) > MAX_REPLY_BYTES:
            self._num_too_large += 1
            await self.release(scope, holder)
        else:
            await self._insist("keep", scope, holder, reply, self._keep_ms, self._max_answers)

    async def release(self, scope: str, holder: str) -> None:
        await self._insist("release", scope, holder)

    async def _ask(self, *arguments: str | bytes | int) -> object:
        try:
            return await self._link.run(_SCRIPT, *arguments)
        except RedisAway as error:
            raise Overloaded(
                "idempotent requests cannot be served at this moment", retry_after_s=1, refused=Refused.CLAIMS_AWAY
            ) from error

    async def _insist(self, *arguments: str | bytes | int) -> None:
        """Tries once more if Redis is back soon: what ends a claim may be done twice, and had better be done once."""
        try:
            await self._link.run(_SCRIPT, *arguments)
        except RedisAway:
            await self._link.wait_back()
            await self._ask(*arguments)
