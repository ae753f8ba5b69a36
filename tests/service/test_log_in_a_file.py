"""The request log where standard error is a file: in few pieces, and on a disk that fills up and is emptied again."""

import os
from errno import ENOSPC
from pathlib import Path

import pytest

from batcher.service.line_writer import LinesStatistics
from batcher.service.request_log import RequestLog
from tests.service.request_lines import numbered, parsed, until


def test_a_file_is_written_in_few_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, write = [], os.write
    with (tmp_path / "log").open("wb") as file:

        def note(fd: int, data: bytes) -> int:
            sizes.extend([len(data)] if fd == file.fileno() else [])
            return write(fd, data)

        monkeypatch.setattr(os, "write", note)
        request_log = RequestLog(file.fileno(), gather_s=0.001)
        for line in numbered(*range(1000)):
            request_log.write(line)
        request_log.start()
        request_log.close()
    assert len(sizes) == 2
    assert sum(sizes) == (tmp_path / "log").stat().st_size
    assert len(parsed((tmp_path / "log").read_bytes().splitlines(keepends=True))) == 1000


def test_a_disk_that_is_full_costs_the_lines_that_it_did_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no other: the first that it takes again is not written behind the half of one."""
    write, limit = os.write, 1000
    with (tmp_path / "log").open("wb") as file:

        def until_full(fd: int, data: bytes) -> int:
            room = limit - file.tell() if fd == file.fileno() else len(data)
            if not room:
                raise OSError(ENOSPC, "No space left on device")
            return write(fd, data[:room])

        monkeypatch.setattr(os, "write", until_full)
        request_log = RequestLog(file.fileno(), gather_s=0.001)
        request_log.start()
        for line in numbered(*range(10)):
            request_log.write(line)
        until(lambda: request_log.statistics().num_failed > 0 == request_log.statistics().num_waiting)
        limit = 100_000
        for line in numbered(*range(10, 15)):
            request_log.write(line)
        request_log.close()
    lines = (tmp_path / "log").read_bytes().splitlines(keepends=True)
    num_whole = request_log.statistics().num_written - 5
    assert 0 < num_whole < 10
    told = [line["request_id"] for line in parsed(lines[:num_whole] + lines[num_whole + 1 :])]
    assert told == [f"req_{number}" for number in (*range(num_whole), *range(10, 15))]
    assert request_log.statistics() == LinesStatistics(0, num_whole + 5, 0, 10 - num_whole)
