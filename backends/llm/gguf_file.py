"""A GGUF file read by its layout: facts and tensors from one memory map.

The reader of the `gguf` package was refused for the header: it makes an array of each of a vocabulary's strings, which takes
seconds for SmolLM2 and ten times as long for larger vocabularies. Its dequantisation is used as it is.

Layout (ggml's docs/gguf.md): magic, version, counts; key-value pairs; tensor descriptions; then the tensors' bytes, each at an
offset from the first multiple of the alignment.
"""

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from batcher.errors import ConfigError

_VERSIONS = (2, 3)
"""Version 1 had 32-bit counts and is no longer written."""
_DEFAULT_ALIGNMENT = 32
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""Value type -> how `struct` spells it."""


class TensorInfo(NamedTuple):
    shape: tuple[int, ...]
    """As torch orders it, slowest dimension first; the file has it the other way round."""
    type: GGMLQuantizationType
    start: int
    """In bytes from the beginning of the file."""


class _Cursor:
    """Reads values one after another. Raises struct.error or ValueError where the file ends or makes no sense."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = 0

    def scalar(self, spelling: str) -> Any:
        (value,) = struct.unpack_from(spelling, self._data, self.position)
        self.position += struct.calcsize(spelling)
        return value

    def string(self) -> str:
        num_bytes: int = self.scalar("<Q")
        text = self._data[self.position : self.position + num_bytes]
        if len(text) != num_bytes:
            raise ValueError(f"a string of {num_bytes} bytes passes the end")
        self.position += num_bytes
        return text.decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            element_kind: int = self.scalar("<I")
            num_elements: int = self.scalar("<Q")
            return [self.value(element_kind) for _ in range(num_elements)]
        if kind not in _SCALARS:
            raise ValueError(f"unknown value type {kind}")
        return self.scalar(_SCALARS[kind])


class GgufFile:
    """An open file: `metadata` by key, `tensors` by name. Raises ConfigError for what is no whole GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.metadata, self.tensors = self._read_header()
        except (OSError, ValueError, OverflowError, struct.error) as error:
            raise ConfigError(f"{path} cannot be read as a GGUF file: {error}") from error
        if self.metadata.get("split.count", 1) > 1:
            raise ConfigError(f"{path} is one part of a split GGUF file; merge the parts with llama-gguf-split first")

    def _read_header(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        cursor = _Cursor(self._data)
        if self._data[:4] != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        cursor.position = 4
        if (version := cursor.scalar("<I")) not in _VERSIONS:
            raise ValueError(f"version {version} (a big-endian file?) is none of {_VERSIONS}")
        num_tensors, num_pairs = cursor.scalar("<Q"), cursor.scalar("<Q")
        metadata = {cursor.string(): cursor.value(cursor.scalar("<I")) for _ in range(num_pairs)}
        descriptions = [self._read_description(cursor) for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        first = -(-cursor.position // alignment) * alignment
        tensors = {name: info._replace(start=first + info.start) for name, info in descriptions}
        for name, info in tensors.items():
            if info.start + num_bytes(info) > len(self._data):
                raise ValueError(f"tensor {name} passes the end: the file is cut off")
        return metadata, tensors

    @staticmethod
    def _read_description(cursor: _Cursor) -> tuple[str, TensorInfo]:
        name = cursor.string()
        shape = tuple(cursor.scalar("<Q") for _ in range(cursor.scalar("<I")))
        return name, TensorInfo(shape[::-1], GGMLQuantizationType(cursor.scalar("<I")), cursor.scalar("<Q"))

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """The tensor's values, dequantised into memory of their own. Raises ConfigError for a type that cannot be."""
        info = self.tensors[name]
        raw = np.frombuffer(self._data, np.uint8, num_bytes(info), info.start)
        try:
            values = dequantize(raw.reshape(*info.shape[:-1], -1), info.type)
        except (NotImplementedError, ValueError) as error:
            raise ConfigError(f"{self.path}: tensor {name} has type {info.type.name}, which cannot be dequantised") from error
        return np.require(values.reshape(info.shape), np.float32, ["C", "W", "O"])


def num_bytes(info: TensorInfo) -> int:
    """Raises ValueError for rows that are not whole quantisation blocks."""
    block_len, block_bytes = GGML_QUANT_SIZES[info.type]
    num_blocks, rest = divmod(info.shape[-1] if info.shape else 1, block_len)
    if rest:
        raise ValueError(f"rows of {info.shape[-1]} values are not whole blocks of {block_len}")
    return int(np.prod(info.shape[:-1], dtype=np.int64)) * num_blocks * block_bytes
