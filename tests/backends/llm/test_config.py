"""What a model's files say of it, old spellings and new, and what is refused rather than computed wrongly."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from gguf import GGUFWriter, RopeScalingType
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from backends.llm.config import ModelConfig, config_from_hf, read_config, rope_tables
from backends.llm.rope import (
    DivisorScaling,
    LinearScaling,
    Llama3Scaling,
    YarnScaling,
    inverse_frequencies,
    yarn_attention_factor,
)
from batcher.errors import ConfigError
from tests.backends.llm.gguf_model import write_gguf
from tests.backends.llm.tiny import Tiny, make_tiny

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 304,
    "max_position_embeddings": 4096,
}
MISTRAL = LLAMA | {"model_type": "mistral", "num_key_value_heads": 2}
QWEN2 = LLAMA | {"model_type": "qwen2", "num_key_value_heads": 2}
QWEN3 = LLAMA | {"model_type": "qwen3", "num_key_value_heads": 2}
LLAMA3_ROPE = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}


def test_what_an_old_file_leaves_out_has_the_familys_default() -> None:
    config = config_from_hf(LLAMA)
    assert (config.num_kv_heads, config.head_dim, config.rms_norm_eps, config.rope_theta) == (4, 16, 1e-6, 10_000.0)
    assert (config.rope_scaling, config.sliding_window, config.is_tied) == (None, None, False)
    assert config.context_len == 4096
    assert config_from_hf(QWEN3).head_dim == 128


@pytest.mark.parametrize(
    ("values", "biases"),
    [
        (LLAMA | {"attention_bias": True, "mlp_bias": True}, (True, True, True)),
        (MISTRAL, (False, False, False)),
        (QWEN2, (True, False, False)),
        (QWEN3, (False, False, False)),
        (QWEN3 | {"attention_bias": True}, (True, True, False)),
    ],
)
def test_each_family_has_its_own_biases(values: dict[str, Any], biases: tuple[bool, bool, bool]) -> None:
    config = config_from_hf(values)
    assert (config.has_qkv_bias, config.has_o_bias, config.has_mlp_bias) == biases
    assert config.has_qk_norm == (config.family == "qwen3")


def test_rope_is_read_where_old_and_new_files_have_it() -> None:
    old = config_from_hf(LLAMA | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3"} | LLAMA3_ROPE})
    new = config_from_hf(LLAMA | {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5} | LLAMA3_ROPE})
    assert old == new
    assert old.rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 512)
    oldest = config_from_hf(LLAMA | {"rope_scaling": {"type": "linear", "factor": 2}})
    assert oldest.rope_scaling == LinearScaling(2.0)


@pytest.mark.parametrize(
    ("values", "window", "context_len"),
    [
        (MISTRAL | {"max_position_embeddings": 32_768}, 4096, 4096),
        (MISTRAL | {"max_position_embeddings": 32_768, "sliding_window": 1024}, 1024, 1024),
        (MISTRAL | {"max_position_embeddings": 32_768, "sliding_window": None}, None, 32_768),
        (MISTRAL, None, 4096),
        (QWEN2 | {"sliding_window": 1024}, None, 4096),
        (QWEN2 | {"sliding_window": 1024, "use_sliding_window": True}, 1024, 1024),
    ],
)
def test_a_window_smaller_than_the_context_cuts_it(values: dict[str, Any], window: int | None, context_len: int) -> None:
    config = config_from_hf(values)
    assert (config.sliding_window, config.context_len) == (window, context_len)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gemma2"}, "model_type 'gemma2'"),
        ({"model_type": None}, "model_type None"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config 'awq'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type 'longrope'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "factor"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0}}, "mscale"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "full_attention"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"num_key_value_heads": 3}, "num_kv_heads 3"),
        ({"num_key_value_heads": [4, 2]}, "num_kv_heads"),
        ({"head_dim": 15}, "head_dim 15"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps"),
    ],
)
def test_what_would_not_be_computed_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        config_from_hf(LLAMA | change)


def test_a_folder_without_a_readable_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3"} | LLAMA3_ROPE,
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
        {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64, "attention_factor": 0.7},
        {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 256, "beta_fast": 16, "truncate": False},
    ],
    ids=lambda rope: f"{rope['rope_type']}-{len(rope)}",
)
@pytest.mark.parametrize("head_dim", [16, 64])
def test_tables_equal_transformers_bit_for_bit(rope: dict[str, Any], head_dim: int) -> None:
    rope = rope | {"rope_theta": 100_000.0}
    values = LLAMA | {"head_dim": head_dim, "rope_parameters": rope}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**{name: value for name, value in values.items() if name != "model_type"}))
    cos, sin = theirs(torch.empty(0, dtype=torch.float32), torch.arange(4096)[None])
    ours = rope_tables(config_from_hf(values), 4096)
    assert ours.cos.shape == (4096, head_dim // 2)
    assert torch.equal(ours.cos, cos[0, :, : head_dim // 2])
    assert torch.equal(ours.sin, sin[0, :, : head_dim // 2])


def test_divisors_of_a_gguf_file_divide_each_frequency() -> None:
    scaled = inverse_frequencies(4, 10_000.0, DivisorScaling((1.0, 8.0)))
    assert scaled.tolist() == pytest.approx([1.0, 0.01 / 8])


def test_a_gguf_file_says_what_the_folder_says(tiny_llama: Tiny, tmp_path: Path) -> None:
    from_folder = read_config(tiny_llama.path)
    weights = {name: tensor for name, tensor in tiny_llama.model.state_dict().items() if name != "lm_head.weight"}
    write_gguf(tmp_path / "tiny.gguf", from_folder, weights)
    from_file = read_config(tmp_path / "tiny.gguf")
    assert from_file.rms_norm_eps == pytest.approx(from_folder.rms_norm_eps)  # The file holds it in float32.
    assert msgspec.structs.replace(from_file, rms_norm_eps=from_folder.rms_norm_eps) == from_folder


def read_changed(tiny: Tiny, path: Path, add: Callable[[GGUFWriter], None]) -> ModelConfig:
    config = read_config(tiny.path)
    weights = {name: tensor for name, tensor in tiny.model.state_dict().items() if name != "lm_head.weight"}
    write_gguf(path, config, weights, add=add)
    return read_config(path)


def test_llama3_scaling_in_a_gguf_file_is_a_tensor_of_divisors(tiny_llama: Tiny, tmp_path: Path) -> None:
    scaling = Llama3Scaling(8.0, 1.0, 4.0, 128)
    divisors = inverse_frequencies(16, 10_000.0, None) / inverse_frequencies(16, 10_000.0, scaling)
    config = read_changed(
        tiny_llama, tmp_path / "a.gguf", lambda writer: writer.add_tensor("rope_freqs.weight", divisors.numpy())
    )
    assert isinstance(config.rope_scaling, DivisorScaling)
    expected = rope_tables(msgspec.structs.replace(config, rope_scaling=scaling), 256)
    torch.testing.assert_close(rope_tables(config, 256), expected, atol=1e-4, rtol=0)


def add_scaling(kind: RopeScalingType) -> Callable[[GGUFWriter], None]:
    def add(writer: GGUFWriter) -> None:
        writer.add_rope_scaling_type(kind)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(256)

    return add


def test_scaling_in_a_gguf_file(tiny_llama: Tiny, tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    assert read_changed(tiny_llama, path, add_scaling(RopeScalingType.NONE)).rope_scaling is None
    assert read_changed(tiny_llama, path, add_scaling(RopeScalingType.LINEAR)).rope_scaling == LinearScaling(4.0)
    yarn = read_changed(tiny_llama, path, add_scaling(RopeScalingType.YARN)).rope_scaling
    assert yarn == YarnScaling(4.0, 256, yarn_attention_factor(4.0))
    with pytest.raises(ConfigError, match=r"rope\.scaling\.yarn_beta_fast is not supported"):
        read_changed(tiny_llama, path, lambda writer: writer.add_rope_scaling_yarn_beta_fast(16.0))
    with pytest.raises(ConfigError, match=r"rope\.scaling\.type 'longrope'"):
        read_changed(tiny_llama, path, add_scaling(RopeScalingType.LONGROPE))


def test_a_gguf_file_with_a_window_has_the_context_cut(tiny_llama: Tiny, tmp_path: Path) -> None:
    config = read_changed(tiny_llama, tmp_path / "a.gguf", lambda writer: writer.add_sliding_window(256))
    assert (config.sliding_window, config.context_len) == (256, 256)


def test_a_gguf_file_that_rotates_part_of_a_head_is_refused(tiny_llama: Tiny, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rope\.dimension_count 8"):
        read_changed(tiny_llama, tmp_path / "a.gguf", lambda writer: writer.add_rope_dimension_count(8))


def test_yarn_infers_the_attention_factor(tmp_path: Path) -> None:
    tiny = make_tiny("llama-yarn", tmp_path)
    scaling = read_config(tiny.path).rope_scaling
    assert isinstance(scaling, YarnScaling)
    assert (scaling.factor, scaling.original_context_len) == (4.0, 256)
    assert scaling.attention_factor == pytest.approx(1.1386294)


def test_smollm2s_numbers(smollm2_path: Path) -> None:
    config = read_config(smollm2_path)
    assert (config.family, config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == ("llama", 30, 9, 3, 64)
    assert (config.hidden_size, config.intermediate_size, config.vocab_size, config.context_len) == (576, 1536, 49_152, 8192)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert config.rope_theta == 100_000.0
    assert config.is_tied
    assert config.rope_scaling is None
