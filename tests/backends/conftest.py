"""Every asynchronous test here runs on both event loops: tests use asyncio's own most often, the server uses uvloop."""

from typing import Any

import pytest


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return ("asyncio", {"use_uvloop": request.param})
