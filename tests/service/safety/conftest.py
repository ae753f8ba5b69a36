"""What the tests of the safety stage share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.safety.checkers import RULES, Hanging, written


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    return written(tmp_path, RULES)


@pytest.fixture
def hanging() -> Iterator[None]:
    Hanging.release.clear()
    yield
    Hanging.release.set()
