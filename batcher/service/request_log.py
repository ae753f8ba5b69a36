"""One line in the log for each request, in the shape of every other line of it, at no cost to speak of for the event loop.

`logging` was refused here: it takes some 8 microseconds for a line, and writes it where it is called, so that a reader who
falls behind stops the service. Here the loop puts a request's line, which nobody changes any more, at the end of a queue; a
thread encodes and writes what has gathered. When it cannot keep up, lines are dropped and counted, never waited for.
"""

import json
import os
import select
import threading
import time
from collections import deque

import msgspec

from batcher.service.records import RequestLine

GATHER_S = 0.05
"""What a line waits for others at most before they are written together."""
MAX_LINES = 20_000
"""Lines that wait to be written: ten seconds at 2,000 requests a second, and some 20 MB."""
MAX_CHUNK_BYTES = 4096
"""Of one write (PIPE_BUF): into a pipe such a one is never mixed with what another thread writes. It ends with a whole line,
and one line alone is shorter: its longest text is an id of 128 characters."""
CLOSE_S = 2.0
"""What the last lines may take; a reader that has stopped must not keep a process from ending."""

_MAX_TAKEN = 512
"""Lines that are encoded together: a quarter of a millisecond that the loop may have to wait for the interpreter."""
_AFTER_AT = b',"request_id":"'
"""In an encoded line this stands once, after the instant: within a text a quote has a backslash before it."""
_HEAD = b',"level":"info","event":"request"' + _AFTER_AT
_STDERR = 2


class RequestLogStatistics(msgspec.Struct, frozen=True):
    """In lines. Read from another thread than the log's, it may be a chunk behind."""

    num_waiting: int
    num_written: int
    num_dropped: int
    """That there was no room for. Said in the log too, as soon as it takes lines again."""
    num_failed: int
    """Lost as the descriptor took nothing: nobody reads it any more."""


class RequestLog:
    """`write` belongs to one event loop, the descriptor and the counts of what was written to the thread. Both share `_lines`:
    the loop appends to it and the thread takes from its other end; either is one step under the interpreter's lock."""

    def __init__(self, fd: int = _STDERR, *, gather_s: float = GATHER_S, max_lines: int = MAX_LINES) -> None:
        self._fd = fd
        self._gather_s = gather_s
        self._max_lines = max_lines
        self._lines: deque[RequestLine] = deque()
        self._num_taken = 0
        """Lines that the thread is writing now; they count against the bound."""
        self._num_told = 0
        self._wake = threading.Event()
        self._is_closing = threading.Event()
        self._encode = msgspec.json.Encoder().encode_lines
        self._thread = threading.Thread(target=self._work, name="request-log", daemon=True)
        self._num_written = 0
        self._num_dropped = 0
        self._num_failed = 0

    def start(self) -> None:
        self._thread.start()

    def write(self, line: RequestLine) -> None:
        """Never waits, never raises."""
        lines = self._lines
        if len(lines) + self._num_taken >= self._max_lines:
            self._num_dropped += 1
            return
        lines.append(line)
        if len(lines) == 1:
            self._wake.set()

    def statistics(self) -> RequestLogStatistics:
        return RequestLogStatistics(len(self._lines) + self._num_taken, self._num_written, self._num_dropped, self._num_failed)

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
            for chunk in _chunks(self._encoded(lines)):
                num_written = chunk.count(b"\n")
                if self._put(chunk):
                    self._num_written += num_written
                else:
                    self._num_failed += num_written
                self._num_taken -= num_written
        if (num_dropped := self._num_dropped - self._num_told) and self._put(_dropped(num_dropped)):
            self._num_told += num_dropped

    def _encoded(self, lines: list[RequestLine]) -> bytes:
        """A line each, with its end."""
        try:
            encoded = self._encode(lines)
        except UnicodeEncodeError:
            # A lone surrogate in one of them: it is shown escaped rather than lost with all the others.
            encoded = b"".join(
                [json.dumps(msgspec.to_builtins(line), separators=(",", ":")).encode() + b"\n" for line in lines]
            )
        return encoded.replace(_AFTER_AT, _HEAD)

    def _put(self, chunk: bytes) -> bool:
        """Waits until it is written; False if it cannot ever be."""
        rest = memoryview(chunk)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                # Somebody has made the descriptor one that does not wait.
                select.select([], [self._fd], [])
            except OSError:
                return False
        return True


def _chunks(encoded: bytes) -> list[bytes]:
    """Whole lines, as many as one write may carry; a line alone if it is longer than that."""
    chunks = []
    start = 0
    while start < len(encoded):
        end = encoded.rfind(b"\n", start, start + MAX_CHUNK_BYTES) + 1
        if end == 0:
            end = encoded.index(b"\n", start) + 1
        chunks.append(encoded[start:end])
        start = end
    return chunks


def _dropped(num: int) -> bytes:
    line = {"at": round(time.time(), 3), "level": "warning", "event": "request_lines_dropped", "dropped": num}
    return msgspec.json.encode(line) + b"\n"
