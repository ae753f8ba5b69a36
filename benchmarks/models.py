"""The models that are measured: those that are served, and Llamas of random weights where no checkpoint can be had.

What a step costs depends on the shapes and not on the values, so random weights measure an 8B model on a machine without
downloads; texts mean nothing, and none is looked at.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor

from backends.base import Model, ModelInfo, StepBackend, Tokenizer
from backends.llm.config import ModelConfig, read_config
from backends.llm.loading import DTYPES, create_ops, find_device, kv_bytes_per_token_of
from backends.llm.runner import TorchBackend
from backends.llm.weights import expected_shapes, find_model, load_weights
from backends.models import SIMULATED, create_model
from batcher.config import Device, Dtype
from batcher.types import Message

_WEIGHT_STD = 0.02
_SEED = 1
_STOP_ID = 2


class RandomLlama(StrEnum):
    """Shapes of published Llamas."""

    TINY = "tiny"
    """For trying a command out in a second."""
    SMALL = "135m"
    """SmolLM2-135M."""
    LARGE = "1b"
    """Llama 3.2 1B."""
    HUGE = "8b"
    """Llama 3.1 8B."""


def _llama(
    hidden: int, layers: int, heads: int, kv_heads: int, inner: int, vocab: int, *, head_dim: int, is_tied: bool
) -> ModelConfig:
    return ModelConfig(
        family="llama",
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate_size=inner,
        vocab_size=vocab,
        context_len=8192,
        rms_norm_eps=1e-5,
        rope_theta=100_000.0,
        is_tied=is_tied,
    )


SHAPES = {
    RandomLlama.TINY: _llama(64, 2, 4, 2, 128, 304, head_dim=16, is_tied=True),
    RandomLlama.SMALL: _llama(576, 30, 9, 3, 1536, 49152, head_dim=64, is_tied=True),
    RandomLlama.LARGE: _llama(2048, 16, 32, 8, 8192, 128256, head_dim=64, is_tied=True),
    RandomLlama.HUGE: _llama(4096, 32, 32, 8, 14336, 128256, head_dim=128, is_tied=False),
}


class Subject(NamedTuple):
    """A model and what others need to be measured beside it. The simulated one has no weights."""

    model: Model
    dtype: torch.dtype
    device: torch.device
    config: ModelConfig | None
    load_weights: Callable[[], dict[str, Tensor]] | None
    """On the device; each call reads or draws them anew, and gets the same."""


def open_subject(name: str, *, dtype: Dtype, device: Device, random_llama: RandomLlama | None) -> Subject:
    """Reads no weights yet. Raises ConfigError as `create_model`, and where CUDA is asked for and is not there."""
    place = find_device(device)
    torch_dtype = DTYPES[dtype]
    if random_llama is not None:
        config = SHAPES[random_llama]
        return Subject(
            RandomModel(random_llama.value, config, torch_dtype, place),
            torch_dtype,
            place,
            config,
            lambda: random_weights(config, torch_dtype, place),
        )
    if name == SIMULATED:
        return Subject(create_model(name, settings={"time_scale": 0.0}), torch_dtype, place, None, None)
    path = find_model(name)
    config = read_config(path)

    def load() -> dict[str, Tensor]:
        return {key: weight.to(place) for key, weight in load_weights(path, config, torch_dtype).items()}

    return Subject(create_model(name, dtype=dtype.value, device=place.type), torch_dtype, place, config, load)


def random_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """The same for the same shape, dtype and kind of device."""
    source = torch.Generator(device).manual_seed(_SEED)
    weights = {}
    for name, shape in expected_shapes(config).items():
        weight = torch.empty(shape, dtype=dtype, device=device)
        weights[name] = weight.fill_(1.0) if len(shape) == 1 else weight.normal_(std=_WEIGHT_STD, generator=source)
    return weights


class RandomModel:
    """A Model of random weights. Its tokens are letters, so that making text costs what it costs."""

    def __init__(self, name: str, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> None:
        self.tokenizer: Tokenizer = LetterTokenizer(config.vocab_size)
        kv_bytes_per_token = kv_bytes_per_token_of(config, dtype)
        self.info = ModelInfo(
            id=name,
            version=name,
            context_len=config.context_len,
            vocab_size=config.vocab_size,
            kv_bytes_per_token=kv_bytes_per_token,
            kv_bytes=kv_bytes_per_token * config.context_len,
        )
        self._config, self._dtype, self._device = config, dtype, device

    def make_backend(self) -> StepBackend:
        return TorchBackend(
            self._config,
            lambda: random_weights(self._config, self._dtype, self._device),
            ops=create_ops(self._device),
            device=self._device,
        )


class LetterTokenizer:
    """A Tokenizer without a vocabulary: any id is a letter."""

    stop_ids = frozenset((_STOP_ID,))

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def encode(self, text: str) -> list[int]:
        return [byte % self.vocab_size for byte in text.encode()]

    def render(self, messages: Sequence[Message]) -> list[int]:
        return [token for message in messages for token in self.encode(message.content)]

    def token_bytes(self, token: int) -> bytes:
        return b"abcdefghijklmnopqrstuvwxyz"[token % 26 : token % 26 + 1]
