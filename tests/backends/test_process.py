"""What only a process can do: be killed, stopped, end with its parent. Real processes, really killed (DESIGN D9)."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

import backends
from backends import process
from backends.base import WorkerLost
from backends.process import ProcessBackend
from tests.backends.hosting import FAULTY, ROOT, START_TIMEOUT_S, in_process, is_gone, loaded, odd, running, until_gone

pytestmark = pytest.mark.anyio


async def hold(backend: ProcessBackend, tmp_path: Path) -> asyncio.Future[object]:
    """A call that is under way in the process, and does not end."""
    log = tmp_path / "held"
    call = asyncio.ensure_future(backend.run_batch([f"HOLD:{log}"]))
    await asyncio.sleep(0.01)
    assert not call.done()
    return call


async def test_a_killed_process_loses_its_batch(tmp_path: Path) -> None:
    backend = in_process(index=5)
    async with loaded(backend):
        call = await hold(backend, tmp_path)
        os.kill(running(backend), signal.SIGKILL)
        with pytest.raises(WorkerLost, match=r"worker process 5 \(pid \d+\) was ended by SIGKILL"):
            await call
        with pytest.raises(WorkerLost, match="SIGKILL"):
            await backend.run_batch(["after"])
        assert backend.pid is None


async def test_a_killed_idle_process_is_noticed() -> None:
    backend = in_process()
    async with loaded(backend):
        watch = asyncio.ensure_future(backend.wait_lost())
        await backend.run_batch(["before"])
        os.kill(running(backend), signal.SIGKILL)
        assert "SIGKILL" in str(await watch)
        assert "SIGKILL" in str(await backend.wait_lost())


@pytest.mark.parametrize(("order", "reason"), [("EXIT", "code 3"), ("QUIT", "code 4"), ("CANCEL", "code 1")])
async def test_a_backend_that_ends_its_process_loses_the_batch(order: str, reason: str) -> None:
    backend = in_process()
    async with loaded(backend):
        with pytest.raises(WorkerLost, match=reason):
            await backend.run_batch(["good", order])


async def test_worker_lost_in_the_process_ends_it() -> None:
    backend = odd("Loses")
    async with loaded(backend):
        with pytest.raises(WorkerLost, match="exit code 1"):
            await backend.run_batch(["x"])


async def test_a_dead_simulated_gpu_takes_its_process_along() -> None:
    settings = {"service_time_s": 0.001, "die_rate": 1.0}
    make = backends.create("simulated", isolation="process", settings=settings, start_timeout_s=START_TIMEOUT_S)
    async with loaded(make(0)) as backend:
        with pytest.raises(WorkerLost, match="exit code 1"):
            await backend.run_batch(["x"])


@pytest.mark.parametrize("is_busy", [False, True])
async def test_close_ends_a_stopped_process(is_busy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CLOSE_GRACE_S", 0.05)
    backend = in_process()
    async with loaded(backend):
        call = await hold(backend, tmp_path) if is_busy else None
        os.kill(running(backend), signal.SIGSTOP)
        await backend.close()
        if call is not None:
            with pytest.raises(WorkerLost, match="was closed"):
                await call


async def test_a_batch_survives_the_stop_and_the_signals_that_are_not_for_it(tmp_path: Path) -> None:
    """A terminal's Ctrl-C and a service manager's SIGTERM reach every process; a draining parent still wants its answer."""
    backend = in_process()
    async with loaded(backend):
        call = await hold(backend, tmp_path)
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            os.kill(running(backend), number)
        (tmp_path / "held").touch()
        assert await call == [f"<HOLD:{tmp_path / 'held'}>"]


async def test_closing_ends_what_a_hung_backend_started() -> None:
    backend = odd("Starter")
    async with loaded(backend):
        outputs = await backend.run_batch(["x"])
        assert isinstance(outputs, list)
        call = asyncio.ensure_future(backend.run_batch(["HANG"]))
        await asyncio.sleep(0)
        await backend.close()
        with pytest.raises(WorkerLost):
            await call
        await until_gone(int(outputs[0]))


@pytest.mark.parametrize("ending", ["killed", "exits", "closes"])
async def test_what_a_backend_started_ends_with_its_process_however_that_ends(ending: str) -> None:
    """A worker that the kernel killed for memory left its helpers behind, with the GPU memory that they hold."""
    backend = odd("Starter")
    async with loaded(backend):
        outputs = await backend.run_batch(["x"])
        assert isinstance(outputs, list)
        assert not is_gone(int(outputs[0]))
        if ending == "killed":
            os.kill(running(backend), signal.SIGKILL)
        elif ending == "exits":
            with pytest.raises(WorkerLost, match="exit code 3"):
                await backend.run_batch(["EXIT"])
        else:
            await backend.close()
        await until_gone(int(outputs[0]))


async def test_a_cancelled_close_still_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "CLOSE_GRACE_S", 0.05)
    backend = odd("HangsInClose")
    async with loaded(backend):
        closing = asyncio.ensure_future(backend.close())
        await asyncio.sleep(0.01)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await until_gone(running(backend))


PARENT = """
import asyncio, sys
from backends.base import BackendSpec
from backends.process import ProcessBackend

async def main() -> None:
    backend = ProcessBackend(BackendSpec(sys.argv[1]), index=0, start_timeout_s=30.0)
    await backend.load()
    call = asyncio.ensure_future(backend.run_batch(sys.argv[2:])) if sys.argv[2:] else None
    await asyncio.sleep(0.02)
    print(backend.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize(
    "arguments",
    [(FAULTY,), (FAULTY, "SLEEP:3600"), ("tests.backends.odd:HoldsInterpreter", "x")],
    ids=["idle", "busy", "holding the interpreter lock"],
)
async def test_the_process_ends_with_its_parent(arguments: tuple[str, ...]) -> None:
    if arguments[0].endswith("HoldsInterpreter") and sys.platform != "linux":
        return  # Only Linux offers the means.
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PARENT, *arguments), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    assert not is_gone(pid)
    parent.kill()
    await parent.communicate()
    await until_gone(pid)
