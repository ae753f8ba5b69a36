"""What the supervisor of the workers says in the log: enough to find a fault in somebody's code, and little under a flood."""

import asyncio
import logging
from typing import Any

import pytest
from msgspec.structs import replace

from backends.base import BackendFactory
from backends.inline import InlineBackend
from backends.process import ProcessBackend
from batcher.core.effects import RunBatch, StopWorker
from batcher.errors import ConfigError
from batcher.service.workers import Supervisor
from batcher.types import BatchReason, WorkerFault
from tests.backends.hosting import FAULTY, in_process
from tests.core.examples import a_request

pytestmark = pytest.mark.anyio


class Told:
    """Reports, and waits for them."""

    def __init__(self) -> None:
        self.heard: asyncio.Queue[str] = asyncio.Queue()

    def worker_ready(self, worker_id: int, incarnation: int) -> None:
        self.heard.put_nowait("ready")

    def worker_lost(self, worker_id: int, incarnation: int, fault: WorkerFault) -> None:
        self.heard.put_nowait(fault)

    def worker_misconfigured(self, error: ConfigError) -> None:
        self.heard.put_nowait("misconfigured")

    def batch_completed(self, batch: RunBatch, outputs: object, run_s: float) -> None:
        self.heard.put_nowait("completed")

    def batch_failed(self, batch: RunBatch) -> None:
        self.heard.put_nowait("failed")


class Raising:
    def run_batch(self, inputs: list[str]) -> list[str]:
        raise KeyError("no such weight")


class Unimportable:
    def load(self) -> None:
        raise ImportError("libcuda.so.1 is missing")

    def run_batch(self, inputs: list[str]) -> list[str]:
        return inputs


def _batch(number: int) -> RunBatch:
    return RunBatch(0, 1, number, 1, (replace(a_request(number), input="BOOM"),), BatchReason.PACE)


def _events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    return [vars(record)["fields"] for record in caplog.records if record.getMessage() == name]


def _inline(_: int) -> InlineBackend:
    return InlineBackend(Raising, name="raising")


def _process(_: int) -> ProcessBackend:
    return in_process(FAULTY)


@pytest.mark.parametrize(
    ("factory", "where"), [(_inline, 'raise KeyError("no such weight")'), (_process, "In its process:\nTraceback")]
)
async def test_where_run_batch_raised_is_told_once_a_second(
    caplog: pytest.LogCaptureFixture, factory: BackendFactory, where: str
) -> None:
    told = Told()
    supervisor = Supervisor(factory, told)
    with caplog.at_level(logging.INFO, "batcher"):
        supervisor.start(0, 1)
        assert await told.heard.get() == "ready"
        for number in (1, 2):
            supervisor.run(_batch(number))
            assert await told.heard.get() == "failed"
        await supervisor.close()
    first, second = _events(caplog, "run_batch_raised")
    assert where in first["exception"]
    assert set(second) == {"worker", "batch", "error"}, "under poison it raises many times a second"


async def test_what_came_in_place_of_outputs_is_told(caplog: pytest.LogCaptureFixture) -> None:
    supervisor = Supervisor(_inline, Told())
    with caplog.at_level(logging.INFO, "batcher"):
        supervisor.stop(StopWorker(0, 1, WorkerFault.BAD_OUTPUT, "an output of type int, which is no str,"))
        supervisor.stop(StopWorker(0, 2, WorkerFault.HUNG))
    bad, hung = _events(caplog, "worker_stopped")
    assert bad["returned"] == "an output of type int, which is no str"
    assert set(hung) == {"worker", "incarnation", "fault"}


async def test_a_backend_that_cannot_be_imported_is_a_setting_that_cannot_work(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    supervisor = Supervisor(lambda index: InlineBackend(Unimportable, name="unimportable", index=index), told)
    supervisor.start(0, 1)
    assert [await told.heard.get(), await told.heard.get()] == ["misconfigured", WorkerFault.NOT_STARTED]
    assert _events(caplog, "worker_not_started") == [], "it is told once, by whoever hears of it"
    await supervisor.close()
