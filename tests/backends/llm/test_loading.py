"""A real model by name: its facts before its weights, and an id that says nothing of where its files are."""

import shutil
from pathlib import Path

import pytest
import torch

from backends.base import KvLayout
from backends.llm.loading import LlmModel
from backends.models import create_model
from batcher.errors import ConfigError
from batcher.types import Message
from tests.backends.llm.tiny import Tiny


def test_a_folder_is_called_by_its_last_part(tiny_llama: Tiny) -> None:
    model = create_model(str(tiny_llama.path), dtype="float32", device="cpu")
    assert isinstance(model, LlmModel)
    assert model.info.id == tiny_llama.path.name
    assert str(tiny_llama.path) not in model.info.version
    assert model.info.context_len == tiny_llama.model.config.max_position_embeddings
    # Keys and values of 4 bytes, for each layer and key-value head.
    config = tiny_llama.model.config
    head_dim = config.hidden_size // config.num_attention_heads
    assert model.info.kv_bytes_per_token == 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * 4
    assert model.tokenizer.render([Message("user", "hello")])


def test_smollm2_is_called_by_its_name(smollm2_path: Path) -> None:
    model = create_model("smollm2", device="cpu")
    assert (model.info.id, model.info.context_len) == ("smollm2", 8192)
    assert model.info.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2
    assert model.tokenizer.encode("x  12") == [104, 256, 33, 34]


def test_another_dtype_or_other_files_are_another_version(tiny_llama: Tiny, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_llama.path, folder)
    versions = {LlmModel(str(folder), dtype=dtype, device="cpu").info.version for dtype in ("float32", "bfloat16")}
    with (folder / "config.json").open("a") as file:
        file.write("\n")
    versions.add(LlmModel(str(folder), dtype="float32", device="cpu").info.version)
    assert len(versions) == 3


def test_its_backend_loads_and_closes(tiny_llama: Tiny) -> None:
    backend = LlmModel(str(tiny_llama.path), dtype="float32", device="cpu").make_backend()
    backend.load(KvLayout(num_blocks=4, max_num_seqs=2, max_model_len=64, max_step_tokens=32))
    assert backend.max_inflight_steps == 1
    backend.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_said_to_be_missing(tiny_llama: Tiny) -> None:
    with pytest.raises(ConfigError, match="finds no GPU"):
        create_model(str(tiny_llama.path), device="cuda")
