"""Compiling the CPU kernels: once, whole, and with an answer where it cannot be done. The sources are tiny, so it is quick."""

import ctypes
import logging
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from backends.llm import compile as compile_
from backends.llm.compile import CannotCompile, load_kernels
from backends.llm.cpu_ops import create_cpu_ops
from backends.llm.torch_ops import TorchOps

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, compile_.COMPILERS)), reason="there is no C++ compiler on the PATH of this machine"
)


def write_source(folder: Path, answer: int) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "tiny.cpp").write_text(f'extern "C" int answer() {{ return {answer}; }}\n')


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "sources"
    write_source(folder, 42)
    monkeypatch.setattr(compile_, "SOURCES", folder)
    monkeypatch.delenv("CXX", raising=False)
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def answer(kernels: ctypes.CDLL) -> int:
    value: int = kernels.answer()
    return value


def forbid_building(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object, **__: object) -> None:
        raise AssertionError("this was to come from the cache")

    monkeypatch.setattr(compile_, "_build", build)


@needs_compiler
def test_the_second_process_finds_what_the_first_compiled(sources: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answer(load_kernels(cache)) == 42
    forbid_building(monkeypatch)
    assert answer(load_kernels(cache)) == 42
    assert len(list(cache.iterdir())) == 1


@needs_compiler
def test_other_sources_another_cpu_or_compiler_are_compiled_anew(
    sources: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_kernels(cache)
    write_source(sources, 43)
    assert answer(load_kernels(cache)) == 43
    monkeypatch.setattr(compile_, "_cpu", lambda: "another")
    load_kernels(cache)
    compiler = tmp_path / "other-compiler"
    compiler.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo 99.9 || exec {compile_._find_compiler()[0]} "$@"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    load_kernels(cache)
    assert len(list(cache.iterdir())) == 4


@needs_compiler
@pytest.mark.parametrize("damage", ["empty", "cut short", "changed"])
def test_a_damaged_object_is_compiled_again_and_never_loaded(sources: Path, cache: Path, damage: str) -> None:
    load_kernels(cache)
    (stored,) = cache.iterdir()
    data = stored.read_bytes()
    # A new file: the process has mapped the old one.
    stored.unlink()
    middle = len(data) // 2
    changed = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
    stored.write_bytes({"empty": b"", "cut short": data[:-100], "changed": changed}[damage])
    assert answer(load_kernels(cache)) == 42
    assert compile_._is_whole(stored)


@needs_compiler
def test_many_may_compile_at_once(sources: Path, cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert [answer(kernels) for kernels in pool.map(load_kernels, [cache] * 4)] == [42] * 4
    (stored,) = cache.iterdir()
    assert compile_._is_whole(stored)


@needs_compiler
def test_a_cache_that_cannot_be_written_is_done_without(sources: Path, cache: Path) -> None:
    cache.write_text("a file where the folder would be")
    assert answer(load_kernels(cache)) == 42
    assert cache.read_text() == "a file where the folder would be"


@needs_compiler
def test_a_compiler_that_fails_is_quoted(sources: Path, cache: Path) -> None:
    (sources / "tiny.cpp").write_text("int answer() { return forty_two; }\n")
    with pytest.raises(CannotCompile, match="forty_two"):
        load_kernels(cache)
    assert not list(cache.iterdir())


@needs_compiler
def test_an_object_that_cannot_be_loaded_is_told(sources: Path, cache: Path) -> None:
    (sources / "tiny.cpp").write_text('void nowhere(); extern "C" void answer() { nowhere(); }\n')
    with pytest.raises(CannotCompile, match="nowhere"):
        load_kernels(cache)


def test_without_a_compiler_the_reference_serves_and_one_line_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING):
        assert isinstance(create_cpu_ops(tmp_path), TorchOps)
    (record,) = caplog.records
    assert "no C++ compiler was found" in record.getMessage()
    assert not list(tmp_path.iterdir())
