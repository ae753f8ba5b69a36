"""`batcher usage`: what was used, from the log's folder, while it is being written or long after."""

import csv
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from batcher.printing import printing
from batcher.usage.books import Books, By, Row
from batcher.usage.record import UsageRecord
from batcher.usage.segments import DAY_S, list_segments, read_records

_SLACK_DAYS = 2
"""A segment so far outside of the days asked for has nothing of them: its records end on its own day or moments beside it, and
what shares a question with them ends within a day of that."""

_NUMBERS = ("requests", "input_tokens", "output_tokens")


class Format(StrEnum):
    TABLE = "table"
    CSV = "csv"
    JSON = "json"


class _Reader:
    """Reads the segments that may have records of these days, one line at a time."""

    def __init__(self, directory: Path, *, first_day: int | None, last_day: int | None) -> None:
        self._directory = directory
        self._first_day = first_day
        self._last_day = last_day
        self.num_damaged = 0
        self.num_unreadable = 0

    def __iter__(self) -> Iterator[UsageRecord]:
        for segment in list_segments(self._directory):
            if self._first_day is not None and segment.day < self._first_day - _SLACK_DAYS:
                continue
            if self._last_day is not None and segment.day > self._last_day + _SLACK_DAYS:
                continue
            try:
                for record in read_records(segment.path):
                    if record is None:
                        self.num_damaged += 1
                    else:
                        yield record
            except OSError as error:
                self.num_unreadable += 1
                typer.echo(f"batcher usage: {segment.path.name} cannot be read: {error.strerror}", err=True)


def usage(
    directory: Annotated[Path, typer.Argument(exists=True, file_okay=False, help="The folder given as --usage-dir.")],
    by: Annotated[list[By] | None, typer.Option(help="Add up by this; may be repeated.  [default: key]")] = None,
    first: Annotated[datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="First day, of UTC.")] = None,
    last: Annotated[datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="Last day, included.")] = None,
    form: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TABLE,
) -> None:
    """Add up the usage log: requests and tokens by key, model, day, tenant or tier.

    Records of one Idempotency-Key within 24 hours are billed once: the last answer given in full, or else the last.

    Lines that a crash left torn are skipped, and counted on standard error.
    """
    # Each once, in the order given.
    groups = tuple(dict.fromkeys(by or [By.KEY]))
    first_day, last_day = _day(first), _day(last)
    if first_day is not None and last_day is not None and first_day > last_day:
        raise typer.BadParameter("--from is after --to")
    reader = _Reader(directory, first_day=first_day, last_day=last_day)
    with Books(groups, first_day=first_day, last_day=last_day) as books:
        try:
            for record in reader:
                books.add(record)
            rows = books.rows()
        except OSError as error:
            typer.echo(f"batcher usage: {error}", err=True)
            raise typer.Exit(1) from error
    with printing():
        _print(rows, groups, form)
    if books.num_repeated:
        typer.echo(f"batcher usage: {books.num_repeated} records are not billed: their question is, once", err=True)
    if reader.num_damaged:
        typer.echo(f"batcher usage: {reader.num_damaged} lines are torn or no records, and were skipped", err=True)
    if reader.num_unreadable:
        raise typer.Exit(1)


def _day(date: datetime | None) -> int | None:
    return None if date is None else int(date.replace(tzinfo=UTC).timestamp()) // DAY_S


def _print(rows: list[Row], groups: tuple[By, ...], form: Format) -> None:
    titles = [*(by.value for by in groups), *_NUMBERS]
    if form is Format.JSON:
        objects = [dict(zip(titles, [*row.group, *row.numbers], strict=True)) for row in rows]
        typer.echo(msgspec.json.format(msgspec.json.encode(objects)).decode())
    elif form is Format.CSV:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(titles)
        writer.writerows([*row.group, *row.numbers] for row in rows)
    else:
        _print_table(rows, groups, titles)


def _print_table(rows: list[Row], groups: tuple[By, ...], titles: list[str]) -> None:
    if not rows:
        typer.echo("no records")
        return
    table = Table(show_footer=len(rows) > 1)
    totals = [sum(row.numbers[column] for row in rows) for column in range(len(_NUMBERS))]
    footers = ["total", *[""] * (len(groups) - 1), *(f"{total:,}" for total in totals)]
    for title, footer in zip(titles, footers, strict=True):
        is_number = title in _NUMBERS
        table.add_column(title, footer, justify="right" if is_number else "left", no_wrap=is_number)
    for row in rows:
        # As text, not markup: a tenant may be called [red].
        table.add_row(*(Text(name) for name in row.group), *(f"{number:,}" for number in row.numbers))
    Console().print(table)
