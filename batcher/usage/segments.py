"""The usage log as files: a folder of segments, each written by one process only and never again after that one.

A segment is lines of JSON. What ends without a newline was cut off by a crash or is still being written, and is no record. One
file for all processes was refused: a line that one of them left torn would take the next one's with it.
"""

import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from batcher.regular_file import open_regular
from batcher.usage.record import UsageRecord

DAY_S = 86_400

_NAME = re.compile(r"usage-(\d{4}-\d{2}-\d{2})-(\d{4,9})\.jsonl")

_MAX_LINE_BYTES = 65_536
"""A record has some 300 bytes; what is longer than this is none, and a damaged file must not fill the reader's memory."""

_END_AT = 253_402_300_800
"""The end of the year 9999: later instants have no date."""

_decoder = msgspec.json.Decoder(UsageRecord)


class Segment(NamedTuple):
    """In the order in which segments began."""

    day: int
    """Of UTC, since 1970: when it began. All of its records end on this day or, where the clock was set
    back, on the day before; or moments after."""
    number: int
    """From 1."""
    path: Path


def date_of(day: int) -> str:
    """`2026-11-30` of a day since 1970."""
    return datetime.fromtimestamp(day * DAY_S, UTC).date().isoformat()


def segment_path(directory: Path, day: int, number: int) -> Path:
    return directory / f"usage-{date_of(day)}-{number:04d}.jsonl"


def list_segments(directory: Path) -> list[Segment]:
    """Oldest first; whatever else lies there is left alone. Raises OSError."""
    segments = []
    with os.scandir(directory) as entries:
        for entry in entries:
            name = _NAME.fullmatch(entry.name)
            if name is None:
                continue
            try:
                began = datetime.strptime(name[1], "%Y-%m-%d").replace(tzinfo=UTC)
            except ValueError:
                continue  # A thirteenth month is nobody's segment.
            segments.append(Segment(int(began.timestamp()) // DAY_S, int(name[2]), Path(entry.path)))
    return sorted(segments)


def has_torn_end(path: Path) -> bool:
    """Whether the last line has no end. Raises OSError."""
    with open_regular(path) as file:
        num_bytes = file.seek(0, os.SEEK_END)
        if num_bytes == 0:
            return False
        file.seek(num_bytes - 1)
        return file.read(1) != b"\n"


def read_records(path: Path) -> Iterator[UsageRecord | None]:
    """The records of a segment, in order; None for each line that is none. Holds one line at a time. Raises OSError."""
    with open_regular(path) as file:
        while line := file.readline(_MAX_LINE_BYTES):
            if not line.endswith(b"\n"):
                while (rest := file.readline(_MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    pass
                yield None
            elif not line.isspace():  # Blanks try whether the disk takes anything.
                yield _decode(line)


def _decode(line: bytes) -> UsageRecord | None:
    try:
        record = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    tokens = (record.input_tokens, record.output_tokens)
    is_sane = all(0 <= count < 2**63 for count in tokens) and 0 <= record.finished_at < _END_AT
    return record if is_sane else None
