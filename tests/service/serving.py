"""A real app under our own uvicorn server on loopback, in the test's event loop, and what must be true of it afterwards."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette

from batcher.config import Mode, PolicyName
from batcher.core.dispatch.statistics import DispatchStatistics
from batcher.core.replica.statistics import ReplicaStatistics
from batcher.service.batch_service import BatchService
from batcher.service.continuous_service import ContinuousService
from batcher.service.server import Server, create_server
from batcher.settings import Settings
from batcher.types import Outcome
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


def simulated(**settings: Any) -> Settings:
    """Settings of continuous mode with a simulated model whose steps take no time, unless told otherwise."""
    defaults: dict[str, Any] = {
        "mode": Mode.CONTINUOUS,
        "model": "simulated",
        "port": 0,
        "simulated_time_scale": 0.0,
        "kv_blocks": 4096,
        "max_num_seqs": 4,
    }
    return Settings(**{**defaults, **settings})


class Gate:
    """Holds a batch of the faulty backends: one with the input `hold` does not end before the gate is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.hold = f"HOLD:{path}"

    def open(self) -> None:
        self._path.touch()


class Served:
    """A server that listens, whatever its mode."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.app = cast(Starlette, server.config.app)
        self.port: int = server.servers[0].sockets[0].getsockname()[1]

    async def check_front(self) -> None:
        """What the stages of the front door held of requests that are over: nothing."""
        front = self.app.state.service.front
        await until(lambda: front.limiter.statistics().num_open == front.meters.num_open_streams == 0)
        await until(lambda: front.door.bodies.num_bytes == 0)
        assert front.idempotency.statistics().num_running == 0

    async def ask(self, data: bytes) -> Response:
        """One request on a connection of its own."""
        async with connected(self.port) as client:
            return await client.ask(data)


class Serving(Served):
    """One in batch mode."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.service: BatchService = self.app.state.service

    @property
    def statistics(self) -> DispatchStatistics:
        return self.service.dispatcher.statistics()

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
        await self.check_front()


class Generating(Served):
    """One in continuous mode."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.service: ContinuousService = self.app.state.service

    @property
    def statistics(self) -> ReplicaStatistics:
        return self.service.replica.statistics()

    def count(self, outcome: Outcome, tier: str = "paid") -> int:
        return self.service.replica.outcomes[tier][outcome]

    async def until_ready(self, patience_s: float = PATIENCE_S) -> None:
        await until(lambda: self.service.is_ready, patience_s)

    async def check_idle(self) -> None:
        """The common check: nothing live, and every KV block free or cached."""
        await until(lambda: self.service.num_live == self.statistics.num_live == self.statistics.num_inflight_steps == 0)
        statistics = self.statistics
        assert statistics.num_held_blocks == 0
        assert statistics.num_free_blocks + statistics.num_cached_blocks == statistics.num_blocks
        assert statistics.num_free_slots == statistics.num_slots
        assert self.service.replica.num_failed_checks == 0
        await self.check_front()


@asynccontextmanager
async def serving(settings: Settings, *, num_ready: int | None = None, breaks: bool = False) -> AsyncIterator[Serving]:
    """Serves batch mode until the end of the block. Afterwards nothing may be left: no request, no connection, no task.

    With `breaks` the dispatcher is broken on purpose, and what it still holds says nothing.
    """
    async with _started(settings) as server:
        running = Serving(server)
        await running.until_ready(settings.workers if num_ready is None else num_ready)
        yield running
        if not breaks:
            await running.check_idle()


@asynccontextmanager
async def generating(settings: Settings, *, is_ready: bool = True) -> AsyncIterator[Generating]:
    """The same in continuous mode. Without `is_ready` the model is not waited for, and nothing is expected of it at the end."""
    async with _started(settings) as server:
        running = Generating(server)
        if is_ready:
            await running.until_ready()
        yield running
        if is_ready:
            await running.check_idle()


@asynccontextmanager
async def in_mode(mode: str, **settings: Any) -> AsyncIterator[Served]:
    """Either, by its name: continuous or batch."""
    if mode == "continuous":
        async with generating(simulated(**settings)) as continuous:
            yield continuous
    else:
        async with serving(quick(**settings)) as batch:
            yield batch


@asynccontextmanager
async def _started(settings: Settings) -> AsyncIterator[Server]:
    tasks_before = asyncio.all_tasks()
    server = create_server(settings)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await server.startup()
    try:
        yield server
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


async def until(condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """For what no event announces."""
    async with asyncio.timeout(patience_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
