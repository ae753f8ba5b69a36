"""Every asynchronous test here runs on uvloop, as the server does, and most of them twice: by each way to the endpoint."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.serving import Gate


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return ("asyncio", {"use_uvloop": True})


@pytest.fixture(params=["/v1/run", "/v1/run?by=asgi"], ids=["fast", "asgi"])
def path(request: pytest.FixtureRequest) -> str:
    """Where to post: the fast path inside the protocol, or (for a query string) the ASGI app."""
    way: str = request.param
    return way


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that a client does is an error of ours."""
    with caplog.at_level(logging.INFO):
        yield
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is left over stays, unless nothing refers to it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
