"""What a model is made of, read from whichever file says so: a Hugging Face config.json or a GGUF file's metadata.

transformers' own configuration classes were refused: they pass over what they do not understand, and a checkpoint that needs
more than this engine computes must be refused when it is named, not answer nonsense. So whatever is read here is checked, and
whatever would change the arithmetic and is not supported is a ConfigError that says what it is.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from backends.llm.gguf_file import GgufFile
from backends.llm.ops import Rope
from backends.llm.rope import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
    inverse_frequencies,
    make_tables,
    yarn_attention_factor,
)
from batcher.errors import ConfigError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
_HEAD_DIM_OF_QWEN3 = 128
_MISTRAL_WINDOW = 4096
"""Where a Mistral file names no window it has this one; newer files say null."""

_GGUF_SCALING = frozenset(
    f"rope.scaling.{name}" for name in ("type", "factor", "original_context_length", "attn_factor", "finetuned")
)


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One decoder-only model: RMS norms, rotary positions, grouped heads, a SwiGLU inside each layer."""

    family: str
    """One of FAMILIES. A Mistral model in a GGUF file calls itself llama."""
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    """Rows of the embedding, which may be more than the tokenizer has ids."""
    context_len: int
    """Positions the model may use; no more than `sliding_window`."""
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None = None
    has_qkv_bias: bool = False
    has_o_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    """A norm of each query's and key's head before rotation (Qwen3)."""
    is_tied: bool = False
    """Whether the embedding is the output matrix, too."""
    sliding_window: int | None = None
    """None unless it is smaller than the context that the file speaks of. The engine has no window: `context_len` is cut to it
    instead, since as long as a text fits into the window, attention with and without one is the same."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value <= 0:
                raise ConfigError(f"{name} must be above 0, not {value}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(f"num_heads {self.num_heads} is no multiple of num_kv_heads {self.num_kv_heads}")
        if self.head_dim % 2:
            raise ConfigError(f"head_dim {self.head_dim} is odd, and rotary positions turn pairs")


def rope_tables(config: ModelConfig, num_positions: int) -> Rope:
    """The rotary tables of positions 0 to `num_positions` - 1, equal to transformers' bit for bit on the same device."""
    scaling = config.rope_scaling
    attention_factor = scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0
    return make_tables(inverse_frequencies(config.head_dim, config.rope_theta, scaling), attention_factor, num_positions)


def read_config(path: Path) -> ModelConfig:
    """From a Hugging Face folder or a .gguf file. Raises ConfigError for what is not there, not whole or not supported."""
    if path.is_file():
        return config_from_gguf(GgufFile(path))
    try:
        values = msgspec.json.decode((path / "config.json").read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"{path / 'config.json'} cannot be read: {error}") from error
    return config_from_hf(values)


def config_from_hf(values: Mapping[str, Any]) -> ModelConfig:
    """From the values of a config.json, of transformers 5 or older. Raises ConfigError."""
    family = values.get("model_type")
    if family not in FAMILIES:
        raise ConfigError(f"model_type {family!r} is not supported; these are: {', '.join(FAMILIES)}")
    _refuse_others(values)
    num_heads = _integer(values, "num_attention_heads")
    context_len = _integer(values, "max_position_embeddings")
    window = _hf_window(values, family)
    rope = _hf_rope_values(values)
    has_attention_bias = bool(values.get("attention_bias")) and family in ("llama", "qwen3")
    return _build(
        context_len,
        window,
        _hf_scaling(rope, context_len),
        family=family,
        hidden_size=_integer(values, "hidden_size"),
        num_layers=_integer(values, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=values.get("num_key_value_heads") or num_heads,
        head_dim=values.get("head_dim")
        or (_HEAD_DIM_OF_QWEN3 if family == "qwen3" else _integer(values, "hidden_size") // num_heads),
        intermediate_size=_integer(values, "intermediate_size"),
        vocab_size=_integer(values, "vocab_size"),
        rms_norm_eps=values.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta") or 10_000.0),
        has_qkv_bias=has_attention_bias or family == "qwen2",
        has_o_bias=has_attention_bias,
        has_mlp_bias=bool(values.get("mlp_bias")) and family == "llama",
        has_qk_norm=family == "qwen3",
        is_tied=bool(values.get("tie_word_embeddings")),
    )


def config_from_gguf(file: GgufFile) -> ModelConfig:
    """From a GGUF file's metadata and the names of its tensors. Raises ConfigError."""
    family = file.metadata.get("general.architecture")
    if family not in ("llama", "qwen2", "qwen3"):
        raise ConfigError(f"{file.path}: architecture {family!r} is not supported; these are: llama, qwen2, qwen3")
    values = {key.removeprefix(f"{family}."): value for key, value in file.metadata.items() if key.startswith(f"{family}.")}
    if values.get("expert_count"):
        raise ConfigError(f"{file.path}: expert_count {values['expert_count']}: mixtures of experts are not supported")
    num_heads, hidden_size = _integer(values, "attention.head_count"), _integer(values, "embedding_length")
    head_dim = values.get("attention.key_length") or hidden_size // num_heads
    for name in ("attention.value_length", "rope.dimension_count"):
        if values.get(name, head_dim) != head_dim:
            raise ConfigError(f"{file.path}: {name} {values[name]} that differs from the head size {head_dim} is not supported")
    return _build(
        _integer(values, "context_length"),
        values.get("attention.sliding_window") or None,
        _gguf_scaling(file, values),
        family=family,
        hidden_size=hidden_size,
        num_layers=_integer(values, "block_count"),
        num_heads=num_heads,
        num_kv_heads=values.get("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        intermediate_size=_integer(values, "feed_forward_length"),
        vocab_size=file.tensors["token_embd.weight"].shape[0] if "token_embd.weight" in file.tensors else 0,
        rms_norm_eps=_real(values, "attention.layer_norm_rms_epsilon"),
        rope_theta=values.get("rope.freq_base", 10_000.0),
        has_qkv_bias="blk.0.attn_q.bias" in file.tensors,
        has_o_bias="blk.0.attn_output.bias" in file.tensors,
        has_mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        has_qk_norm=family == "qwen3",
        is_tied="output.weight" not in file.tensors,
    )


def _build(context_len: int, window: int | None, scaling: RopeScaling | None, **fields: Any) -> ModelConfig:
    """Cuts the context to the window, and checks every type: a list, say, is how files tell that layers differ."""
    if window is not None and window >= context_len:
        window = None
    fields |= {"context_len": context_len if window is None else window, "sliding_window": window}
    try:
        return msgspec.structs.replace(msgspec.convert(fields, ModelConfig), rope_scaling=scaling)
    except msgspec.ValidationError as error:
        raise ConfigError(f"the model's configuration is not supported: {error}") from error


def _integer(values: Mapping[str, Any], name: str) -> int:
    value = values.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"{name} must be a whole number above 0, not {value!r}")
    return value


def _real(values: Mapping[str, Any], name: str) -> float:
    value = values.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"{name} must be a number above 0, not {value!r}")
    return float(value)


def _refuse_others(values: Mapping[str, Any]) -> None:
    """What a config.json may ask for that would change the arithmetic."""
    if (activation := values.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise ConfigError(f"hidden_act {activation!r} is not supported; only silu is")
    if quantization := values.get("quantization_config"):
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise ConfigError(f"quantization_config {method!r} is not supported: give a folder of plain weights or a GGUF file")


def _hf_window(values: Mapping[str, Any], family: str) -> int | None:
    if family == "mistral":
        return values.get("sliding_window", _MISTRAL_WINDOW) or None
    if family.startswith("qwen") and values.get("use_sliding_window"):
        return values.get("sliding_window", _MISTRAL_WINDOW) or None
    return None


def _hf_rope_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """One table, wherever the file has it: `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`."""
    rope = {"rope_theta": values.get("rope_theta")} | dict(values.get("rope_scaling") or {})
    rope |= dict(values.get("rope_parameters") or {})
    if nested := [name for name, value in rope.items() if isinstance(value, dict)]:
        raise ConfigError(f"rope_parameters that differ by layer type ({', '.join(nested)}) are not supported")
    share = rope.get("partial_rotary_factor", values.get("partial_rotary_factor", 1.0))
    if share not in (None, 1.0):
        raise ConfigError(f"partial_rotary_factor {share} is not supported: every dimension of a head is rotated")
    return rope


def _hf_scaling(rope: Mapping[str, Any], context_len: int) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    original_context_len = rope.get("original_max_position_embeddings") or context_len
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(_real(rope, "factor"))
        case "llama3":
            low, high = (_real(rope, f"{name}_freq_factor") for name in ("low", "high"))
            return Llama3Scaling(_real(rope, "factor"), low, high, original_context_len)
        case "yarn":
            return _hf_yarn(rope, context_len, original_context_len)
    raise ConfigError(f"rope_type {kind!r} is not supported; these are: default, linear, llama3, yarn")


def _hf_yarn(rope: Mapping[str, Any], context_len: int, original_context_len: int) -> YarnScaling:
    factor = rope.get("factor") or context_len / original_context_len
    attention_factor = rope.get("attention_factor")
    if attention_factor is None:
        attention_factor = yarn_attention_factor(factor)
        if rope.get("mscale") and rope.get("mscale_all_dim"):
            raise ConfigError("rope scaling yarn with mscale is not supported")
    return YarnScaling(
        factor,
        original_context_len,
        attention_factor,
        beta_fast=rope.get("beta_fast") or 32.0,
        beta_slow=rope.get("beta_slow") or 1.0,
        is_truncated=rope.get("truncate", True),
    )


def _gguf_scaling(file: GgufFile, values: Mapping[str, Any]) -> RopeScaling | None:
    if others := [name for name in values if name.startswith("rope.scaling.") and name not in _GGUF_SCALING]:
        raise ConfigError(f"{file.path}: {', '.join(others)} is not supported")
    kind = values.get("rope.scaling.type", "linear")  # As ggml reads it where there is only a factor.
    if kind not in ("none", "linear", "yarn"):
        raise ConfigError(f"{file.path}: rope.scaling.type {kind!r} is not supported; these are: none, linear, yarn")
    factor = values.get("rope.scaling.factor", values.get("rope.scale_linear")) or 1.0
    is_scaled = kind != "none" and factor != 1.0
    if "rope_freqs.weight" in file.tensors:
        if is_scaled:
            raise ConfigError(f"{file.path}: rope_freqs.weight together with rope.scaling.factor {factor} is not supported")
        return DivisorScaling(tuple(file.read("rope_freqs.weight").tolist()))
    if not is_scaled:
        return None
    if kind == "linear":
        return LinearScaling(factor)
    original_context_len = _integer(values, "rope.scaling.original_context_length")
    return YarnScaling(
        factor, original_context_len, values.get("rope.scaling.attn_factor", 1.0) * yarn_attention_factor(factor)
    )
