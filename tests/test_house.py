"""The rules of the house, in the same command as the tests: style, types, and who may import whom (DESIGN D2)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(["ruff", "check"], id="ruff"),
        pytest.param(["ruff", "format", "--check"], id="format"),
        pytest.param(["mypy"], id="mypy"),
        pytest.param(["lint-imports"], id="imports"),
    ],
)
def test_the_house_rules_hold(command: list[str]) -> None:
    checked = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_modules_stay_short() -> None:
    """A module over 300 lines is asking for another design."""
    folders = ("batcher", "backends", "benchmarks", "examples", "loadtest", "tests")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    too_long = {str(path.relative_to(ROOT)): n for path in sources if (n := len(path.read_text().splitlines())) > 300}
    assert not too_long
