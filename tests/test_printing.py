"""What a command does whose output nobody takes: a line and a status, and never a traceback."""

from pathlib import Path

import pytest

from tests.outputs import WAYS, run, run_unread
from tests.usage.examples import record, write

FORMATS = ("table", "csv", "json")


@pytest.fixture
def commands(tmp_path: Path) -> list[str]:
    """All that print what they have found."""
    write(tmp_path, record())
    file = tmp_path / "keys.toml"
    file.write_text("keys = []\n")
    return [f"keys list --file {file}", *(f"usage {tmp_path} --format {form}" for form in FORMATS)]


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_an_output_that_takes_nothing_is_told_in_a_line(commands: list[str], way: str) -> None:
    for command in commands:
        ended = run(command + way)
        (line,) = ended.stderr.splitlines()
        assert (ended.returncode, line.startswith("batcher: standard output ")) == (1, True)


def test_a_reader_that_has_gone_is_not_worth_a_word(commands: list[str]) -> None:
    for command in commands:
        ended = run_unread(command)
        assert (ended.returncode, ended.stderr) == (1, "")
