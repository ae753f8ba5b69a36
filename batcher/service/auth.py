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

from batcher.config import NO_LIMIT, KeyConfig, RateLimit, TierConfig, check_keys
from batcher.errors import ConfigError, NotAuthenticated

_MAX_KEY_BYTES = 256
"""Longer than any key that is handed out; what is longer is not even hashed."""

_PREFIX_BYTES = 8

OPERATOR_KEY = "dev-operator"
"""The operator's among the development keys."""


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
    operators_only: str
    """What is told to whoever has a key, but not an operator's, where one is needed."""

    def find(self, key: bytes) -> Caller:
        """Raises NotAuthenticated if the key opens nothing."""
        ...


class Keyring:
    """The configured keys, each with its own limit or its tier's. `_known` is read-only: `become` puts another in its place."""

    operators_only = "this needs an operator's key: `batcher keys create --operator` makes one"

    def __init__(self, keys: Iterable[KeyConfig], tiers: Iterable[TierConfig]) -> None:
        """Raises ConfigError for a key that is there twice or has no tier."""
        by_name = {tier.name: tier for tier in tiers}
        keys = tuple(keys)
        check_keys(keys)
        self._known: dict[bytes, tuple[bytes, Caller]] = {}
        for key in keys:
            if key.tier not in by_name:
                raise ConfigError(f"the key of {key.tenant!r} names the tier {key.tier!r}, which is not configured")
            digest = bytes.fromhex(key.sha256)
            caller = Caller(key.tenant, key.tier, key.key_id, key.limit(by_name[key.tier]), key.is_operator)
            self._known[digest[:_PREFIX_BYTES]] = (digest, caller)

    def __len__(self) -> int:
        return len(self._known)

    def become(self, other: "Keyring") -> None:
        """From now on these are the other's keys, all at once."""
        self._known = other._known

    def find(self, key: bytes) -> Caller:
        if len(key) <= _MAX_KEY_BYTES:
            digest = sha256(key).digest()
            known = self._known.get(digest[:_PREFIX_BYTES])
            if known is not None and compare_digest(known[0], digest):
                return known[1]
        if not key:
            raise NotAuthenticated("no API key was given: send one in the x-api-key header, or as authorization: Bearer")
        raise NotAuthenticated("this API key is not valid")


class DevelopmentKeys:
    """`dev-TIER` for each tier, `dev-TIER-NAME` as a tenant of its own, and the operator's, which is of the first tier.

    They guard nothing: for a loopback host only.
    """

    operators_only = f"this needs the operator's key: on development keys, send x-api-key: {OPERATOR_KEY}"

    def __init__(self, tiers: tuple[TierConfig, ...]) -> None:
        self._tiers = {tier.name.encode(): tier for tier in tiers}
        # The longest first: a tenant of tier free-2 is none of tier free.
        names = sorted(self._tiers, key=len, reverse=True)
        self._pattern = re.compile(b"dev-(" + b"|".join(map(re.escape, names)) + rb")(-[A-Za-z0-9._-]{1,48})?")
        self._callers = {f"dev-{tier.name}".encode(): _developer(f"dev-{tier.name}", tier) for tier in tiers}
        operator = msgspec.structs.replace(_developer(OPERATOR_KEY, tiers[0]), is_operator=True)
        self._callers[OPERATOR_KEY.encode()] = operator
        self._told = (
            f"this server runs on its development keys: send x-api-key: {' or '.join(f'dev-{tier.name}' for tier in tiers)}, "
            f"and for /metrics and /load {OPERATOR_KEY}"
        )

    def find(self, key: bytes) -> Caller:
        if (caller := self._callers.get(key)) is not None:
            return caller
        if len(key) <= _MAX_KEY_BYTES and (match := self._pattern.fullmatch(key)):
            # A tame word by the pattern, and nothing is kept by it here.
            return _developer(key.decode("ascii"), self._tiers[match[1]])
        raise NotAuthenticated(self._told)


def _developer(key: str, tier: TierConfig) -> Caller:
    return Caller(key, tier.name, key, tier.key_limit)
