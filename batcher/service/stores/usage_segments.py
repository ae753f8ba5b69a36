"""How lines get into the segments of a usage log, and what is done when a disk takes half of one.

A write that failed leaves nothing behind: the segment is cut back to its last whole line, and where even that fails it is never
written again, so its torn end stays its end. To go on behind a torn line was refused: readers would lose the next one with it.
"""

import os
from errno import ENOSPC
from pathlib import Path

from batcher.usage.segments import DAY_S, list_segments, segment_path

_MAX_NUMBERS = 10_000
"""Tries for a name that no other process has taken; each that fails was another's success."""

_PROBE = b" " * 4095 + b"\n"
"""A block of blanks: whether the disk takes it tells whether it would take records."""


class OpenSegment:
    """A file of this process's own. `size` is where its last whole line ends, `num_synced` how much of that is on the disk,
    both in bytes; from `ends_at` on, in seconds since 1970, another segment follows. `num_unseen` are the lines written since
    the file was seen to have a name."""

    __slots__ = ("ends_at", "fd", "num_synced", "num_unseen", "size")

    def __init__(self, fd: int, *, ends_at: float) -> None:
        self.fd = fd
        self.ends_at = ends_at
        self.size = 0
        self.num_synced = 0
        self.num_unseen = 0

    def sync(self) -> None:
        """Brings to the disk what was written before this call; from any thread. Raises OSError."""
        size = self.size
        if size != self.num_synced:
            os.fsync(self.fd)
            self.num_synced = size

    def is_of(self, at: float) -> bool:
        """Whether a record of this instant belongs here. A clock that is set back by moments changes nothing; if it is by more
        than a day, whoever reads the records of that day does not look for them here."""
        return self.ends_at - 2 * DAY_S <= at < self.ends_at

    @property
    def is_removed(self) -> bool:
        """Whether its file has no name any more: what is written there is seen by nobody."""
        return os.fstat(self.fd).st_nlink == 0


class SegmentWriter:
    """The segment that is being written, and those that are not any more and still open. Its owner guards it against threads.

    `current` is None before the first line and after `retire`. `retired` are for the owner to sync and close.
    """

    def __init__(self, directory: Path, *, segment_bytes: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self.current: OpenSegment | None = None
        self.retired: list[OpenSegment] = []
        self.num_begun = 0

    def write(self, lines: bytes, *, at: float) -> None:
        """Appends whole lines that end at this instant (seconds since 1970). Raises OSError, and then none of it is there."""
        segment = self.current
        if segment is None or segment.size >= self._segment_bytes or not segment.is_of(at):
            segment = self._begin(int(at // DAY_S))
        try:
            num_written = os.write(segment.fd, lines)
            if num_written < len(lines):
                # A disk that fills up takes a part. The rest goes through, or says why not.
                num_written += os.write(segment.fd, lines[num_written:])
                if num_written < len(lines):
                    raise OSError(ENOSPC, "only a part was written")
        except OSError:
            self._cut_back(segment)
            raise
        segment.size += len(lines)
        segment.num_unseen += lines.count(b"\n")

    def probe(self, *, at: float) -> None:
        """Raises OSError if the disk would not take a record."""
        self.write(_PROBE, at=at)
        segment = self.current
        assert segment is not None
        segment.size -= len(_PROBE)
        segment.num_unseen -= 1
        self._cut_back(segment)

    def retire(self) -> None:
        """The next line goes to another segment."""
        if self.current is not None:
            self.retired.append(self.current)
            self.current = None

    def _begin(self, day: int) -> OpenSegment:
        self._directory.mkdir(parents=True, exist_ok=True)
        numbers = [segment.number for segment in list_segments(self._directory) if segment.day == day]
        first = max(numbers, default=0) + 1
        for number in range(first, first + _MAX_NUMBERS):
            path = segment_path(self._directory, day, number)
            try:
                fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o640)
            except FileExistsError:
                continue
            self.retire()
            self.current = OpenSegment(fd, ends_at=(day + 1) * DAY_S)
            self.num_begun += 1
            return self.current
        raise FileExistsError(f"no number is free after {first}")

    def _cut_back(self, segment: OpenSegment) -> None:
        try:
            os.ftruncate(segment.fd, segment.size)
        except OSError:
            self.retire()
