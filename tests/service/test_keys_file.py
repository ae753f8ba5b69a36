"""A keys file that changes under a running server: in force within about a second, and a broken file shuts nobody out."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from batcher.config import DEFAULT_TIERS
from batcher.errors import ConfigError
from batcher.keys.file import Keys, change_keys
from batcher.service import keys_file
from batcher.service.auth import Keyring
from batcher.service.keys_file import CHECK_INTERVAL_S, KeySource
from tests.service.keyed import configured, key, put
from tests.service.serving import ASYNC_FAULTY, Gate, Serving, generating, quick, serving, simulated, until
from tests.service.wire_client import request, run

pytestmark = pytest.mark.anyio


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With ada's key and bob's, and looked at all the time."""
    monkeypatch.setattr(keys_file, "CHECK_INTERVAL_S", 0.002)
    file = tmp_path / "keys.toml"
    change_keys(file, put(key("ada"), key("bob")), creates=True)
    return file


async def status(server: Serving, tenant: str) -> int:
    return (await server.ask(run("hello", x_api_key=f"sk-{tenant}"))).status


def contents(file: Path) -> bytes:
    return file.read_bytes()


def overwrite(file: Path, data: bytes | None) -> None:
    """As an editor would, in place; None takes it away."""
    if data is None:
        file.unlink()
    else:
        file.write_bytes(data)


def put_pipe(file: Path) -> None:
    """In its place, at once."""
    pipe = file.with_suffix(".pipe")
    os.mkfifo(pipe)
    pipe.rename(file)


class Told:
    """What the log says of the file."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def count(self, event: str) -> int:
        return sum(record.getMessage() == event for record in self._caplog.records)

    async def until(self, event: str, num: int) -> dict[str, Any]:
        await until(lambda: self.count(event) >= num)
        assert self.count(event) == num
        last = [record for record in self._caplog.records if record.getMessage() == event][-1]
        fields: dict[str, Any] = vars(last)["fields"]
        return fields


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    caplog.set_level(logging.INFO, "batcher")
    return Told(caplog)


def test_a_change_is_seen_within_about_a_second() -> None:
    assert CHECK_INTERVAL_S <= 0.75


async def test_keys_come_go_and_change_without_a_restart(file: Path, told: Told) -> None:
    async with serving(quick(keys_file=file)) as server:
        assert [await status(server, tenant) for tenant in ("ada", "bob", "eve")] == [200, 200, 401]
        change_keys(file, lambda before: (*before, key("eve", "free")))
        assert await told.until("keys_reloaded", 1) == {"num_keys": 3}
        assert await status(server, "eve") == 200
        change_keys(file, put(key("eve", "free")))
        await told.until("keys_reloaded", 2)
        assert [await status(server, tenant) for tenant in ("ada", "bob", "eve")] == [401, 401, 200]
        # The last one: nobody gets in, and that is no mistake.
        change_keys(file, put())
        await told.until("keys_reloaded", 3)
        assert [await status(server, tenant) for tenant in ("ada", "bob", "eve")] == [401, 401, 401]
        assert (await server.ask(request("GET", "/health", headers={}))).status == 200


async def test_what_runs_with_a_key_goes_on_when_it_is_revoked(file: Path, gate: Gate, told: Told) -> None:
    async with serving(quick(keys_file=file, backend=ASYNC_FAULTY, service_time=5.0)) as server:
        running = asyncio.ensure_future(server.ask(run(gate.hold, x_api_key="sk-ada")))
        await until(lambda: server.statistics.num_running == 1)
        change_keys(file, put(key("bob")))
        await told.until("keys_reloaded", 1)
        assert await status(server, "ada") == 401
        gate.open()
        assert (await running).status == 200


async def test_continuous_mode_reads_it_again_too(file: Path, told: Told) -> None:
    async with generating(simulated(keys_file=file)) as server:
        models = request("GET", "/v1/models", headers={"x-api-key": "sk-ada"})
        assert (await server.ask(models)).status == 200
        change_keys(file, put(key("bob")))
        await told.until("keys_reloaded", 1)
        assert (await server.ask(models)).status == 401


async def test_a_file_that_cannot_be_read_changes_nothing_and_is_told_once_each_time(file: Path, told: Told) -> None:
    good = contents(file)
    async with serving(quick(keys_file=file)) as server:
        overwrite(file, good[: len(good) // 2 + 7])
        fields = await told.until("keys_file_refused", 1)
        assert (fields["num_keys"], str(file) in fields["reason"]) == (2, True)
        overwrite(file, b"")
        await told.until("keys_file_refused", 2)
        overwrite(file, None)
        assert "there is no keys file" in (await told.until("keys_file_refused", 3))["reason"]
        await asyncio.sleep(0.02)  # Ten looks, of which none finds anything new.
        assert (told.count("keys_file_refused"), told.count("keys_reloaded")) == (3, 0)
        text = generate_latest(server.service.registry).decode()
        assert "batcher_keys 2.0" in text
        assert "batcher_key_reloads_refused_total 3.0" in text
        assert "batcher_key_reloads_total 0.0" in text
        assert [await status(server, tenant) for tenant in ("ada", "bob")] == [200, 200]
        overwrite(file, good)
        await told.until("keys_reloaded", 1)
        change_keys(file, put(key("bob")))
        await told.until("keys_reloaded", 2)
        assert [await status(server, tenant) for tenant in ("ada", "bob")] == [401, 200]


async def test_a_pipe_in_its_place_changes_nothing_and_does_not_end_the_reading(file: Path, told: Told) -> None:
    async with serving(quick(keys_file=file)) as server:
        put_pipe(file)
        assert "it is no regular file" in (await told.until("keys_file_refused", 1))["reason"]
        assert await status(server, "ada") == 200
        overwrite(file, None)
        await told.until("keys_file_refused", 2)
        change_keys(file, put(key("bob")), creates=True)
        await told.until("keys_reloaded", 1)
        assert await status(server, "ada") == 401


async def test_a_key_of_no_tier_here_or_of_the_settings_too_holds_up_no_revocation(file: Path, told: Told) -> None:
    async with serving(quick(keys_file=file, keys=(configured("zoe"),))) as server:
        change_keys(file, put(key("bob"), key("eve", "gold"), key("zoe")))
        await told.until("keys_reloaded", 1)
        fields = await told.until("key_left_out", 2)
        assert fields == {"key_id": "key_zoe", "reason": "it is configured by the settings, too"}
        assert [await status(server, tenant) for tenant in ("ada", "bob", "eve", "zoe")] == [401, 200, 401, 200]


async def test_a_refused_file_is_tried_again_though_it_has_not_changed(
    file: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revocation is not lost since there was no descriptor left to read it with."""

    def refuse(file: Path) -> Keys:
        raise ConfigError("Too many open files")

    monkeypatch.setattr(keys_file, "RETRY_S", 0.01)
    async with serving(quick(keys_file=file)) as server:
        with monkeypatch.context() as patch:
            patch.setattr(keys_file, "read_keys", refuse)
            change_keys(file, put(key("bob")))
            await told.until("keys_file_refused", 1)
            await asyncio.sleep(0.05)
            assert told.count("keys_file_refused") == 1, "once for each reason"
            assert "batcher_keys_file_refused 1.0" in generate_latest(server.service.registry).decode()
            assert await status(server, "ada") == 200
        await told.until("keys_reloaded", 1)
        assert [await status(server, tenant) for tenant in ("ada", "bob")] == [401, 200]
        text = generate_latest(server.service.registry).decode()
        assert "batcher_keys_file_refused 0.0" in text
        assert "batcher_key_reloads_refused_total 1.0" in text


def test_a_mode_is_a_change_too(file: Path) -> None:
    before = keys_file._mark_of(file)
    # Many a system tells the time of a change by its clock's tick, which may be that of the file's birth.
    deadline = time.monotonic() + 5.0
    while keys_file._mark_of(file) == before:
        assert time.monotonic() < deadline
        time.sleep(0.005)
        file.chmod(0o640)


async def test_a_surprise_while_reading_is_told_and_it_goes_on(file: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(quick(keys_file=file)) as server:
        with monkeypatch.context() as patch:
            patch.setattr(keys_file, "read_keys", lambda file: 1 / 0)
            os.utime(file)
            await told.until("keys_file_refused", 1)
        assert await status(server, "ada") == 200
        change_keys(file, put(key("bob")))
        await told.until("keys_reloaded", 1)


async def test_an_unchanged_file_is_not_read_and_a_closed_source_looks_no_more(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = KeySource(configured=(), file=file, tiers=DEFAULT_TIERS)
    looks: list[object] = []
    real = keys_file._mark_of

    def look(file: Path) -> Any:
        looks.append(file)
        return real(file)

    monkeypatch.setattr(keys_file, "_mark_of", look)
    monkeypatch.setattr(keys_file, "read_keys", lambda file: 1 / 0)
    source.start()
    await until(lambda: len(looks) >= 3)
    source.close()
    num_looks = len(looks)
    await asyncio.sleep(0.02)
    assert len(looks) == num_looks


async def test_a_source_closed_while_it_reads_is_silent_and_looks_no_more(
    file: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_reading, may_read = threading.Event(), threading.Event()
    others = set(threading.enumerate())  # One of another test may still be about to end.

    def read(file: Path) -> Keys:
        is_reading.set()
        may_read.wait()
        return ()

    source = KeySource(configured=(), file=file, tiers=DEFAULT_TIERS)
    monkeypatch.setattr(keys_file, "read_keys", read)
    source.start()
    os.utime(file, (1, 1))
    await until(is_reading.is_set)
    reading = [thread for thread in set(threading.enumerate()) - others if thread.name.startswith("keys-file")]
    assert [thread.daemon for thread in reading] == [True], "where the disk hangs the process must end all the same"
    looked = source._timer
    source.close()
    may_read.set()
    await asyncio.sleep(0.02)
    assert source._timer is looked
    assert told.count("keys_reloaded") == told.count("keys_file_refused") == 0
    assert source.keys.find(b"sk-ada").tenant == "ada"


@pytest.mark.parametrize(
    "ends", [lambda read: read.set_result(Keyring((), DEFAULT_TIERS)), lambda read: read.set_exception(OSError())]
)
async def test_what_a_thread_has_read_when_the_source_closes_is_not_heard(
    file: Path, told: Told, ends: Callable[["asyncio.Future[Keyring]"], None]
) -> None:
    source = KeySource(configured=(), file=file, tiers=DEFAULT_TIERS)
    source.close()
    read: asyncio.Future[Keyring] = asyncio.get_running_loop().create_future()
    ends(read)
    source._on_read(file, read)
    assert source._timer is None
    assert told.count("keys_reloaded") == told.count("keys_file_refused") == 0
    assert source.keys.find(b"sk-ada").tenant == "ada"
