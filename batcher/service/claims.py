"""What a store of idempotent requests promises, wherever it keeps them: who answers which request, and the answers kept.

What stores tell of themselves stands here too, so that whoever shows it needs no store's own client.
"""

from typing import Protocol

import msgspec

CLAIM_S = 15.0
"""A claim whose holder does not renew it ends after so long: its process died, and the next caller may run the request."""


class Claimed(msgspec.Struct, frozen=True):
    """The request is the holder's to answer."""


class InFlight(msgspec.Struct, frozen=True):
    """Another holder is answering this very request."""


class Mismatch(msgspec.Struct, frozen=True):
    """The scope is held by, or has the answer of, a request with another body."""


class Kept(msgspec.Struct, frozen=True):
    """It was answered before."""

    reply: bytes
    """As it was given to `keep`."""


class MemoryClaimsStatistics(msgspec.Struct, frozen=True):
    num_claims: int
    num_answers: int
    num_bytes: int
    """Of the answers, with what each costs beside its reply."""


class RedisClaimsStatistics(msgspec.Struct, frozen=True):
    """What is kept in Redis, Redis tells itself."""

    is_failing: bool
    """Whether Redis is away, or refuses what it is asked."""
    num_too_large: int
    """Replies that were too large to be kept, counted up: their requests would run again."""


class ClaimStore(Protocol):
    """Who answers which request, and the answers kept. Every method raises ServiceError while the store is away.

    `scope` and `body` are hexadecimal digests; `holder` is unique for each attempt. Calls of a holder that has no claim (any
    more) change nothing.
    """

    async def claim(self, scope: str, body: str, holder: str) -> Claimed | InFlight | Mismatch | Kept:
        """Takes the claim in one atomic step, or says why not. A claim ends by itself CLAIM_S after it was taken or renewed."""

    async def renew(self, scope: str, holder: str) -> None: ...

    async def keep(self, scope: str, holder: str, reply: bytes, *, tenant: str) -> None:
        """Ends the claim; the answer is kept for `keep_s`, in the tenant's share of the room where a store has shares."""

    async def release(self, scope: str, holder: str) -> None:
        """Ends the claim; nothing is kept."""

    def statistics(self) -> MemoryClaimsStatistics | RedisClaimsStatistics: ...

    async def start(self) -> None:
        """Once, before the first claim. A store that is away is no error yet."""

    async def close(self) -> None: ...
