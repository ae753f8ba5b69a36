"""A GGUF file is read whole or refused."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from backends.llm.config import read_config
from backends.llm.gguf_file import GgufFile
from batcher.errors import ConfigError
from tests.backends.llm.vocab import finish

MATRIX = np.arange(64, dtype=np.float32).reshape(2, 32)


def write(path: Path, **facts: int) -> bytes:
    writer = GGUFWriter(path, "llama")
    writer.add_string("words.one", "é")
    writer.add_array("words.some", ["a", "", "日本"])
    writer.add_array("numbers", [-1, 2])
    writer.add_float32("half", 0.5)
    writer.add_bool("yes", True)
    for name, value in facts.items():
        writer.add_uint32(name.replace("__", "."), value)
    writer.add_tensor("vector", np.array([1.0, 2.0, 3.0], np.float32))
    writer.add_tensor("matrix", MATRIX.astype(np.float16))
    finish(writer)
    return path.read_bytes()


def test_facts_and_tensors_come_back(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf")
    file = GgufFile(tmp_path / "a.gguf")
    assert file.metadata == {
        "general.architecture": "llama",
        "words.one": "é",
        "words.some": ["a", "", "日本"],
        "numbers": [-1, 2],
        "half": 0.5,
        "yes": True,
    }
    assert {name: info.shape for name, info in file.tensors.items()} == {"vector": (3,), "matrix": (2, 32)}
    assert file.tensors["matrix"].type is GGMLQuantizationType.F16
    assert file.read("vector").tolist() == [1.0, 2.0, 3.0]
    assert np.array_equal(file.read("matrix"), MATRIX)
    assert file.read("vector").flags.writeable  # torch warns of memory that is not.


def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write(tmp_path / "a.gguf")
    short = tmp_path / "short.gguf"
    for num_bytes in (0, 3, 4, 8, 23, *range(24, len(whole) - 64, 37)):
        short.write_bytes(whole[:num_bytes])
        with pytest.raises(ConfigError, match=r"short\.gguf cannot be read"):
            GgufFile(short)


@pytest.mark.parametrize(
    ("position", "value", "reason"),
    [(0, b"GGML", "does not begin"), (4, b"\1\0\0\0", "version 1"), (4, b"\0\0\0\3", "big-endian")],
)
def test_another_format_is_refused(position: int, value: bytes, reason: str, tmp_path: Path) -> None:
    whole = write(tmp_path / "a.gguf")
    (tmp_path / "a.gguf").write_bytes(whole[:position] + value + whole[position + len(value) :])
    with pytest.raises(ConfigError, match=reason):
        GgufFile(tmp_path / "a.gguf")


def test_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.gguf"):
        GgufFile(tmp_path / "none.gguf")


def test_a_part_of_a_split_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", split__count=2)
    with pytest.raises(ConfigError, match="split"):
        GgufFile(tmp_path / "a.gguf")


def test_a_type_without_dequantisation_is_refused_by_name(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("counts", np.array([1, 2], np.int32))
    finish(writer)
    with pytest.raises(ConfigError, match="counts has type I32"):
        GgufFile(tmp_path / "a.gguf").read("counts")


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({}, "llama|context_length|head_count"),
        ({"llama__expert_count": 8}, "expert_count 8"),
    ],
)
def test_a_model_that_is_not_all_there_is_refused(facts: dict[str, int], named: str, tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", **facts)
    with pytest.raises(ConfigError, match=named):
        read_config(tmp_path / "a.gguf")


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "a.gguf", "gemma3")
    finish(writer)
    with pytest.raises(ConfigError, match="architecture 'gemma3'"):
        read_config(tmp_path / "a.gguf")
