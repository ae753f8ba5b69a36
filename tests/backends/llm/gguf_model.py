"""A tiny model of `tiny.py` written as a GGUF file, as ggml's converter does it: other names, Llama's heads interleaved."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import quantize

from backends.llm.config import ModelConfig
from tests.backends.llm.vocab import add_vocabulary, finish, train

_ARCHITECTURES = {"llama": MODEL_ARCH.LLAMA, "qwen2": MODEL_ARCH.QWEN2, "qwen3": MODEL_ARCH.QWEN3}


def write_gguf(
    path: Path,
    config: ModelConfig,
    weights: dict[str, torch.Tensor],
    *,
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
    add: Callable[[GGUFWriter], None] = lambda writer: None,
) -> None:
    """With the vocabulary of `vocab.train`, and what `add` adds. Quantises matrices only; their rows must be whole blocks."""
    writer = GGUFWriter(path, config.family)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.context_len)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    add_vocabulary(writer, train())
    add(writer)
    names = get_tensor_name_map(_ARCHITECTURES[config.family], config.num_layers)
    for name, tensor in weights.items():
        values: npt.NDArray[np.float32] = tensor.float().numpy()
        if config.family == "llama" and (".q_proj." in name or ".k_proj." in name):
            values = _interleave(values, config.num_heads if ".q_proj." in name else config.num_kv_heads)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None
        if values.ndim == 2:
            writer.add_tensor(gguf_name, quantize(values, quantization), raw_dtype=quantization)
        else:
            writer.add_tensor(gguf_name, values)
    finish(writer)


def _interleave(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Row h * D + half * D/2 + pair goes to h * D + 2 * pair + half."""
    head_dim = values.shape[0] // num_heads
    out = np.empty_like(values)
    for row in range(values.shape[0]):
        head, inside = divmod(row, head_dim)
        half, pair = divmod(inside, head_dim // 2)
        out[head * head_dim + 2 * pair + half] = values[row]
    return out
