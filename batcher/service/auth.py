"""Who calls: an API key to its tenant and tier.

Keys are known by their SHA-256 digest alone (DESIGN D8). The table is indexed by a short prefix of the digest, which no caller
can steer towards another's key, and the whole digest is then compared in constant time.
"""

import re
from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import Protocol

import msgspec

from batcher.config import NO_LIMIT, KeyConfig, RateLimit
from batcher.errors import ConfigError, NotAuthenticated

_MAX_KEY_BYTES = 256
"""Longer than any key that is handed out; what is longer is not even hashed."""

_PREFIX_BYTES = 8


class Caller(msgspec.Struct, frozen=True, gc=False):
    """Whose key it is, where its requests queue, and what it may ask for."""

    tenant: str
    """The key's owner."""
    tier: str
    key_id: str = ""
    """What limits and usage know the key by: ours, never the caller's words."""
    limit: RateLimit = NO_LIMIT
    """The key's own."""
    is_operator: bool = False


class Keys(Protocol):
    def find(self, key: bytes) -> Caller:
        """Raises NotAuthenticated if the key opens nothing."""
        ...


class Keyring:
    """The configured keys. Read-only after birth."""

    def __init__(self, keys: Iterable[KeyConfig]) -> None:
        self._known: dict[bytes, tuple[bytes, Caller]] = {}
        for key in keys:
            digest = bytes.fromhex(key.sha256)
            if digest[:_PREFIX_BYTES] in self._known:
                raise ConfigError(f"the key of {key.tenant!r} is configured twice")
            self._known[digest[:_PREFIX_BYTES]] = (digest, Caller(key.tenant, key.tier))

    def find(self, key: bytes) -> Caller:
        if len(key) <= _MAX_KEY_BYTES:
            digest = sha256(key).digest()
            known = self._known.get(digest[:_PREFIX_BYTES])
            if known is not None and compare_digest(known[0], digest):
                return known[1]
        raise NotAuthenticated("no valid API key was given: send one in the x-api-key header")


class DevelopmentKeys:
    """`dev-TIER` for each tier, and `dev-TIER-NAME` as a tenant of its own. They guard nothing: for a loopback host only."""

    def __init__(self, tiers: tuple[str, ...]) -> None:
        self._pattern = re.compile(rb"dev-(" + "|".join(map(re.escape, tiers)).encode() + rb")(-[A-Za-z0-9._-]{1,48})?")
        self._callers = {f"dev-{tier}".encode(): Caller(f"dev-{tier}", tier) for tier in tiers}

    def find(self, key: bytes) -> Caller:
        if (caller := self._callers.get(key)) is not None:
            return caller
        if len(key) <= _MAX_KEY_BYTES and (match := self._pattern.fullmatch(key)):
            return Caller(key.decode("ascii"), match[1].decode("ascii"))
        known = " or ".join(key.decode() for key in self._callers)
        raise NotAuthenticated(f"this server runs on its development keys: send x-api-key: {known}")


def keys_of(configured: tuple[KeyConfig, ...], tiers: tuple[str, ...]) -> Keys:
    """The configured keys; without any, the development keys."""
    return Keyring(configured) if configured else DevelopmentKeys(tiers)
