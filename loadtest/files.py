"""A run on disk: report.json, and beside it the raw samples, so that pictures can be drawn again and new questions asked."""

import gzip
import sys
from array import array
from pathlib import Path
from typing import Any

import msgspec

from batcher.errors import BatcherError
from batcher.sim.workload import Sender
from loadtest.report import Report, encode_report, label_key
from loadtest.samples import Samples
from loadtest.tokens import Tokens

REPORT_FILE = "report.json"
SAMPLES_FILE = "samples.msgpack.gz"


class UnreadableRun(BatcherError):
    """The folder holds no run that this version can read."""


class _SavedTokens(msgspec.Struct, array_like=True):
    """The columns of generated text, in the same way."""

    conversation: bytes
    turn: bytes
    max_tokens: bytes
    first_at: bytes
    last_at: bytes
    num_deltas: bytes
    max_gap_s: bytes
    input_tokens: bytes
    output_tokens: bytes
    stop_reason: bytes
    gap_start: bytes
    num_gaps: bytes
    gaps_s: bytes
    num_gaps_left_out: int


_TOKEN_COLUMNS = {
    "conversation": "I", "turn": "H", "max_tokens": "I", "first_at": "d", "last_at": "d", "num_deltas": "I", "max_gap_s": "f",
    "input_tokens": "I", "output_tokens": "I", "gap_start": "Q", "num_gaps": "I", "gaps_s": "f",
}  # fmt: skip
"""The columns that are arrays, by the type of their numbers."""


class _SavedSamples(msgspec.Struct, array_like=True):
    """The columns, as the bytes of little-endian numbers. Keys are saved as labels: they are secrets."""

    version: int
    senders: list[tuple[str, str, float]]
    planned_at: bytes
    sender: bytes
    is_poison: bytes
    sent_at: bytes
    ended_at: bytes
    ending: bytes
    status: bytes
    num_unasked: int
    num_repeated: int
    tokens: _SavedTokens | None = None


def save_run(folder: Path, report: Report, samples: Samples) -> None:
    """Write both files, making the folder where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / REPORT_FILE).write_bytes(encode_report(report))
    saved = _SavedSamples(
        version=1,
        senders=[(label_key(sender), sender.tier, sender.weight) for sender in samples.senders],
        planned_at=_pack(samples.planned_at),
        sender=_pack(samples.sender),
        is_poison=bytes(samples.is_poison),
        sent_at=_pack(samples.sent_at),
        ended_at=_pack(samples.ended_at),
        ending=bytes(samples.ending),
        status=_pack(samples.status),
        num_unasked=samples.num_unasked,
        num_repeated=samples.num_repeated,
        tokens=None if samples.tokens is None else _save_tokens(samples.tokens),
    )
    (folder / SAMPLES_FILE).write_bytes(gzip.compress(msgspec.msgpack.encode(saved), compresslevel=1, mtime=0))


def load_run(folder: Path) -> tuple[Report, Samples]:
    """What `save_run` wrote. Raises `UnreadableRun`."""
    try:
        report = msgspec.json.decode((folder / REPORT_FILE).read_bytes(), type=Report)
        packed = gzip.decompress((folder / SAMPLES_FILE).read_bytes())
        saved = msgspec.msgpack.decode(packed, type=_SavedSamples)
        samples = Samples(
            senders=tuple(Sender(*sender) for sender in saved.senders),
            planned_at=_unpack("d", saved.planned_at),
            sender=_unpack("H", saved.sender),
            is_poison=bytearray(saved.is_poison),
            sent_at=_unpack("d", saved.sent_at),
            ended_at=_unpack("d", saved.ended_at),
            ending=bytearray(saved.ending),
            status=_unpack("H", saved.status),
            num_unasked=saved.num_unasked,
            num_repeated=saved.num_repeated,
            tokens=None if saved.tokens is None else _load_tokens(saved.tokens),
        )
    except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
        raise UnreadableRun(f"{folder} holds no saved run: {error}") from error
    return report, samples


def _save_tokens(tokens: Tokens) -> _SavedTokens:
    return _SavedTokens(
        **{name: _pack(getattr(tokens, name)) for name in _TOKEN_COLUMNS},
        stop_reason=bytes(tokens.stop_reason),
        num_gaps_left_out=tokens.num_gaps_left_out,
    )


def _load_tokens(saved: _SavedTokens) -> Tokens:
    return Tokens(
        **{name: _unpack(typecode, getattr(saved, name)) for name, typecode in _TOKEN_COLUMNS.items()},
        stop_reason=bytearray(saved.stop_reason),
        num_gaps_left_out=saved.num_gaps_left_out,
    )


def _pack(column: "array[float] | array[int]") -> bytes:
    if sys.byteorder == "little":
        return column.tobytes()
    swapped = column[:]
    swapped.byteswap()
    return swapped.tobytes()


def _unpack(typecode: str, packed: bytes) -> "array[Any]":
    column: array[Any] = array(typecode, packed)
    if sys.byteorder != "little":
        column.byteswap()
    return column
