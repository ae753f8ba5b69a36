"""The line to Redis where it cannot be one, and how it fails."""

import importlib
import logging
import sys

import pytest
from redis.exceptions import ResponseError

from batcher.errors import ConfigError
from batcher.service.stores.redis_link import RedisAway, RedisLink, Script
from benchmarks.redis_server import RedisServer
from tests.service.stores.gateways import start_again, until

SCRIPT = Script("redis_claims.lua")


def test_without_the_package_the_setting_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    monkeypatch.delitem(sys.modules, "batcher.service.stores.redis_link")
    with pytest.raises(ConfigError, match=r"redis: .*pip install 'batcher\[redis\]'"):
        importlib.import_module("batcher.service.stores.redis_link")


def test_an_address_that_is_none_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as refused:
        RedisLink("redis://:hunter2@localhost:99999999/0", store="limits", timeout_s=1.0, max_connections=1)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        ("bogus=1&db=2", "bogus, db"),
        ("retry=5", "retry"),
        ("parser_class=x", "parser_class"),
        ("protocol=9", "protocol"),
        ("socket_timeout=soon", "socket_timeout"),
        ("ssl_cert_reqs=nope&password=hunter2", "ssl_cert_reqs, password"),
    ],
)
def test_a_parameter_that_the_client_does_not_take_is_told_before_it_is_needed(parameters: str, names: str) -> None:
    """Only a connection would find it out, and then call it an error of ours, or Redis away for ever."""
    with pytest.raises(ConfigError) as refused:
        RedisLink(f"rediss://cache/0?{parameters}", store="limits", timeout_s=1.0, max_connections=1)
    assert f"redis is 'rediss://cache/0' with {names}; it must be" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_parameters_that_the_client_takes_are_its() -> None:
    url = "rediss://cache/0?ssl_cert_reqs=none&client_name=front&health_check_interval=5"
    RedisLink(url, store="limits", timeout_s=1.0, max_connections=1)


@pytest.mark.anyio
async def test_it_says_once_that_it_is_away_and_once_that_it_is_back(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    redis_server.kill()
    link = RedisLink(redis_server.url.replace("//", "//:hunter2@"), store="limits", timeout_s=0.5, max_connections=2)
    with caplog.at_level(logging.INFO, logger="batcher"):
        await link.start()
        for _ in range(3):
            with pytest.raises(RedisAway):
                await link.run(SCRIPT, "release", "s", "a")
        await start_again(redis_server)
        await link.close()
        link = RedisLink(redis_server.url, store="claims", timeout_s=0.5, max_connections=2)
        await link.start()
        assert await link.run(SCRIPT, "release", "s", "a") == [b"not_held"]
        redis_server.restart()
        with pytest.raises(RedisAway):
            await link.run(SCRIPT, "release", "s", "a")
        await until(lambda: not link.is_away)
        assert await link.run(SCRIPT, "release", "s", "a") == [b"not_held"]
        await link.close()
    events = [record.getMessage() for record in caplog.records]
    assert events == ["redis_away", "redis_connected", "redis_away", "redis_connected"]
    fields = [vars(record)["fields"] for record in caplog.records]
    assert [told["store"] for told in fields] == ["limits", "claims", "claims", "claims"]
    assert {told["redis"] for told in fields} == {redis_server.url}
    assert "hunter2" not in caplog.text


@pytest.mark.anyio
async def test_what_is_no_reply_of_redis_is_a_failure_like_any_other(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client raises ValueError at some of it: the watch goes on."""
    link = RedisLink(redis_server.url, store="limits", timeout_s=0.5, max_connections=2)
    await link.start()

    asked: list[object] = []

    async def garbled(*command: object) -> object:
        asked.append(command[0])
        raise ValueError("invalid literal for int()")

    with monkeypatch.context() as patch:
        patch.setattr(link, "_call", garbled)
        with pytest.raises(RedisAway):
            await link.run(SCRIPT, "release", "s", "a")
        assert link.is_away
        await until(lambda: asked.count("PING") >= 2)
    await until(lambda: not link.is_away)
    await link.close()


@pytest.mark.anyio
async def test_one_that_answers_pings_and_refuses_the_rest_is_failing(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read-only after a failover, or out of memory."""
    link = RedisLink(redis_server.url, store="limits", timeout_s=0.5, max_connections=2)
    await link.start()

    async def read_only(*command: object) -> object:
        raise ResponseError("READONLY You can't write against a read only replica.")

    with monkeypatch.context() as patch:
        patch.setattr(link, "_call", read_only)
        with pytest.raises(RedisAway):
            await link.run(SCRIPT, "release", "s", "a")
    assert (link.is_away, link.is_failing) == (False, True)
    await link.run(SCRIPT, "release", "s", "a")
    assert not link.is_failing
    await link.close()
