"""A real app under our own uvicorn server on loopback, in the test's event loop, and what must be true of it afterwards."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette

from batcher.config import PolicyName
from batcher.core.dispatch.statistics import DispatchStatistics
from batcher.service.batch_service import BatchService
from batcher.service.server import Server, create_server
from batcher.settings import Settings
from tests.service.wire_client import PATIENCE_S, Response, connected

FAULTY = "tests.backends.faulty:FaultyBackend"
ASYNC_FAULTY = "tests.backends.faulty:AsyncFaultyBackend"


def quick(**settings: Any) -> Settings:
    """Settings of a service whose batches leave at once and take 10 ms, unless told otherwise."""
    defaults: dict[str, Any] = {
        "port": 0,
        "workers": 2,
        "policy": PolicyName.SIZE_OR_TIMEOUT,
        "batch_timeout": 0.0,
        "service_time": 0.01,
    }
    return Settings(**{**defaults, **settings})


class Gate:
    """Holds a batch of the faulty backends: one with the input `hold` does not end before the gate is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.hold = f"HOLD:{path}"

    def open(self) -> None:
        self._path.touch()


class Serving:
    """A server that listens."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.app = cast(Starlette, server.config.app)
        self.service: BatchService = self.app.state.service
        self.port: int = server.servers[0].sockets[0].getsockname()[1]

    @property
    def statistics(self) -> DispatchStatistics:
        return self.service.dispatcher.statistics()

    async def ask(self, data: bytes) -> Response:
        """One request on a connection of its own."""
        async with connected(self.port) as client:
            return await client.ask(data)

    async def until_ready(self, num_workers: int) -> None:
        await until(lambda: self.service.dispatcher.num_ready_workers >= num_workers)

    async def check_idle(self) -> None:
        """The common check after every scenario: what was begun has ended, and everything is free again."""
        await until(lambda: self.statistics.num_live == self.statistics.num_inflight == self.statistics.num_parked == 0)
        statistics = self.statistics
        assert statistics.num_running == 0
        assert all(tier.num_waiting == tier.num_bytes == tier.num_tenants == 0 for tier in statistics.tiers)
        assert self.service.driver.num_live == 0
        self.service.dispatcher.check()


@asynccontextmanager
async def serving(settings: Settings, *, num_ready: int | None = None, breaks: bool = False) -> AsyncIterator[Serving]:
    """Serves until the end of the block. Afterwards nothing may be left: no request, no connection, no task.

    With `breaks` the dispatcher is broken on purpose, and what it still holds says nothing.
    """
    tasks_before = asyncio.all_tasks()
    server = create_server(settings)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    running = Serving(server)
    await running.until_ready(settings.workers if num_ready is None else num_ready)
    try:
        yield running
        if not breaks:
            await running.check_idle()
    finally:
        await _shut_down(server)
    await until(lambda: asyncio.all_tasks() <= tasks_before)


async def _shut_down(server: Server) -> None:
    """As uvicorn does after a drain, less its sleep of 100 ms, which would be most of what a test takes."""
    for listener in server.servers:
        listener.close()
    for connection in list(server.server_state.connections):
        connection.shutdown()
    try:
        await until(lambda: not server.server_state.connections and not server.server_state.tasks)
    finally:
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        async with asyncio.timeout(PATIENCE_S):
            await server.lifespan.shutdown()


async def until(condition: Callable[[], bool]) -> None:
    """For what no event announces."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
