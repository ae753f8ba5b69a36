"""What only a process can do: be killed, stopped, noisy, slow to start. Real processes, really killed (DESIGN D9)."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import anyio
import pytest

import backends
from backends import process, wire
from backends.base import BackendSpec, ContractBreach, WorkerLost
from backends.process import ProcessBackend, RemoteError
from batcher.errors import ConfigError
from tests.backends.hosting import FAULTY, ROOT, is_gone, loaded, num_open_files, until_gone

pytestmark = pytest.mark.anyio


def in_process(name: str = FAULTY, *, index: int = 0, start_timeout_s: float = 30.0) -> ProcessBackend:
    return ProcessBackend(BackendSpec(name), index=index, start_timeout_s=start_timeout_s)


def odd(name: str, *, start_timeout_s: float = 30.0) -> ProcessBackend:
    return in_process(f"tests.backends.odd:{name}", start_timeout_s=start_timeout_s)


def running(backend: ProcessBackend) -> int:
    assert backend.pid is not None
    return backend.pid


async def hold(backend: ProcessBackend, tmp_path: Path) -> asyncio.Future[object]:
    """A call that is under way in the process, and does not end."""
    log = tmp_path / "held"
    call = asyncio.ensure_future(backend.run_batch([f"HOLD:{log}"]))
    await asyncio.sleep(0.01)
    assert not call.done()
    return call


# Death


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
    make = backends.create("simulated", isolation="process", settings={"service_time_s": 0.001, "die_rate": 1.0})
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
    backend = ProcessBackend(BackendSpec(sys.argv[1]), index=0)
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


# Start


@pytest.mark.parametrize("name", ["RaisesInConstructor", "RaisesInLoad"])
async def test_a_start_that_raises_says_what(name: str) -> None:
    backend = odd(name)
    with pytest.raises(RemoteError, match=r"^RuntimeError: no GPU today$"):
        await backend.load()
    assert backend.pid is None
    assert "did not start" in str(await backend.wait_lost())


@pytest.mark.parametrize("name", ["tests.backends.odd:missing", "tests.backends.missing:f", "tests.backends.odd:takes_two"])
async def test_a_name_that_cannot_work_is_a_config_error(name: str) -> None:
    backend = in_process(name)
    with pytest.raises(ConfigError, match=name):
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
    assert num_open_files() == before


# Transport


async def test_prints_do_not_disturb_the_transport(capfd: pytest.CaptureFixture[str]) -> None:
    async with loaded(odd("Noisy")) as backend:
        assert await backend.run_batch(["x"]) == ["x"]
    captured = capfd.readouterr()
    assert captured.out == ""
    for line in ("at import", "in load", "in run_batch", "straight to standard output"):
        assert line in captured.err


async def test_wrong_outputs_come_through_for_the_caller_to_judge() -> None:
    async with loaded(in_process()) as backend:
        assert await backend.run_batch(["good", "WRONG"]) == ["<good>"]
        assert await backend.run_batch(["good", "TYPES"]) == ["<good>", 1]
        assert await backend.run_batch(["good", "NOTHING"]) is None
        assert await backend.run_batch(["good"]) == ["<good>"]


async def test_outputs_that_no_frame_carries_fail_the_batch() -> None:
    async with loaded(in_process()) as backend:
        for order, reason in (("OBJECT", "type object"), ("SURROGATE", "surrogate")):
            with pytest.raises(RemoteError, match=rf"cannot leave the process: .*{reason}"):
                await backend.run_batch([order])
        assert await backend.run_batch(["good"]) == ["<good>"]


async def test_inputs_that_no_frame_carries_fail_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with loaded(in_process()) as backend:
        with pytest.raises(wire.CannotCarry, match="surrogate"):
            await backend.run_batch(["secret\ud800"])
        monkeypatch.setattr(wire, "MAX_FRAME_BYTES", 1_000)
        with pytest.raises(wire.CannotCarry, match="more than 1000"):
            await backend.run_batch(["x" * 1_000])
        assert await backend.run_batch(["good"]) == ["<good>"]


async def test_errors_are_bounded_and_always_legible() -> None:
    async with loaded(odd("RaisesLongMessage")) as backend:
        with pytest.raises(RemoteError, match=r"^KeyError: ") as raised:
            await backend.run_batch(["x"])
        assert len(str(raised.value)) == len("KeyError: ") + wire.MAX_ERROR_CHARS


async def test_a_stop_iteration_is_an_ordinary_error() -> None:
    async with loaded(odd("StopsIteration")) as backend:
        with pytest.raises(RemoteError, match="StopIteration: out of luck"):
            await backend.run_batch(["x"])


@pytest.mark.parametrize("name", [FAULTY, "tests.backends.faulty:AsyncFaultyBackend"])
async def test_each_worker_has_one_instance_and_each_hook_is_called_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("FAULTY_LOG", str(log))
    make = backends.create(name, isolation="process")
    async with loaded(make(0)) as first, loaded(make(1)) as second:
        await first.run_batch(["a"])
        await second.run_batch(["b"])
        await first.run_batch(["c"])
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert len({line["pid"] for line in lines}) == 2
    for index, batches in ((0, [["a"], ["c"]]), (1, [["b"]])):
        mine = [line for line in lines if line["index"] == index]
        assert [line["event"] for line in mine] == ["load", *("run" for _ in batches), "close"]
        assert [line["inputs"] for line in mine[1:-1]] == batches
