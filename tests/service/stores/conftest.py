"""One real Redis for the tests of a module, empty at the start of each; and a disk for those of the usage log."""

import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from batcher.config import OnFailure, UsageConfig
from batcher.service.stores import usage_log
from batcher.service.stores.redis_link import RedisLink
from batcher.service.stores.usage_log import UsageLog
from benchmarks.redis_server import RedisServer
from tests.service.stores.gateways import Gateways
from tests.service.stores.scripted import ScriptedStore
from tests.service.stores.usage_disk import Begin, Disk
from tests.usage.examples import NOON


@pytest.fixture(scope="module")
def running_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    folder: Path = tmp_path_factory.mktemp("redis")
    with RedisServer(folder) as server:
        yield server


@pytest.fixture
def redis_server(running_redis: RedisServer) -> RedisServer:
    running_redis.flush()
    return running_redis


@pytest.fixture
async def gateways(redis_server: RedisServer) -> AsyncIterator[Gateways]:
    async with AsyncExitStack() as stack:
        yield Gateways(stack, redis_server.url)
    redis_server.restart()


@pytest.fixture
def beside(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with closing(redis_server.client()) as client:
        yield client


@pytest.fixture
async def scripted(redis_server: RedisServer, beside: redis.Redis) -> AsyncIterator[ScriptedStore]:
    link = RedisLink(redis_server.url, store="limits", timeout_s=5.0, max_connections=1)
    await link.start()
    yield ScriptedStore(link, beside)
    await link.close()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Begins usage logs, closed at the end. Their thread does nothing by itself: a test calls `_sync` and `_recover`. To them
    it is the day of the examples, whatever day it is."""
    monkeypatch.setattr(usage_log, "_SYNC_S", 3600.0)
    monkeypatch.setattr(usage_log, "time", SimpleNamespace(time=lambda: NOON, monotonic=time.monotonic))
    logs: list[UsageLog] = []

    def begin(*, on_failure: OnFailure = OnFailure.OPEN, segment_bytes: int = 2**20) -> UsageLog:
        logs.append(UsageLog(UsageConfig(directory=tmp_path, segment_bytes=segment_bytes, on_failure=on_failure)))
        return logs[-1]

    yield begin
    for log in logs:
        log.close()
    assert "usage-log" not in [thread.name for thread in threading.enumerate()]
