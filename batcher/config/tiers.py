"""Who is served, in which order and how much of it: tiers, keys and their limits."""

import re
from collections.abc import Iterable

import msgspec

from batcher.config.checks import require, require_between
from batcher.errors import ConfigError

MAX_PER_MINUTE = 10**12
"""Of requests or tokens: no limit anybody means is above it, and sums of two such numbers stay exact everywhere."""


class RateLimit(msgspec.Struct, frozen=True, gc=False):
    """What may be admitted in any sliding minute; None is without limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompt and answer together (SPEC S8.3). `POST /v1/run`, which knows no tokens, counts bytes of input."""

    @property
    def is_unlimited(self) -> bool:
        return self.requests_per_minute is None and self.tokens_per_minute is None


NO_LIMIT = RateLimit()


class TierConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier. Tiers are listed in the order of their priority, the highest first."""

    name: str
    wait_budget_s: float = 0.2
    """Batch mode: a request whose estimated wait for a batch is longer is refused at once. With 0.2 s of service and half a
    pace this leaves a margin of about 90 ms in SPEC S1.2's budget of 500 ms."""
    start_budget_s: float = 1.0
    """Continuous mode: the same for the estimated wait for a request's first step; SPEC S3's target for the first token."""
    reserved_share: float = 0.0
    """Share of the capacity that lower tiers may only borrow: they give it back when this tier wants it."""
    requests_per_minute: int | None = None
    """Each key's limit, where the key has none of its own."""
    tokens_per_minute: int | None = None
    """Likewise."""
    total_requests_per_minute: int | None = None
    """Of all keys of the tier together."""
    total_tokens_per_minute: int | None = None
    """Likewise."""

    def __post_init__(self) -> None:
        require(bool(re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", self.name)), "tier name", self.name, "a short lower-case word")
        # The development keys are dev-TIER, and dev-operator is the operator's.
        require(self.name != "operator", "tier name", self.name, "another word")
        require_between(f"wait_budget_s of tier {self.name}", self.wait_budget_s, 0.0, 3600.0, "seconds")
        require_between(f"start_budget_s of tier {self.name}", self.start_budget_s, 0.0, 3600.0, "seconds")
        require_between(f"reserved_share of tier {self.name}", self.reserved_share, 0.0, 0.9)
        for setting in ("requests_per_minute", "tokens_per_minute", "total_requests_per_minute", "total_tokens_per_minute"):
            _require_limit(f"{setting} of tier {self.name}", getattr(self, setting))

    @property
    def key_limit(self) -> RateLimit:
        return RateLimit(self.requests_per_minute, self.tokens_per_minute)

    @property
    def total_limit(self) -> RateLimit:
        return RateLimit(self.total_requests_per_minute, self.total_tokens_per_minute)


def _require_limit(setting: str, value: int | None) -> None:
    if value is not None:
        require_between(setting, value, 1, MAX_PER_MINUTE)


DEFAULT_TIERS = (
    TierConfig("paid", reserved_share=0.1),
    TierConfig("free", wait_budget_s=0.15, start_budget_s=0.75),
)


def check_tiers(tiers: Iterable[TierConfig]) -> None:
    """Raises ConfigError unless the tiers can serve together."""
    names = [tier.name for tier in tiers]
    require(0 < len(names) <= 8, "tiers", names, "1 to 8 tiers")
    require(len(set(names)) == len(names), "tiers", names, "all different")


class KeyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An API key: whose it is, and the SHA-256 digest of it. The key itself is never stored (DESIGN D8)."""

    tenant: str
    """Its owner: fairness, shared prefixes and idempotency are a tenant's, over all of its keys."""
    tier: str
    sha256: str
    """64 hexadecimal digits."""
    id: str | None = None
    """What limits and usage know the key by, the same after a rotation; by itself `key_` and the digest's first 12 digits."""
    is_operator: bool = False
    """Whether it opens the operator's routes."""
    requests_per_minute: int | None = None
    """Its own limit in place of its tier's; likewise the next."""
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        require(_is_name(self.tenant), "tenant of a key", self.tenant, "1 to 64 of A-Za-z0-9._-")
        # What stands in a digest's place by mistake may be the key itself: it is not repeated.
        shown = f"{len(self.sha256)} characters"
        require(bool(re.fullmatch(r"[0-9a-f]{64}", self.sha256)), f"sha256 of {self.tenant}'s key", shown, "64 hex digits")
        require(self.id is None or _is_name(self.id), f"id of {self.tenant}'s key", self.id, "1 to 64 of A-Za-z0-9._-")
        _require_limit(f"requests_per_minute of {self.tenant}'s key", self.requests_per_minute)
        _require_limit(f"tokens_per_minute of {self.tenant}'s key", self.tokens_per_minute)

    @property
    def key_id(self) -> str:
        return self.id if self.id is not None else f"key_{self.sha256[:12]}"

    def limit(self, tier: TierConfig) -> RateLimit:
        """Its own, or its tier's where it has none."""
        return RateLimit(
            tier.requests_per_minute if self.requests_per_minute is None else self.requests_per_minute,
            tier.tokens_per_minute if self.tokens_per_minute is None else self.tokens_per_minute,
        )


def check_keys(keys: Iterable[KeyConfig]) -> None:
    """Raises ConfigError unless each is a key of its own: limits and usage know it by its id."""
    ids: set[str] = set()
    digests: set[str] = set()
    for key in keys:
        if key.key_id in ids or key.sha256 in digests:
            raise ConfigError(f"the key {key.key_id!r} of {key.tenant!r} is configured twice")
        ids.add(key.key_id)
        digests.add(key.sha256)


def _is_name(text: str) -> bool:
    return bool(re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text))
