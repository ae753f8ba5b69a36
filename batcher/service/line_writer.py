"""Lines of a log, written by a thread of its own: whoever has something to say waits for no reader.

`logging.StreamHandler` was refused for this: it writes where it is called, on the event loop, so that a reader of standard
error who falls behind stops the service, health checks and drain with it. Here a line is put at the end of a queue, and the
thread encodes and writes what has gathered. When it cannot keep up, lines are dropped and counted, never waited for.
"""

import os
import select
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

MAX_PIPE_CHUNK_BYTES = 4096
"""Of one write (PIPE_BUF), in whole lines: into a pipe such a one is never mixed with what another thread or process writes. A
line that is longer, as a traceback may be, is a write alone."""
_MAX_FILE_CHUNK_BYTES = 2**20
"""A file takes any write in one piece. After each the thread must have the interpreter's lock again, at the loop's cost: 10,000
lines a second in writes of a pipe's size took a tenth of a core."""
CLOSE_S = 2.0
"""What the last lines may take; a reader that has stopped must not keep a process from ending."""

_MAX_TAKEN = 512
"""Lines that are encoded together: a quarter of a millisecond that the loop may have to wait for the interpreter."""
STDERR = 2
_END = ord("\n")

Line = TypeVar("Line")


class LinesStatistics(msgspec.Struct, frozen=True):
    """In lines. Read from another thread than the writer's, it may be a chunk behind."""

    num_waiting: int
    num_written: int
    num_dropped: int
    """That there was no room for. Said in the log too, as soon as it takes lines again."""
    num_failed: int
    """Lost as the descriptor did not take them: nobody reads it any more, or the disk behind it is full."""


NO_LINES = LinesStatistics(0, 0, 0, 0)


class LineWriter(Generic[Line]):
    """`write` belongs to one caller at a time, the descriptor and the counts of what was written to the thread. Both share
    `_lines`: the one appends to it and the thread takes from its other end; either is one step under the interpreter's lock."""

    def __init__(
        self, encode: Callable[[list[Line]], bytes], *, name: str, fd: int = STDERR, gather_s: float, max_lines: int
    ) -> None:
        """`encode` gives a line each, with its end; it is called by the thread. `name` is the thread's, and says in the log
        whose lines were dropped. A line waits for others for `gather_s` at most, and `max_lines` may wait."""
        self._encode = encode
        self._name = name
        self._fd = fd
        # As it is now: what is put in the descriptor's place later had better be of the same kind.
        self._chunk_bytes = _MAX_FILE_CHUNK_BYTES if _is_file(fd) else MAX_PIPE_CHUNK_BYTES
        self._gather_s = gather_s
        self._max_lines = max_lines
        self._lines: deque[Line] = deque()
        self._num_taken = 0
        """Lines that the thread is writing now; they count against the bound."""
        self._is_torn = False
        """Whether what was written last is the beginning of a line of which no more was taken: the next begins a new one."""
        self._num_told = 0
        self._wake = threading.Event()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name=f"{name}-lines", daemon=True)
        self._num_written = 0
        self._num_dropped = 0
        self._num_failed = 0

    def start(self) -> None:
        self._thread.start()

    def write(self, line: Line) -> None:
        """Never waits, never raises."""
        lines = self._lines
        if len(lines) + self._num_taken >= self._max_lines:
            self._num_dropped += 1
            return
        lines.append(line)
        if len(lines) == 1:
            self._wake.set()

    def statistics(self) -> LinesStatistics:
        return LinesStatistics(len(self._lines) + self._num_taken, self._num_written, self._num_dropped, self._num_failed)

    def close(self) -> None:
        """Writes what waits, in CLOSE_S at most. What comes after it is dropped."""
        self._max_lines = 0
        self._is_closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)

    # The thread's.

    def _work(self) -> None:
        while not self._is_closing.is_set():
            self._wake.wait()
            self._is_closing.wait(self._gather_s)
            self._wake.clear()
            self._flush()
        self._flush()  # What came between the last one and the close.

    def _flush(self) -> None:
        """Until nothing waits: whoever appends to lines that wait already wakes nobody."""
        while num := min(len(self._lines), _MAX_TAKEN):
            lines = [self._lines.popleft() for _ in range(num)]
            self._num_taken = num
            for chunk in _chunks(self._encode(lines), self._chunk_bytes):
                num_lines, num_written = chunk.count(b"\n"), self._put(chunk)
                self._num_written += num_written
                self._num_failed += num_lines - num_written
                self._num_taken -= num_lines
        if (num_dropped := self._num_dropped - self._num_told) and self._put(self._dropped(num_dropped)):
            self._num_told += num_dropped

    def _put(self, chunk: bytes) -> int:
        """Waits until it is written. Returns how many of its lines were: the others cannot ever be."""
        if self._is_torn:
            chunk = b"\n" + chunk
        at, data = 0, memoryview(chunk)
        while at < len(chunk):
            try:
                at += os.write(self._fd, data[at:])
            except BlockingIOError:
                # Somebody has made the descriptor one that does not wait.
                self._wait_writable()
            except OSError:
                break
        num_lines = chunk.count(b"\n", 0, at) - (self._is_torn and at > 0)
        if at:
            self._is_torn = chunk[at - 1] != _END
        return num_lines

    def _wait_writable(self) -> None:
        poll = select.poll()  # `select.select` knows no descriptor above 1023.
        poll.register(self._fd, select.POLLOUT)
        poll.poll()

    def _dropped(self, num: int) -> bytes:
        line = {
            "at": round(time.time(), 3),
            "level": "warning",
            "event": f"{self._name}_lines_dropped",
            "dropped": num,
        }
        return msgspec.json.encode(line) + b"\n"


def _is_file(fd: int) -> bool:
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False


def _chunks(encoded: bytes, max_bytes: int) -> list[bytes]:
    """Whole lines, as many as one write may carry; a line alone if it is longer than that."""
    chunks = []
    start = 0
    while start < len(encoded):
        end = encoded.rfind(b"\n", start, start + max_bytes) + 1
        if end == 0:
            end = encoded.index(b"\n", start) + 1
        chunks.append(encoded[start:end])
        start = end
    return chunks
