"""Which settings belong to which mode: one that would have no effect is refused, for whoever set it expects one.

A setting counts as set if it is not what it would be by itself.
"""

from collections.abc import Iterator

import msgspec

from batcher.config import Mode, PolicyName, ReplicaPolicy, TierConfig
from batcher.config.checks import require_between
from batcher.errors import ConfigError

SIMULATED = "simulated"
"""The name of a backend of batch mode, and of a model."""
GENERATE = "generate"
"""The backend of batch mode that generates with a model."""

GENERATE_DEFAULTS: dict[str, object] = {
    "workers": 1,
    "service_time": 10.0,
    "hang_factor": 12.0,
    "first_batch_timeout": 120.0,
    "request_timeout": 120.0,
}
"""What is sensible when a batch takes as long as its longest answer: seconds, and minutes before it counts as hung."""

MODEL = ("model", "dtype", "device")
"""For continuous mode, and for batch mode with the backend `generate`."""
CONTINUOUS_ONLY = (
    *("replicas", "kv", "prefill_chunk", "prefill_stretch", "prefix_cache"),
    *("max_num_seqs", "kv_blocks", "kv_memory", "max_model_len"),
)
BATCH_ONLY = (
    *("backend", "workers", "isolation", "max_batch_size", "batch_timeout", "service_time", "max_waiting_bytes"),
    *("max_attempts", "hang_factor", "first_batch_timeout", "start_timeout", "retry_ratio", "retry_reserve"),
    *("restart_backoff", "breaker_threshold", "breaker_rest"),
)
SIMULATED_BACKEND = tuple(f"simulated_{name}" for name in ("jitter", "poison", "raise_rate", "hang_rate", "die_rate", "seed"))
SIMULATED_MODEL = ("simulated_time_scale", "simulated_answer")


def foreign(mode: Mode, backend: str, model: str) -> Iterator[tuple[str, str]]:
    """(setting, what it is for) of all that has no effect here."""
    is_continuous = mode is Mode.CONTINUOUS
    has_model = is_continuous or backend == GENERATE
    if is_continuous:
        yield from ((name, "batch mode") for name in BATCH_ONLY)
    else:
        yield from ((name, "continuous mode") for name in CONTINUOUS_ONLY)
    if not has_model:
        yield from ((name, "continuous mode and the backend 'generate'") for name in MODEL)
    if is_continuous or backend != SIMULATED:
        yield from ((name, "the simulated backend of batch mode") for name in SIMULATED_BACKEND)
    if not has_model or model != SIMULATED:
        yield from ((name, "the simulated model") for name in SIMULATED_MODEL)


def scaled(tiers: tuple[TierConfig, ...], wait_budget_s: float, mode: Mode) -> tuple[TierConfig, ...]:
    """With this budget for the first tier in this mode, and the others' in proportion. Raises ConfigError."""
    require_between("wait_budget", wait_budget_s, 0.0, 3600.0, "seconds")
    field = "start_budget_s" if mode is Mode.CONTINUOUS else "wait_budget_s"
    first_s = getattr(tiers[0], field)
    if first_s == 0.0:
        raise ConfigError(f"wait_budget scales the tiers' {field} with the first one's, which is 0; set them by themselves")
    factor = wait_budget_s / first_s
    return tuple(msgspec.structs.replace(tier, **{field: getattr(tier, field) * factor}) for tier in tiers)


def batch_policy(name: str | None) -> PolicyName:
    """Raises ConfigError."""
    return PolicyName.PACED if name is None else PolicyName(_one_of(name, Mode.BATCH, [*PolicyName]))


def replica_policy(name: str | None) -> ReplicaPolicy:
    """Raises ConfigError."""
    return ReplicaPolicy.CONTINUOUS if name is None else ReplicaPolicy(_one_of(name, Mode.CONTINUOUS, [*ReplicaPolicy]))


def _one_of(name: str, mode: Mode, known: list[PolicyName] | list[ReplicaPolicy]) -> str:
    if name not in known:
        raise ConfigError(f"policy is {str(name)!r}; in {mode} mode it must be one of {', '.join(known)}")
    return name
