"""The settings of the stages that every request passes, in either mode, and the slices of them."""

from pathlib import Path

import msgspec

from batcher.config import (
    IdempotencyConfig,
    LimitMode,
    LimitsConfig,
    OnFailure,
    SafetyConfig,
    Switch,
    TokenEstimate,
    UsageConfig,
)


class FrontSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What each means stands in `batcher.config.front`. Times are in seconds."""

    keys_file: Path | None = None
    """As `batcher keys` writes it; read again when it changes."""
    open_metrics: Switch = Switch.OFF
    """Whether /metrics and /load are open to everybody; else they need the operator's key."""
    token_estimate: TokenEstimate = TokenEstimate.MAX_TOKENS
    redis: str | None = None
    """redis://HOST:PORT/DB: limits and kept answers are shared there with other gateways."""
    redis_timeout: float = 0.5
    redis_failure: OnFailure = OnFailure.CLOSED
    limit_mode: LimitMode = LimitMode.SHARED
    max_limited_keys: int = 100_000
    safety_rules: Path | None = None
    safety_checker: str | None = None
    safety_timeout: float = 1.0
    safety_failure: OnFailure = OnFailure.CLOSED
    idempotency_keep: float = 86_400.0
    idempotency_answers: int = 100_000
    idempotency_bytes: int = 256 * 2**20
    idempotency_wait: float = 10.0
    usage_dir: Path | None = None
    usage_segment_bytes: int = 64 * 2**20
    usage_failure: OnFailure = OnFailure.OPEN
    request_log: Switch = Switch.ON
    """One line for each request."""
    tracing: Switch = Switch.OFF
    """Spans of OpenTelemetry for each request, sent as the environment's OTEL_* variables say."""

    def limits(self) -> LimitsConfig:
        return LimitsConfig(
            token_estimate=self.token_estimate,
            redis_url=self.redis,
            mode=self.limit_mode,
            on_redis_failure=self.redis_failure,
            redis_timeout_s=self.redis_timeout,
            max_keys=self.max_limited_keys,
        )

    def safety(self) -> SafetyConfig:
        return SafetyConfig(
            rules=self.safety_rules,
            checker=self.safety_checker,
            timeout_s=self.safety_timeout,
            on_failure=self.safety_failure,
        )

    def idempotency(self) -> IdempotencyConfig:
        return IdempotencyConfig(
            redis_url=self.redis,
            redis_timeout_s=self.redis_timeout,
            keep_s=self.idempotency_keep,
            max_answers=self.idempotency_answers,
            max_bytes=self.idempotency_bytes,
            wait_s=self.idempotency_wait,
        )

    def usage(self) -> UsageConfig:
        return UsageConfig(directory=self.usage_dir, segment_bytes=self.usage_segment_bytes, on_failure=self.usage_failure)
