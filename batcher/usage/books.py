"""Usage added up: what each key, model or day had, each question billed once.

Records that share an idempotency digest within 24 hours are one question that was answered more than once: after a crash, or
since its answer was kept no longer. The last that was given in full is billed, since that is the one its client has; without
any, the last. To know it takes all records of a digest, and a busy day has more digests than fit into memory, so they wait in
temporary files by their first bits, and one file at a time is put in order. To remember the latest in memory was refused: a
bound on that forgets the first of two records just when there are many.
"""

import struct
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from enum import StrEnum
from hashlib import blake2b
from itertools import groupby
from operator import itemgetter
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, NamedTuple, Self

from batcher.config import MAX_KEEP_S
from batcher.types import Outcome
from batcher.usage.record import UsageRecord
from batcher.usage.segments import DAY_S, date_of

_NUM_FILES = 64
"""So much of a window's digests is in memory at a time: a hundred million of them are some 400 MB."""

_ENTRY = struct.Struct("<16sd?Iqq")  # Digest, finished_at, whether it was given in full, group, input and output tokens.


class By(StrEnum):
    """What usage is added up by."""

    KEY = "key"
    MODEL = "model"
    DAY = "day"
    """Of UTC, on which the answer ended."""
    TENANT = "tenant"
    TIER = "tier"


class Row(NamedTuple):
    group: tuple[str, ...]
    """A name for each `By`, in order."""
    num_requests: int
    input_tokens: int
    output_tokens: int

    @property
    def numbers(self) -> tuple[int, int, int]:
        return self.num_requests, self.input_tokens, self.output_tokens


class _Sum:
    __slots__ = ("input_tokens", "num_requests", "output_tokens")

    def __init__(self) -> None:
        self.num_requests = 0
        self.input_tokens = 0
        self.output_tokens = 0

    def add(self, input_tokens: int, output_tokens: int) -> None:
        self.num_requests += 1
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens


class Books:
    """Adds records in any order; `rows` ends it. A context: what it keeps on disk is gone afterwards.

    `_sums` has an entry for each group, which the keys, models and days that there are bound; `_groups` numbers them.
    """

    def __init__(self, by: Iterable[By], *, first_day: int | None = None, last_day: int | None = None) -> None:
        """Days are counted since 1970, both included; None is without end."""
        self._by = tuple(by)
        self._from_at = -float("inf") if first_day is None else first_day * DAY_S
        self._until_at = float("inf") if last_day is None else (last_day + 1) * DAY_S
        self._sums: list[_Sum] = []
        self._groups: dict[tuple[str, ...], int] = {}
        self._files: dict[int, IO[bytes]] = {}
        self._stack = ExitStack()
        self.num_repeated = 0
        """Records that are not billed since another one of the same question is. Known after `rows`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def add(self, record: UsageRecord) -> None:
        at = record.finished_at
        if record.idempotency is None:
            if self._from_at <= at < self._until_at:
                self._sums[self._group_of(record)].add(record.input_tokens, record.output_tokens)
        elif self._from_at - MAX_KEEP_S <= at < self._until_at + MAX_KEEP_S:
            # Also from outside of the days asked for: the one that is billed may be there.
            digest = blake2b(record.idempotency.encode(), digest_size=16).digest()
            is_full = record.outcome is Outcome.OK
            entry = _ENTRY.pack(digest, at, is_full, self._group_of(record), record.input_tokens, record.output_tokens)
            self._file_of(digest).write(entry)

    def rows(self) -> list[Row]:
        """The groups that had a request, in order. Call it once."""
        for file in self._files.values():
            self._settle(file)
        return [
            Row(group, total.num_requests, total.input_tokens, total.output_tokens)
            for group, total in ((group, self._sums[number]) for group, number in sorted(self._groups.items()))
            if total.num_requests
        ]

    def _group_of(self, record: UsageRecord) -> int:
        group = tuple(_name(record, by) for by in self._by)
        number = self._groups.setdefault(group, len(self._sums))
        if number == len(self._sums):
            self._sums.append(_Sum())
        return number

    def _file_of(self, digest: bytes) -> IO[bytes]:
        number = digest[0] % _NUM_FILES
        file = self._files.get(number)
        if file is None:
            file = self._files[number] = TemporaryFile()  # noqa: SIM115
            self._stack.enter_context(file)
        return file

    def _settle(self, file: IO[bytes]) -> None:
        file.seek(0)
        entries = sorted(_ENTRY.iter_unpack(file.read()), key=itemgetter(0, 1))
        for _, same in groupby(entries, key=itemgetter(0)):
            for question in _windows(same):
                self.num_repeated += len(question) - 1
                _, at, _, group, input_tokens, output_tokens = max(question, key=itemgetter(2, 1))
                if self._from_at <= at < self._until_at:
                    self._sums[group].add(input_tokens, output_tokens)


_Entry = tuple[bytes, float, bool, int, int, int]


def _windows(entries: Iterable[_Entry]) -> Iterator[list[_Entry]]:
    """Cuts what is in order of time where the key has come to mean another question."""
    question: list[_Entry] = []
    for entry in entries:
        if question and entry[1] - question[0][1] >= MAX_KEEP_S:
            yield question
            question = []
        question.append(entry)
    if question:
        yield question


def _name(record: UsageRecord, by: By) -> str:
    match by:
        case By.KEY:
            return record.key
        case By.MODEL:
            return record.model
        case By.DAY:
            return date_of(int(record.finished_at // DAY_S))
        case By.TENANT:
            return record.tenant
        case By.TIER:
            return record.tier
