"""What holds for every test."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A machine that is busy elsewhere makes an example late, and no example wrong; and what fails must fail for everybody.
settings.register_profile("tests", derandomize=True, deadline=None)
settings.load_profile("tests")

for name in ("FORCE_COLOR", "PY_COLORS", "GITHUB_ACTIONS", "COLUMNS"):
    os.environ.pop(name, None)  # How commands write to somebody's terminal is not what is tested.

if not Path("/dev/nvidiactl").exists():
    # Without a GPU its kernels run in Triton's interpreter. That is decided when triton is imported, by whomever.
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="session")
def _no_silent_end() -> Iterator[None]:
    """Nobody ends the test run with status 0 from within: it would pass with half of its tests never run."""
    end = os._exit

    def guarded(status: int) -> None:
        if status == 0:
            raise AssertionError("os._exit(0) was called in the process that runs the tests")
        end(status)

    patch = pytest.MonkeyPatch()
    patch.setattr(os, "_exit", guarded)
    yield
    patch.undo()
