"""`batcher usage` as it is typed."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from batcher.__main__ import app
from tests.usage.examples import NOON, record, write


def run(*arguments: str | Path, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["usage", *map(str, arguments)], env={"COLUMNS": "100"})
    assert result.exit_code == exit_code, result.output
    return result


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, record(tenant="[red]acme", tokens=(1000, 1)), record(key="key_b", tokens=(500, 2)), tail=b'{"torn')
    write(tmp_path, record(tokens=(2000, 3), at=NOON + 86_400), date="2026-12-01")
    return tmp_path


def test_csv(folder: Path) -> None:
    result = run(folder, "--by", "day", "--by", "key", "--format", "csv")
    assert result.stdout == (
        "day,key,requests,input_tokens,output_tokens\n"
        "2026-11-30,key_a,1,1000,1\n"
        "2026-11-30,key_b,1,500,2\n"
        "2026-12-01,key_a,1,2000,3\n"
    )
    assert result.stderr == "batcher usage: 1 lines are torn or no records, and were skipped\n"


def test_json(folder: Path) -> None:
    result = run(folder, "--from", "2026-12-01", "--format", "json")
    assert json.loads(result.stdout) == [{"key": "key_a", "requests": 1, "input_tokens": 2000, "output_tokens": 3}]


def test_table(folder: Path) -> None:
    lines = run(folder, "--by", "tenant", "--by", "tier", "--to", "2026-11-30").stdout.splitlines()
    told = [line.replace("│", "┃").strip("┃") for line in lines if "acme" in line or "total" in line]
    cells = [[cell.strip() for cell in line.split("┃")] for line in told]
    assert cells == [
        ["[red]acme", "paid", "1", "1,000", "1"],
        ["acme", "paid", "1", "500", "2"],
        ["total", "", "2", "1,500", "3"],
    ]


def test_nothing_is_counted_twice(tmp_path: Path) -> None:
    write(tmp_path, record("req_1", idempotency="d"))
    write(tmp_path, record("req_2", idempotency="d", at=NOON + 1), number=2)
    result = run(tmp_path, "--format", "csv", "--by", "key", "--by", "key")
    assert result.stdout.splitlines() == ["key,requests,input_tokens,output_tokens", "key_a,1,10,5"]
    assert "1 records are not billed" in result.stderr


def test_an_empty_folder(tmp_path: Path) -> None:
    assert run(tmp_path, "--format", "csv").stdout == "key,requests,input_tokens,output_tokens\n"
    assert run(tmp_path, "--format", "json").stdout == "[]\n"
    assert run(tmp_path).stdout == "no records\n"


def test_days_without_a_record(folder: Path) -> None:
    assert run(folder, "--from", "2027-01-01").stdout == "no records\n"


def test_far_segments_are_not_opened(folder: Path) -> None:
    far = write(folder, record(), date="2026-11-20")
    far.unlink()
    far.mkdir()  # Reading it would fail.
    assert "2026-11-20" not in run(folder, "--from", "2026-11-30").stderr
    result = run(folder, "--format", "csv", exit_code=1)
    assert "usage-2026-11-20-0001.jsonl cannot be read: Is a directory" in result.stderr
    assert "key_a,2,3000,4" in result.stdout


def test_a_pipe_named_like_a_segment_is_told_and_holds_up_nobody(folder: Path) -> None:
    os.mkfifo(folder / "usage-2026-11-30-0002.jsonl")
    result = run(folder, "--format", "csv", exit_code=1)
    assert "usage-2026-11-30-0002.jsonl cannot be read: it is no regular file" in result.stderr
    assert "key_a,2,3000,4" in result.stdout


BACKWARDS = ("--from", "2026-12-02", "--to", "2026-12-01")


@pytest.mark.parametrize("arguments", [("--by", "colour"), ("--from", "yesterday"), BACKWARDS, ("--format", "xml")])
def test_what_makes_no_sense(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run(tmp_path, *arguments, exit_code=2)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    run(tmp_path / "absent", exit_code=2)
