"""One real Redis for the tests of a module, empty at the start of each."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from benchmarks.redis_server import RedisServer
from tests.service.stores.gateways import Gateways


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
