"""What `batcher serve --help` says of a setting beside its words: which mode it is for, and what it is by itself.

Both are taken from where they are decided, for a default that is written out a second time is wrong sooner or later.
"""

from enum import StrEnum

import msgspec

from batcher.settings.fields import MAX_WAITING_REQUESTS, MAX_WAITING_SEQUENCES, Settings
from batcher.settings.front import FrontSettings
from batcher.settings.modes import BATCH_ONLY, CONTINUOUS_ONLY, GENERATE_DEFAULTS, MODEL, SIMULATED_BACKEND, SIMULATED_MODEL


class Panel(StrEnum):
    """The headings of the help, in its order."""

    BOTH = "Both modes"
    FRONT = "The front door (both modes)"
    BATCH = "Batch mode"
    CONTINUOUS = "Continuous mode"
    SIMULATED_GPU = "Simulated GPU (batch mode)"
    SIMULATED_MODEL = "Simulated model"


_DEPENDS = {
    "policy": "paced in batch mode, continuous in continuous mode",
    "max_waiting": f"{MAX_WAITING_REQUESTS} in batch mode, {MAX_WAITING_SEQUENCES} in continuous mode",
    "kv_blocks": "what the device has to spare",
    "kv_memory": "what the device has to spare",
    "max_model_len": "as many as the model and the blocks hold",
    "simulated_poison": "none",
    "wait_budget": "as the tiers say: 0.2 for paid in batch mode, 1 in continuous mode",
    "keys_file": "the development keys",
    "redis": "each process counts by itself",
    "safety_rules": "none",
    "safety_checker": "none",
    "usage_dir": "no log",
}
"""Of settings that are None by themselves."""


def panel_of(name: str) -> Panel:
    if name in FrontSettings.__struct_fields__:
        return Panel.FRONT
    if name in BATCH_ONLY:
        return Panel.BATCH
    if name in CONTINUOUS_ONLY or name in MODEL:
        return Panel.CONTINUOUS
    if name in SIMULATED_BACKEND:
        return Panel.SIMULATED_GPU
    return Panel.SIMULATED_MODEL if name in SIMULATED_MODEL else Panel.BOTH


def default_of(name: str) -> str:
    """In words, with what it is for the backend `generate` where that differs."""
    defaults = {field.name: field.default for field in msgspec.structs.fields(Settings)}
    default = _DEPENDS[name] if defaults[name] is None else _shown(defaults[name])
    own = GENERATE_DEFAULTS.get(name)
    return default if own is None else f"{default}; for the backend generate {_shown(own)}"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
