"""The front door: limits, safety checks, idempotent requests and usage, the stages that every request passes in either mode,
before and after its answer is computed. Each gets its own struct and sees no other's."""

import re
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from batcher.config.checks import require, require_between
from batcher.config.choices import LimitMode, OnFailure, TokenEstimate

MAX_KEEP_S = 86_400.0
"""The longest that an Idempotency-Key may mean the same question. Usage looks no further for records of one question: an answer
promised for longer could be billed twice after a crash."""

_DATABASE = re.compile("/?|/[0-9]{1,9}")


def without_password(url: str) -> str:
    """The address as a log may show it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _require_redis(url: str | None, timeout_s: float) -> None:
    if url is not None:
        parts = urlsplit(url)
        # What the client cannot read as a number it leaves out, and then everything is in database 0.
        is_url = parts.scheme in ("redis", "rediss") and bool(parts.hostname) and bool(_DATABASE.fullmatch(parts.path))
        may_be_shown = not any(mark in url for mark in "@?")  # Else there may be a password in it.
        shown = url if may_be_shown else f"{parts.scheme}:..."
        require(is_url, "redis", shown, "redis://HOST:PORT/DB or rediss://..., with a number for DB")
    require_between("redis_timeout", timeout_s, 0.001, 60.0, "seconds")


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Rate limits: what is charged, and where it is counted."""

    token_estimate: TokenEstimate = TokenEstimate.MAX_TOKENS
    redis_url: str | None = None
    """redis://HOST:PORT/DB; None counts in this process."""
    mode: LimitMode = LimitMode.SHARED
    on_redis_failure: OnFailure = OnFailure.CLOSED
    """Closed: 529 until Redis is back. Open: each gateway keeps the limits by itself meanwhile."""
    redis_timeout_s: float = 0.5
    """What one answer of Redis may take before it counts as away."""
    max_keys: int = 100_000
    """Keys whose counters are held in this process; beyond it those longest idle are dropped: some 200 MB at most."""

    def __post_init__(self) -> None:
        _require_redis(self.redis_url, self.redis_timeout_s)
        require(
            self.mode is LimitMode.SHARED or self.redis_url is not None,
            "limit_mode",
            self.mode,
            "shared without redis: slices are leased from there",
        )
        require_between("max_limited_keys", self.max_keys, 1, 10_000_000)


class SafetyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Checks of what comes in and of what goes out (SPEC S3.6). Without rules and checker nothing is checked."""

    rules: Path | None = None
    """A file, as `batcher.service.safety.rules` describes it."""
    checker: str | None = None
    """MODULE:ATTR of what `batcher.service.safety.contract` describes."""
    timeout_s: float = 1.0
    """What one check of a plugged-in checker may take."""
    on_failure: OnFailure = OnFailure.CLOSED
    """What an exception or a timeout in a checker means for the request."""

    def __post_init__(self) -> None:
        require(self.checker is None or ":" in self.checker, "safety_checker", self.checker, "MODULE:ATTR")
        require_between("safety_timeout", self.timeout_s, 0.001, 60.0, "seconds")

    @property
    def is_on(self) -> bool:
        return self.rules is not None or self.checker is not None


class IdempotencyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Answers that are kept for callers who ask again with the same Idempotency-Key (SPEC S4)."""

    redis_url: str | None = None
    """Where gateways share them; None keeps them in this process."""
    redis_timeout_s: float = 0.5
    """What one answer of Redis may take before it counts as away."""
    keep_s: float = MAX_KEEP_S
    """How long an answer is given again. Usage bills one question once a day, however short this is."""
    max_answers: int = 100_000
    """Kept, by this process or by Redis for all gateways; the oldest go first."""
    max_bytes: int = 256 * 2**20
    """Of answers kept in this process; likewise. Without effect in Redis, where `max_answers` of 64 KiB each are the bound, as
    larger ones are not kept there: 6.5 GB at the very most, 200 MB of answers of the usual 2 kB."""
    wait_s: float = 10.0
    """How long the same request waits for an answer that is being made; then it is told to come back."""

    def __post_init__(self) -> None:
        _require_redis(self.redis_url, self.redis_timeout_s)
        require_between("idempotency_keep", self.keep_s, 1.0, MAX_KEEP_S, "seconds")
        require_between("idempotency_answers", self.max_answers, 1, 10_000_000)
        require_between("idempotency_bytes", self.max_bytes, 1_000_000, 2**40, "bytes")
        require_between("idempotency_wait", self.wait_s, 0.0, 3600.0, "seconds")


class UsageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The usage log (SPEC S5.3)."""

    directory: Path | None = None
    """None keeps no log."""
    segment_bytes: int = 64 * 2**20
    """A segment that has grown so large is followed by another one."""
    on_failure: OnFailure = OnFailure.OPEN
    """When a record cannot be written (the disk is full). Open: answers go on, and what is not recorded is counted and alarmed.
    Closed: an answer without its record is not given, and new requests are refused."""

    def __post_init__(self) -> None:
        require_between("usage_segment_bytes", self.segment_bytes, 4096, 2**40, "bytes")
