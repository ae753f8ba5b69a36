"""A disk that can be filled and broken, and the segments that a test finds on it."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from batcher.service.stores.usage_log import UsageLog
from batcher.usage.record import UsageRecord
from batcher.usage.segments import list_segments, read_records

Begin = Callable[..., UsageLog]


class Disk:
    """Stands before the calls that write. `left` is the room in bytes, of which a write takes what fits; `broken` are the
    calls that fail with EIO, after they have done their work if they write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: float = float("inf")
        self.most = 10_000_000
        """Bytes that one write takes."""
        self.broken: set[str] = set()
        self.num_writes = 0
        self.num_fsyncs = 0
        self._write, self._fsync, self._ftruncate, self._open = os.write, os.fsync, os.ftruncate, os.open
        module = "batcher.service.stores.usage_segments.os."
        monkeypatch.setattr(module + "write", self.write)
        monkeypatch.setattr(module + "fsync", self.fsync)
        monkeypatch.setattr(module + "ftruncate", self.ftruncate)
        monkeypatch.setattr(module + "open", self.open)

    def _fail_if_broken(self, name: str) -> None:
        if name in self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write(self, fd: int, data: bytes) -> int:
        self.num_writes += 1
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num_written = self._write(fd, data[: int(min(self.left, self.most))])
        self.left -= num_written
        self._fail_if_broken("write")
        return num_written

    def fsync(self, fd: int) -> None:
        self.num_fsyncs += 1
        self._fail_if_broken("fsync")
        self._fsync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        self._fail_if_broken("ftruncate")
        self.left += os.fstat(fd).st_size - length
        self._ftruncate(fd, length)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        self._fail_if_broken("open")
        return self._open(path, flags, mode)


def read(directory: Path) -> dict[str, list[UsageRecord | None]]:
    return {segment.path.name: list(read_records(segment.path)) for segment in list_segments(directory)}


def ids(directory: Path) -> list[str]:
    """Of all records in order of segments; a line that is none is told as `-`."""
    return [each.request_id if each else "-" for records in read(directory).values() for each in records]


def refuses(log: UsageLog) -> bool:
    return log.refusal is not None
