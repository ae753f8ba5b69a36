"""Every setting, one frozen struct for each component, checked at birth.

A component receives its own slice and never the whole. Whoever builds a struct with a value that cannot work gets a
`ConfigError` that names the setting, its value and what would do, at start and never on the first request.
"""

from batcher.config.choices import (
    Device,
    Dtype,
    Isolation,
    KvMode,
    LimitMode,
    Mode,
    OnFailure,
    PolicyName,
    ReplicaPolicy,
    Switch,
    TokenEstimate,
)
from batcher.config.dispatch import MAX_WORKERS, DispatchConfig
from batcher.config.front import MAX_KEEP_S, IdempotencyConfig, LimitsConfig, SafetyConfig, UsageConfig, without_password
from batcher.config.http import HttpConfig
from batcher.config.replica import MAX_BLOCKS, MIN_BLOCKS, ReplicaConfig
from batcher.config.tiers import DEFAULT_TIERS, NO_LIMIT, KeyConfig, RateLimit, TierConfig, check_keys, check_tiers

__all__ = [
    "DEFAULT_TIERS",
    "MAX_BLOCKS",
    "MAX_KEEP_S",
    "MAX_WORKERS",
    "MIN_BLOCKS",
    "NO_LIMIT",
    "Device",
    "DispatchConfig",
    "Dtype",
    "HttpConfig",
    "IdempotencyConfig",
    "Isolation",
    "KeyConfig",
    "KvMode",
    "LimitMode",
    "LimitsConfig",
    "Mode",
    "OnFailure",
    "PolicyName",
    "RateLimit",
    "ReplicaConfig",
    "ReplicaPolicy",
    "SafetyConfig",
    "Switch",
    "TierConfig",
    "TokenEstimate",
    "UsageConfig",
    "check_keys",
    "check_tiers",
    "without_password",
]
