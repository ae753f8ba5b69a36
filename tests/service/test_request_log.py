"""The request log: a line for each request in the shape of every other line, and a loop that waits for nobody who reads it."""

import fcntl
import io
import json
import logging
import os
import threading
from collections.abc import Iterator

import msgspec
import pytest

from batcher.service import log
from batcher.service.line_writer import MAX_PIPE_CHUNK_BYTES, LinesStatistics
from batcher.service.records import RequestLine
from batcher.service.request_log import RequestLog
from tests.service.request_lines import LINE, numbered, parsed, until


class Reading(threading.Thread):
    """Reads a descriptor to its end, from now on."""

    def __init__(self, fd: int) -> None:
        super().__init__(daemon=True)
        self._file = open(fd, "rb")  # noqa: SIM115
        self._read = b""
        self.start()

    def run(self) -> None:
        with self._file:
            self._read = self._file.read()

    def result(self) -> bytes:
        self.join()
        return self._read


class Pipe:
    """A pipe that nobody reads until `read` does, and the log that writes into it."""

    def __init__(self, *, max_lines: int = 100_000) -> None:
        self.reader, self.writer = os.pipe()
        self.log = RequestLog(self.writer, gather_s=0.001, max_lines=max_lines)
        self.log.start()

    def write(self, *lines: RequestLine) -> None:
        for line in lines:
            self.log.write(line)

    def finish(self, reading: "Reading | None" = None) -> list[bytes]:
        """All that was written, once the log is closed. Reads meanwhile, or the log would not end."""
        reading = reading or Reading(self.reader)
        self.log.close()
        os.close(self.writer)
        self.writer = -1
        return reading.result().splitlines(keepends=True)

    def fill(self) -> None:
        """Nothing more can be written until somebody reads."""
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 4096)
        os.write(self.writer, b" " * 4095 + b"\n")


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    if pipe.writer >= 0:
        pipe.finish()


def test_a_line_has_the_shape_of_every_other_line(pipe: Pipe) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log.JsonFormatter())
    record = logging.LogRecord("batcher", logging.INFO, "", 0, "listening", (), None)
    handler.emit(record)
    other = json.loads(stream.getvalue())
    pipe.write(LINE)
    (line,) = parsed(pipe.finish())
    assert {name: type(value) for name, value in other.items()}.items() <= {k: type(v) for k, v in line.items()}.items()
    assert line == {
        "level": "info",
        "event": "request",
        "at": 1_700_000_000.25,
        "request_id": "req_1",
        "route": "/v1/messages",
        "status": 200,
        "outcome": "ok",
        "e2e_s": 0.5,
        "key": "key_1",
        "tenant": "acme",
        "tier": "paid",
        "model": "simulated",
        "is_streamed": True,
        "input_tokens": 3,
        "output_tokens": 4,
        "ttft_s": 0.25,
        "trace_id": "0af7651916cd43dd8448eb211c80319c",
    }


def test_a_line_begins_as_every_other(pipe: Pipe) -> None:
    pipe.write(LINE)
    (line,) = pipe.finish()
    assert line.startswith(b'{"at":1700000000.25,"level":"info","event":"request","request_id":"req_1",')
    assert line.count(b'"event":') == 1


def test_each_line_is_written_once_and_in_order_while_others_come(pipe: Pipe) -> None:
    num = 5000
    reading = Reading(pipe.reader)
    for line in numbered(*range(num)):
        pipe.write(line)
        if line.request_id.endswith("00"):
            until(lambda: pipe.log.statistics().num_written > 0)  # So that some come while others are written.
    lines = parsed(pipe.finish(reading))
    assert [line["request_id"] for line in lines] == [f"req_{number}" for number in range(num)]
    assert pipe.log.statistics() == LinesStatistics(0, num, 0, 0)


@pytest.mark.parametrize(
    "text", ["a\nb\r\n", '"}\n{"event":"forged"}', 'a,"request_id":"', "\x00\x1b[31m", "\ud83d", "😀", "\u2028"]
)
def test_no_text_breaks_out_of_its_line(pipe: Pipe, text: str) -> None:
    pipe.write(msgspec.structs.replace(LINE, tenant=text), *numbered(2))
    lines = pipe.finish()
    assert len(lines) == 2
    first, second = parsed(lines)
    assert first["tenant"] == text
    assert (first["event"], second["request_id"]) == ("request", "req_2")
    assert b"\x1b" not in lines[0]


def test_a_write_is_never_mixed_with_another_thread_s() -> None:
    """Into a pipe: whole lines, and no more of them than the system writes in one piece."""
    reader, writer = os.pipe2(os.O_DIRECT)  # Each read gives one write.
    request_log = RequestLog(writer, gather_s=0.001)
    for line in numbered(*range(100)):
        request_log.write(line)
    request_log.start()
    request_log.close()
    os.close(writer)
    writes = []
    while chunk := os.read(reader, 2**16):
        writes.append(chunk)
    os.close(reader)
    assert len(writes) > 3
    assert all(chunk.startswith(b"{") and chunk.endswith(b"}\n") and len(chunk) <= MAX_PIPE_CHUNK_BYTES for chunk in writes)
    assert b"".join(writes).count(b"\n") == 100


def test_a_line_that_is_longer_than_a_chunk_is_written_whole(pipe: Pipe) -> None:
    pipe.write(msgspec.structs.replace(LINE, tenant="x" * 3 * MAX_PIPE_CHUNK_BYTES), LINE)
    first, second = parsed(pipe.finish())
    assert (len(first["tenant"]), second["tenant"]) == (3 * MAX_PIPE_CHUNK_BYTES, "acme")


def test_a_reader_that_stops_costs_lines_and_nobody_s_time() -> None:
    pipe = Pipe(max_lines=10)
    pipe.fill()
    pipe.write(*numbered(0))
    until(lambda: not pipe.log._lines)  # The thread has it, and waits for the reader.
    pipe.write(*numbered(*range(1, 30)))
    assert pipe.log.statistics() == LinesStatistics(num_waiting=10, num_written=0, num_dropped=20, num_failed=0)
    lines = parsed(pipe.finish())
    assert [line["request_id"] for line in lines[:-1]] == [f"req_{number}" for number in range(10)]
    assert {**lines[-1], "at": 0.0} == {"at": 0.0, "level": "warning", "event": "request_lines_dropped", "dropped": 20}
    assert (pipe.log.statistics().num_written, pipe.log.statistics().num_waiting) == (10, 0)


def test_a_reader_that_is_gone_is_counted_and_breaks_nothing() -> None:
    reader, writer = os.pipe()
    request_log = RequestLog(writer, gather_s=0.001)
    request_log.start()
    os.close(reader)
    request_log.write(LINE)
    until(lambda: request_log.statistics().num_failed == 1)
    request_log.write(LINE)
    request_log.close()
    os.close(writer)
    assert request_log.statistics() == LinesStatistics(num_waiting=0, num_written=0, num_dropped=0, num_failed=2)


def test_a_descriptor_that_does_not_wait_is_waited_for() -> None:
    pipe = Pipe()
    os.set_blocking(pipe.writer, False)
    pipe.fill()
    pipe.write(*numbered(0))
    until(lambda: not pipe.log._lines)
    assert [line["request_id"] for line in parsed(pipe.finish())] == ["req_0"]


def test_a_close_does_not_wait_for_a_reader_that_never_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = Pipe()
    pipe.fill()
    pipe.write(LINE)
    # Not at the end: there the thread would still write, into a descriptor that is closed or another test's.
    with monkeypatch.context() as patch:
        patch.setattr("batcher.service.line_writer.CLOSE_S", 0.01)
        pipe.log.close()
    pipe.write(LINE)
    assert (pipe.log.statistics().num_waiting, pipe.log.statistics().num_dropped) == (1, 1)
    pipe.finish()


def test_lines_before_the_start_are_kept_for_it() -> None:
    reader, writer = os.pipe()
    request_log = RequestLog(writer, gather_s=0.001)
    request_log.write(LINE)
    request_log.start()
    request_log.close()
    os.close(writer)
    with open(reader, "rb") as written:
        assert len(written.readlines()) == 1
