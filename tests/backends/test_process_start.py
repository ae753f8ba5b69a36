"""The start of a process: it fails in words, is late, is called off, and leaves nothing."""

import asyncio
from pathlib import Path

import anyio
import pytest

from backends.base import ContractBreach, WorkerLost
from backends.process import RemoteError
from batcher.errors import ConfigError
from tests.backends.hosting import in_process, loaded, num_open_files, odd

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("name", ["RaisesInConstructor", "RaisesInLoad"])
async def test_a_start_that_raises_says_what(name: str) -> None:
    backend = odd(name)
    with pytest.raises(RemoteError, match=r"^RuntimeError: no GPU today") as raised:
        await backend.load()
    assert 'raise RuntimeError("no GPU today")' in raised.value.__notes__[0], "where in its own code"
    assert backend.pid is None
    assert "did not start" in str(await backend.wait_lost())


@pytest.mark.parametrize("name", ["tests.backends.odd:missing", "tests.backends.missing:f", "tests.backends.odd:takes_two"])
async def test_a_name_that_cannot_work_is_a_config_error(name: str) -> None:
    backend = in_process(name)
    with pytest.raises(ConfigError, match=name):
        await backend.load()
    assert backend.pid is None


async def test_what_is_not_installed_is_a_config_error() -> None:
    backend = odd("ImportsInLoad")
    with pytest.raises(
        ConfigError, match=r"odd:ImportsInLoad': no module named 'no_such_dependency' \(is its extra installed\?"
    ):
        await backend.load()
    assert backend.pid is None


async def test_a_start_that_exits_is_a_lost_worker() -> None:
    backend = odd("ExitsInLoad")
    with pytest.raises(WorkerLost, match="exit code 7"):
        await backend.load()
    assert backend.pid is None


async def test_a_start_that_takes_too_long_is_ended() -> None:
    backend = odd("NeverReady", start_timeout_s=0.3)
    with pytest.raises(WorkerLost, match=r"was not ready within 0\.3 s"):
        await backend.load()
    assert backend.pid is None


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.01, 0.1])
async def test_a_cancelled_start_leaves_no_process(after_s: float) -> None:
    backend = odd("NeverReady")
    loading = asyncio.ensure_future(backend.load())
    await asyncio.sleep(after_s)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    assert backend.pid is None


async def test_a_start_cancelled_again_and_again_leaves_no_process() -> None:
    """An anyio scope does not cancel once: it cancels every await until the code has left it."""
    backend = odd("NeverReady")
    with anyio.move_on_after(0.1) as scope:
        await backend.load()
    assert scope.cancelled_caught
    await backend.close()
    assert backend.pid is None


async def test_the_current_directory_serves_the_user_and_not_the_transport(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "backends").mkdir()
    (tmp_path / "backends" / "__init__.py").write_text("raise RuntimeError('the package of a user')\n")
    (tmp_path / "model_of_a_user.py").write_text("def run_batch(inputs):\n    return [text.upper() for text in inputs]\n")
    monkeypatch.chdir(tmp_path)
    async with loaded(in_process("model_of_a_user:run_batch")) as backend:
        assert await backend.run_batch(["x"]) == ["X"]


async def test_loads_once() -> None:
    backend = in_process()
    with pytest.raises(ContractBreach, match="before load"):
        await backend.run_batch(["x"])
    async with loaded(backend):
        with pytest.raises(ContractBreach, match="twice"):
            await backend.load()
        assert await backend.run_batch(["x"]) == ["<x>"]


async def test_starts_and_ends_leave_no_file_open() -> None:
    async with loaded(in_process()):
        pass
    before = num_open_files()
    for _ in range(3):
        async with loaded(in_process()) as backend:
            await backend.run_batch(["x"])
        with pytest.raises(RemoteError):
            await odd("RaisesInLoad").load()
    assert num_open_files() <= before
