"""What a figure was measured on: a number without its machine cannot be compared with another."""

import os
import platform
from pathlib import Path

import torch

_CPUINFO = Path("/proc/cpuinfo")
_FEATURES = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Instructions that decide how fast a CPU multiplies 16-bit numbers."""


def describe(device: torch.device) -> str:
    """CPU, cores, threads and torch in one line, and the GPU in a second one where it is what is measured."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    model, features = read_cpu(_CPUINFO.read_text() if _CPUINFO.exists() else "")
    lines = [
        f"machine   {model or platform.processor() or platform.machine()}, {cores} cores, {torch.get_num_threads()} threads, "
        f"{' '.join(features) or 'no vector features known'}; torch {torch.__version__}, Python {platform.python_version()}"
    ]
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        lines.append(f"          {facts.name}, {facts.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}")
    return "\n".join(lines)


def read_cpu(cpuinfo: str) -> tuple[str, list[str]]:
    """The model's name and the features of note, from the text of /proc/cpuinfo; empty where it does not say."""
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    flags = set(fields.get("flags", "").split())
    return fields.get("model name", ""), [feature for feature in _FEATURES if feature in flags]
