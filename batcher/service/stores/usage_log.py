"""The usage log (SPEC S5.3): what was delivered is with the operating system before the answer's last byte leaves.

A record is one `write`, so it outlives this process however it ends; a thread calls fsync about each second, so a power cut
takes that second's records at most. An fsync for each answer was refused: it stands in the way of tokens (SPEC S5.4), and a
second of usage is worth less than that.
"""

import os
import threading
import time
from collections import deque
from contextlib import suppress
from errno import errorcode
from pathlib import Path

import msgspec

from batcher.config import OnFailure, UsageConfig
from batcher.errors import ConfigError, Overloaded
from batcher.service import log
from batcher.service.records import Refused
from batcher.service.stores.usage_segments import OpenSegment, SegmentWriter
from batcher.usage.record import UsageRecord
from batcher.usage.segments import has_torn_end, list_segments

_SYNC_S = 1.0
"""Between two calls of fsync, and between two tries of a disk that refuses."""

_ALARM_S = 60.0
"""A disk that stays full is told of once in so long."""

_CLOSE_S = 10.0
"""What the last fsync may take: a disk that hangs must not keep the process from ending."""

_BACKLOG_BYTES = 8 * 2**20
"""Of records that wait for the disk to come back: some 20 seconds of 2,000 answers a second."""

_CHUNK_BYTES = 256 * 2**10
"""Of them are written at a time: a millisecond in which no answer can be recorded."""

_MAX_CHECKED = 256
"""Old segments that are looked at at start, the newest: a crash tears those that were being written."""

_RETRY_AFTER_S = 30
"""A full disk is not emptied in a moment."""


class UsageLogStatistics(msgspec.Struct, frozen=True):
    num_recorded: int
    """Written."""
    num_waiting: int
    """Records in memory, for a disk that does not take them."""
    num_unrecorded: int
    """Records that are in no segment and will not be: too many waited, the policy held their answers back, or somebody removed
    the segment while it was written."""
    num_failures: int
    """Writes, fsyncs and new segments that failed."""
    num_segments: int
    """Begun by this process."""
    num_torn: int
    """Segments found at start whose last line was cut off."""
    is_failing: bool


class UsageLog:
    """One writer of a folder that others may write to as well, each to segments of its own.

    `append` is for the event loop, the rest for the thread that begins with the first record, and for whoever closes. `_lock`
    guards every field and is not held during an fsync. `_backlog` are lines that the disk did not take.
    """

    def __init__(self, config: UsageConfig) -> None:
        """Raises ConfigError where no log can be kept."""
        assert config.directory is not None, "without a folder there is no log"
        self._directory = config.directory
        self._on_failure = config.on_failure
        self._encode = msgspec.json.Encoder().encode
        self._num_torn = _look_for_torn(config.directory)
        self._writer = SegmentWriter(config.directory, segment_bytes=config.segment_bytes)
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._backlog: deque[bytes] = deque()
        self._backlog_bytes = 0
        self._is_failing = False
        self._alarmed_at = -_ALARM_S
        self._num_listed = 0
        self._num_recorded = 0
        self._num_unrecorded = 0
        self._num_failures = 0

    def append(self, record: UsageRecord) -> None:
        """Writes one line. Raises Overloaded if it is not written and the policy is closed: the answer must not be given."""
        line = self._encode(record) + b"\n"
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_syncing, name="usage-log", daemon=True)
                self._thread.start()
            if self._is_failing or not self._write(line, 1, at=record.finished_at):
                self._put_aside(line)

    @property
    def refusal(self) -> Overloaded | None:
        """Why a new request would be computed for nothing: its answer would be held back."""
        return _unrecordable() if self._is_failing and self._on_failure is OnFailure.CLOSED else None

    def close(self) -> None:
        """Writes and syncs what is left; blocks meanwhile, for at most `_CLOSE_S`."""
        self._is_closing.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                log.error("usage_not_synced", reason="the disk hangs")
                return
        self._recover()
        with self._lock:
            self._writer.retire()
            num_lost = len(self._backlog)
            self._num_unrecorded += num_lost
            self._backlog.clear()
            self._backlog_bytes = 0
        if num_lost:
            log.error("usage_lost", num_records=num_lost)
        self._sync()

    def statistics(self) -> UsageLogStatistics:
        with self._lock:
            return UsageLogStatistics(
                num_recorded=self._num_recorded,
                num_waiting=len(self._backlog),
                num_unrecorded=self._num_unrecorded,
                num_failures=self._num_failures,
                num_segments=self._writer.num_begun,
                num_torn=self._num_torn,
                is_failing=self._is_failing,
            )

    def _write(self, lines: bytes, num_records: int, *, at: float) -> bool:
        """Whether it was written. The lock is held."""
        try:
            self._writer.write(lines, at=at)
        except OSError as error:
            self._is_failing = True
            self._fail(error)
            return False
        self._num_recorded += num_records
        return True

    def _fail(self, error: OSError) -> None:
        """Counts it, and tells somebody, though not each time. The lock is held."""
        self._num_failures += 1
        now = time.monotonic()
        if now >= self._alarmed_at + _ALARM_S:
            self._alarmed_at = now
            reason = errorcode.get(error.errno or 0, "unknown")
            log.error("usage_not_recorded", reason=reason, num_waiting=len(self._backlog), num_unrecorded=self._num_unrecorded)

    def _put_aside(self, line: bytes) -> None:
        """The lock is held."""
        if self._on_failure is OnFailure.CLOSED:
            self._num_unrecorded += 1
            raise _unrecordable()
        if self._backlog_bytes + len(line) > _BACKLOG_BYTES:
            self._num_unrecorded += 1
            return
        self._backlog.append(line)
        self._backlog_bytes += len(line)

    def _keep_syncing(self) -> None:
        while not self._is_closing.wait(_SYNC_S):
            self._recover()
            self._sync()

    def _recover(self) -> None:
        """Tries a disk that refused, and writes what waits for it, a chunk at a time."""
        if not self._is_failing:
            return
        with self._lock:
            try:
                self._writer.probe(at=time.time())
            except OSError as error:
                self._fail(error)
                return
            self._is_failing = False
        while self._write_chunk():
            pass
        if not self._is_failing:
            log.warning("usage_recorded_again", num_unrecorded=self._num_unrecorded)

    def _write_chunk(self) -> bool:
        """Whether there may be more to write."""
        with self._lock:
            chunk: list[bytes] = []
            num_bytes = 0
            while self._backlog and num_bytes < _CHUNK_BYTES:
                line = self._backlog.popleft()
                chunk.append(line)
                num_bytes += len(line)
            if not chunk:
                return False
            if not self._write(b"".join(chunk), len(chunk), at=time.time()):
                self._backlog.extendleft(reversed(chunk))
                return False
            self._backlog_bytes -= num_bytes
            return True

    def _sync(self) -> None:
        with self._lock:
            writer = self._writer
            retired, writer.retired = writer.retired, []
            current, num_begun = writer.current, writer.num_begun
        for segment in retired:
            self._sync_one(segment)
            with self._lock:
                self._look_for(segment)
            os.close(segment.fd)
        if current is not None:
            is_synced = self._sync_one(current)
            with self._lock:
                # What cannot be synced may be lost, and what has no name is: the rest goes elsewhere.
                if not (self._look_for(current) and is_synced) and writer.current is current:
                    writer.retire()
        if num_begun != self._num_listed and self._sync_directory():
            self._num_listed = num_begun

    def _look_for(self, segment: OpenSegment) -> bool:
        """Whether it has a name still; if not, what was written since it was last seen is lost. The lock is held."""
        num_unseen, segment.num_unseen = segment.num_unseen, 0
        if not segment.is_removed:
            return True
        if num_unseen:
            self._num_unrecorded += num_unseen
            log.error("usage_segment_removed", num_lost=num_unseen)
        return False

    def _sync_one(self, segment: OpenSegment) -> bool:
        try:
            segment.sync()
        except OSError as error:
            with self._lock:
                self._fail(error)
            return False
        return True

    def _sync_directory(self) -> bool:
        """So that the names of new segments outlive a power cut, too."""
        try:
            fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            with self._lock:
                self._fail(error)
            return False
        return True


def _unrecordable() -> Overloaded:
    return Overloaded("usage cannot be recorded at the moment", retry_after_s=_RETRY_AFTER_S, refused=Refused.USAGE_AWAY)


def _look_for_torn(directory: Path) -> int:
    """Segments that a crash left with half a line: readers skip it, and nothing is ever written behind it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        segments = list_segments(directory)[-_MAX_CHECKED:]
    except OSError as error:
        raise ConfigError(f"usage_dir is {str(directory)!r}; no log can be kept there: {error.strerror}") from error
    if not os.access(directory, os.W_OK | os.X_OK):
        raise ConfigError(f"usage_dir is {str(directory)!r}; it must be a folder that can be written to")
    torn = []
    for segment in segments:
        with suppress(OSError):  # It was moved away meanwhile, or is another's.
            if has_torn_end(segment.path):
                torn.append(segment.path.name)
    if torn:
        log.warning("usage_torn", segments=torn)
    return len(torn)
