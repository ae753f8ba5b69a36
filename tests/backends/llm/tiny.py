"""Tiny random models of every family that the engine runs, as folders that `save_pretrained` wrote.

Exactness is tested against transformers, and a real checkpoint of each family would be gigabytes. These have the shape of the
real ones (grouped heads, several layers) with weights wide enough that greedy texts vary: with the default deviation of 0.02
every answer repeats one token, and a test of the cache would pass with a cache that is never read.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 304
CONTEXT_LEN = 1024
_WEIGHT_STD = 0.2
"""With 64 inputs a product has a deviation of 1.6 times its input's: attention is far from uniform, logits are far apart."""

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT_LEN,
    "initializer_range": _WEIGHT_STD,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
_YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 256}


class Tiny(NamedTuple):
    path: Path
    """A Hugging Face folder: config.json and safetensors."""
    model: PreTrainedModel
    """The same weights in transformers, float32, in eval mode, with eager attention."""


def _llama(**changes: Any) -> PreTrainedModel:
    return LlamaForCausalLM(LlamaConfig(**_SHAPE | changes))


def _mistral() -> PreTrainedModel:
    return MistralForCausalLM(MistralConfig(**_SHAPE, head_dim=32, sliding_window=None, tie_word_embeddings=False))


def _qwen2() -> PreTrainedModel:
    return Qwen2ForCausalLM(Qwen2Config(**_SHAPE, tie_word_embeddings=True))


def _qwen3() -> PreTrainedModel:
    return Qwen3ForCausalLM(Qwen3Config(**_SHAPE, head_dim=32, tie_word_embeddings=True))


_FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: _llama(tie_word_embeddings=True),
    "llama-untied": lambda: _llama(tie_word_embeddings=False),
    "llama-rope3": lambda: _llama(tie_word_embeddings=True, rope_parameters=_LLAMA3_ROPE),
    "llama-yarn": lambda: _llama(tie_word_embeddings=True, rope_parameters=_YARN_ROPE),
    "llama-biases": lambda: _llama(tie_word_embeddings=False, attention_bias=True, mlp_bias=True),
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
}

FAMILIES = tuple(_FAMILIES)


def make_tiny(family: str, folder: Path, *, seed: int = 0, shard_size: str = "1GB") -> Tiny:
    """Builds the model of that name (one of FAMILIES) and saves it into `folder`, in shards of `shard_size` at most.

    Norms and biases are random as well, since transformers starts them at 1 and 0, where forgetting them would go unseen."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = _FAMILIES[family]()
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.data.normal_(mean=1.0 if "norm" in name else 0.0, std=_WEIGHT_STD)
    model.set_attn_implementation("eager")
    model.train(False)
    model.requires_grad_(False)
    model.save_pretrained(folder, max_shard_size=shard_size)
    return Tiny(folder, model)
