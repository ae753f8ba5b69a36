"""What only a backend in this process can do to it: hang a thread, let SystemExit out, outlive its loop."""

import asyncio
import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import backends
from backends import inline
from backends.base import ContractBreach, WorkerLost
from backends.inline import InlineBackend
from tests.backends.hosting import START_TIMEOUT_S, loaded

pytestmark = pytest.mark.anyio


def faulty(attribute: str) -> Any:
    return backends.create(f"tests.backends.faulty:{attribute}", start_timeout_s=START_TIMEOUT_S)(0)


def odd(attribute: str) -> Any:
    return backends.create(f"tests.backends.odd:{attribute}", start_timeout_s=START_TIMEOUT_S)(0)


@pytest.mark.parametrize("attribute", ["run_batch", "run_batch_async"])
@pytest.mark.parametrize(("order", "kind"), [("QUIT", "SystemExit"), ("CANCEL", "CancelledError")])
async def test_what_is_no_exception_loses_the_worker_and_spares_the_loop(attribute: str, order: str, kind: str) -> None:
    """SystemExit in a task would stop the event loop, and the service with it; CancelledError would look like ours."""
    backend = faulty(attribute)
    async with loaded(backend):
        watch = asyncio.ensure_future(backend.wait_lost())
        with pytest.raises(WorkerLost, match=kind):
            await backend.run_batch([order])
        assert kind in str(await watch)
        with pytest.raises(WorkerLost):
            await backend.run_batch(["after"])


async def test_worker_lost_from_the_backend_is_final() -> None:
    backend = odd("Loses")
    async with loaded(backend):
        with pytest.raises(WorkerLost, match="the link to the GPU broke"):
            await backend.run_batch(["x"])
        assert "the link" in str(await backend.wait_lost())


async def test_a_stop_iteration_is_an_ordinary_error() -> None:
    async with loaded(odd("StopsIteration")) as backend:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await backend.run_batch(["x"])


@pytest.mark.parametrize("attribute", ["RaisesInConstructor", "RaisesInLoad"])
async def test_a_start_that_raises_comes_through(attribute: str) -> None:
    backend = odd(attribute)
    with pytest.raises(RuntimeError, match="no GPU today"):
        await backend.load()
    assert "could not start" in str(await backend.wait_lost())
    await backend.close()


async def test_a_start_that_exits_is_a_lost_worker() -> None:
    backend = odd("ExitsInLoad")
    with pytest.raises(WorkerLost, match="SystemExit"):
        await backend.load()


async def test_loads_once() -> None:
    backend = faulty("run_batch")
    with pytest.raises(ContractBreach, match="before load"):
        await backend.run_batch(["x"])
    async with loaded(backend):
        with pytest.raises(ContractBreach, match="twice"):
            await backend.load()


@pytest.mark.parametrize("attribute", ["FaultyBackend", "AsyncFaultyBackend"])
async def test_close_does_not_wait_for_a_hung_batch(attribute: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "CLOSE_GRACE_S", 0.05)
    backend = faulty(attribute)
    async with loaded(backend):
        call = asyncio.ensure_future(backend.run_batch([f"HOLD:{tmp_path / 'gate'}"]))
        await asyncio.sleep(0.01)
        await backend.close()
        with pytest.raises(WorkerLost, match="was closed"):
            await call
    (tmp_path / "gate").touch()


async def test_close_reports_a_backend_that_cannot_close(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "CLOSE_GRACE_S", 30.0)
    with caplog.at_level(logging.ERROR):
        async with loaded(odd("RaisesInClose")):
            pass
    assert "cannot let go" in str(caplog.records[0].exc_info)


async def test_everything_plain_runs_on_one_thread_that_is_not_the_loops() -> None:
    threads = []

    class Backend:
        def __init__(self) -> None:
            threads.append(threading.get_ident())

        def load(self) -> None:
            threads.append(threading.get_ident())

        def run_batch(self, inputs: list[str]) -> list[str]:
            threads.append(threading.get_ident())
            return inputs

        def close(self) -> None:
            threads.append(threading.get_ident())

    async with loaded(InlineBackend(Backend, name="threads")) as backend:
        await backend.run_batch(["x"])
    assert len(threads) == 4
    assert set(threads) != {threading.get_ident()}
    assert len(set(threads)) == 1


async def test_a_closed_backend_leaves_no_thread() -> None:
    async with loaded(faulty("run_batch")) as backend:
        await backend.run_batch(["x"])
        mine = [thread for thread in threading.enumerate() if thread.name == "tests.backends.faulty:run_batch#0"]
        assert mine
    for thread in mine:
        thread.join()


async def test_a_plain_function_may_return_an_awaitable() -> None:
    class Backend:
        def run_batch(self, inputs: list[str]) -> Any:
            async def later() -> list[str]:
                await asyncio.sleep(0.01)
                return inputs

            return later()

    async with loaded(InlineBackend(Backend, name="awaitable")) as backend:
        assert await backend.run_batch(["x"]) == ["x"]
        assert backend.last_run_s is not None
        assert backend.last_run_s > 0.005


class TakesNoCall:
    """Coroutine functions that want what nobody passes: Python raises before there is a coroutine to await."""

    async def run_batch(self, inputs: list[str], temperature: float) -> list[str]:
        return inputs


class TakesNoLoad(TakesNoCall):
    async def load(self, path: str) -> None:
        pass


class TakesNoClose(TakesNoCall):
    async def close(self, reason: str) -> None:
        pass


async def test_a_load_that_cannot_be_called_fails_the_start() -> None:
    """The error left the task that makes the call, and `load` waited for ever for a call that had ended."""
    backend = InlineBackend(TakesNoLoad, name="odd")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="path"):
        await asyncio.wait_for(backend.load(), 5)
    assert "could not start" in str(await backend.wait_lost())


async def test_a_run_batch_that_cannot_be_called_fails_its_batch() -> None:
    async with loaded(InlineBackend(TakesNoCall, name="odd")) as backend:  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(TypeError, match="temperature"):
                await asyncio.wait_for(backend.run_batch(["x"]), 5)


async def test_a_close_that_cannot_be_called_is_reported(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inline, "CLOSE_GRACE_S", 30.0)
    with caplog.at_level(logging.ERROR):
        async with loaded(InlineBackend(TakesNoClose, name="odd")):  # type: ignore[arg-type]
            pass
    assert "reason" in str(caplog.records[0].exc_info)


async def test_an_output_that_cannot_be_looked_at_fails_its_batch() -> None:
    """Whether it is awaitable is asked outside of the measured call; what that raises must reach the caller too."""

    class Hostile:
        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise RuntimeError("do not look")

    class Backend:
        def run_batch(self, inputs: list[str]) -> Any:
            return Hostile()

    async with loaded(InlineBackend(Backend, name="hostile")) as backend:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="do not look"):
                await asyncio.wait_for(backend.run_batch(["x"]), 5)


def test_a_call_that_outlives_its_loop_disturbs_nobody() -> None:
    ended = threading.Event()

    class Backend:
        def run_batch(self, inputs: list[str]) -> list[str]:
            time.sleep(0.05)
            ended.set()
            return inputs

    async def leave_in_the_middle() -> None:
        backend = InlineBackend(Backend, name="late")
        await backend.load()
        call = asyncio.ensure_future(backend.run_batch(["x"]))
        await asyncio.sleep(0.01)
        call.cancel()

    asyncio.run(leave_in_the_middle())
    assert ended.wait(5)
