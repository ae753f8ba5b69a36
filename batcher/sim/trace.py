"""Reads recorded traffic: a CSV of one row per request, as the public traces of LLM inference are published.

Arrivals and lengths come from the same rows, so the rows are put in order once, here: request i has the instant and the
lengths of one recorded request, whoever reads which column. (pandas would be a dependency of the base install for it.)
"""

import csv
import gzip
import itertools
import math
from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from batcher.config.wording import why_unread
from batcher.errors import ConfigError

TIMESTAMP, CONTEXT_TOKENS, GENERATED_TOKENS = "TIMESTAMP", "ContextTokens", "GeneratedTokens"
"""The columns, by the names they have in Azure's public traces of LLM inference."""

MAX_TRACE_ROWS = 20_000_000
"""A day of a large service. A longer file is more likely a mistake than a wish, and would fill the memory."""

MAX_TRACE_TOKENS = 10_000_000
"""Most tokens that a row may claim: longer than any model's context."""


def read_instants(path: Path) -> "array[float]":
    """Seconds from the first row, in ascending order; from a .csv or .csv.gz file whose header names `TIMESTAMP`.

    A timestamp is an ISO date and time (without a zone: UTC) or a number of seconds. Rows may be out of order. Raises
    `ConfigError`, with the line, for what cannot be read.
    """
    instants, _ = _read(path, None)
    return instants


def read_lengths(path: Path, column: str) -> "array[int]":
    """Tokens in this column, in the order of `read_instants`. Raises `ConfigError`, as that does."""
    _, lengths = _read(path, column)
    return lengths


def _read(path: Path, column: str | None) -> "tuple[array[float], array[int]]":
    try:
        with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
            instants, lengths = _read_rows(path, csv.reader(file), column)
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"cannot read the trace {path}: {why_unread(error)}") from error
    if not instants:
        raise ConfigError(f"the trace {path} has no rows")
    if any(later < earlier for earlier, later in itertools.pairwise(instants)):
        order = sorted(range(len(instants)), key=instants.__getitem__)
        instants = [instants[row] for row in order]
        lengths = [lengths[row] for row in order] if column else lengths
    return array("d", (at - instants[0] for at in instants)), array("I", lengths)


def _read_rows(path: Path, reader: "Iterator[list[str]]", column: str | None) -> tuple[list[float], list[int]]:
    header = [name.strip().lstrip("\ufeff") for name in next(reader, [])]
    at_column = _find(path, header, TIMESTAMP)
    length_column = None if column is None else _find(path, header, column)
    instants: list[float] = []
    lengths: list[int] = []
    for num_line, row in enumerate(reader, start=2):
        if not row:
            continue
        if len(instants) == MAX_TRACE_ROWS:
            raise ConfigError(f"the trace {path} has more than {MAX_TRACE_ROWS:,} rows")
        try:
            instants.append(_parse_timestamp(row[at_column]))
            if length_column is not None:
                lengths.append(_parse_length(row[length_column]))
        except (ValueError, IndexError) as error:
            raise ConfigError(f"the trace {path}, line {num_line}: {error} in {','.join(row)[:100]!r}") from error
    return instants, lengths


def _find(path: Path, header: Sequence[str], column: str) -> int:
    if column not in header:
        raise ConfigError(f"the trace {path} has no column {column} in its first line")
    return header.index(column)


def _parse_timestamp(text: str) -> float:
    if "-" in text[1:] and ":" in text:
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds := float(text)):
        raise ValueError(f"{text!r} is no instant")
    return seconds


def _parse_length(text: str) -> int:
    """At least 1: a recorded request that generated nothing cannot be asked for."""
    if not 0 <= (num := int(text)) <= MAX_TRACE_TOKENS:
        raise ValueError(f"{num} is no number of tokens")
    return max(num, 1)
