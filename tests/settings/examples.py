"""A working value for every setting, so that a setting which is added is tested in each way without another line."""

from pathlib import Path
from typing import Any

from batcher.config import Device, Dtype, Isolation, KvMode, LimitMode, Mode, OnFailure, PolicyName, Switch, TokenEstimate
from batcher.settings import Settings

EXAMPLES: dict[str, Any] = {
    "mode": Mode.CONTINUOUS,
    "backend": "examples.embedding:Embedding",
    "isolation": Isolation.PROCESS,
    "policy": PolicyName.STATIC,
    "host": "localhost",
    "simulated_poison": "BOOM",
    "wait_budget": 0.5,
    "log_level": "debug",
    "max_batch_size": 7,
    "max_waiting": 300,
    "model": "simulated",
    "dtype": Dtype.FLOAT32,
    "device": Device.CUDA,
    "replicas": 1,
    "kv": KvMode.CONTIGUOUS,
    "prefix_cache": Switch.OFF,
    "kv_blocks": 100,
    "kv_memory": 0.5,
    "max_model_len": 1000,
    "simulated_answer": "repeat",
    "keys_file": Path("keys.toml"),
    "open_metrics": Switch.ON,
    "token_estimate": TokenEstimate.EXPECTED,
    "redis": "redis://localhost:6379/1",
    "redis_failure": OnFailure.OPEN,
    "limit_mode": LimitMode.LEASE,
    "safety_rules": Path("rules.toml"),
    "safety_checker": "m:a",
    "safety_failure": OnFailure.OPEN,
    "idempotency_keep": 3600.0,
    "usage_dir": Path("usage"),
    "usage_failure": OnFailure.CLOSED,
    "request_log": Switch.OFF,
    "tracing": Switch.ON,
}
"""A value of a setting. Other numbers get one more than their default, or its double."""

CONTINUOUS = {"mode": "continuous"}
COMPANIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("model", "dtype", "device", "replicas", "kv", "prefill_chunk", "prefix_cache"), CONTINUOUS),
    **dict.fromkeys(("prefill_stretch", "max_num_seqs", "kv_blocks", "kv_memory", "max_model_len"), CONTINUOUS),
    "simulated_time_scale": {**CONTINUOUS, "model": "simulated"},
    "simulated_answer": {**CONTINUOUS, "model": "simulated"},
    "limit_mode": {"redis": "redis://localhost"},
}
"""What must be set for another setting to have an effect."""

STRUCTURED = ("tiers", "keys")
"""Tables of the file: no flag and no variable has them."""


def example(name: str) -> Any:
    if name in EXAMPLES:
        return EXAMPLES[name]
    default = getattr(Settings(), name)
    return default + 1 if isinstance(default, int) else default * 2 or 0.25


NAMES = [name for name in Settings.__struct_fields__ if name not in STRUCTURED]


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "batcher.toml"
    file.write_text(text)
    return file


def toml(name: str, value: Any) -> str:
    return f"{name} = {value}\n" if isinstance(value, int | float) else f'{name} = "{value}"\n'
