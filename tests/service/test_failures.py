"""Workers that fail, in real processes that are really killed. Nothing is lost, answered twice, or with another's answer."""

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from batcher.config import Isolation, TierConfig
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.types import Outcome, WorkerFault
from tests.backends.hosting import until_gone
from tests.service.errors import assert_error
from tests.service.serving import ASYNC_FAULTY, FAULTY, Gate, Serving, quick, serving, until
from tests.service.wire_client import OPERATOR, connected, request, run

pytestmark = pytest.mark.anyio

PATIENT = (TierConfig("paid", wait_budget_s=3600.0),)
GPUS = "tests.service.gpus"


class Log:
    """What the faulty workers say they did."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _events(self, event: str) -> list[dict[str, Any]]:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def pids(self) -> list[int]:
        return [line["pid"] for line in self._events("load")]

    def pid_running(self, input_: str) -> int:
        (pid,) = {line["pid"] for line in self._events("run") if input_ in line["inputs"]}
        return int(pid)

    def runs(self) -> Counter[str]:
        return Counter(text for line in self._events("run") for text in line["inputs"])


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setenv("FAULTY_LOG", str(tmp_path / "log"))
    return Log(tmp_path / "log")


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUS_DIR", str(tmp_path))
    return tmp_path


def in_processes(**settings: Any) -> Any:
    """Workers in processes, with short rests and nobody refused for a wait."""
    defaults: dict[str, Any] = {
        "backend": FAULTY,
        "isolation": Isolation.PROCESS,
        "restart_backoff": 0.01,
        "breaker_threshold": 100,
        "hang_factor": 100.0,  # On a busy machine a worker stands still for longer than a batch of 10 ms may take.
        "tiers": PATIENT,
    }
    return quick(**{**defaults, **settings})


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def ask_own(server: Serving, input_: str) -> bool:
    """Whether the answer is the input's own."""
    response = await server.ask(run(input_))
    return response.status == 200 and bool(response.json["output"] == f"<{input_}>")


# One worker lost


@pytest.mark.parametrize("deadly", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
async def test_the_batch_of_a_lost_worker_runs_on_another(log: Log, gate: Gate, deadly: signal.Signals) -> None:
    async with serving(in_processes(first_batch_timeout=1.0 if deadly is signal.SIGSTOP else 30.0)) as server:
        lost = asyncio.ensure_future(ask_own(server, gate.hold))
        await until(lambda: gate.hold in log.runs())
        pid = log.pid_running(gate.hold)
        os.kill(pid, deadly)
        gate.open()  # For the next one: this one sees nothing any more.
        assert await lost
        assert log.runs()[gate.hold] == 2
        await until_gone(pid)
        await server.until_ready(2)
        assert all(await asyncio.gather(*(ask_own(server, f"{number}") for number in range(10))))
        fault = WorkerFault.HUNG if deadly is signal.SIGSTOP else WorkerFault.DIED
        assert server.statistics.counters.faults[fault] == 1
        assert server.statistics.num_retries == 1
        assert len(log.pids()) == 3


async def test_nobody_is_sent_to_a_worker_that_died_idle(log: Log) -> None:
    """B82: the death is noticed without a request; at worst one batch meets it."""
    # On a busy machine the other worker may stand still for longer than a batch of 10 ms may take, and counts as hung.
    async with serving(in_processes(hang_factor=100.0)) as server:
        os.kill(log.pids()[0], signal.SIGKILL)
        assert all(await asyncio.gather(*(ask_own(server, f"{number}") for number in range(200))))
        assert server.statistics.num_retries <= 1
        await server.until_ready(2)


async def test_under_kills_and_stops_every_request_has_its_own_answer_once(log: Log) -> None:
    random = Random(81)
    async with serving(
        in_processes(workers=3, max_attempts=10, first_batch_timeout=1.0, hang_factor=10.0, retry_reserve=10_000)
    ) as server:

        async def ask(number: int) -> bool:
            await asyncio.sleep(random.random())
            return await ask_own(server, f"SLEEP:0.0{number:05}")

        asking = asyncio.gather(*(ask(number) for number in range(400)))
        victims: list[int] = []
        for deadly in (signal.SIGKILL, signal.SIGSTOP, signal.SIGKILL):
            await asyncio.sleep(0.2)
            await server.until_ready(2)
            victims.append(next(pid for pid in reversed(log.pids()) if pid not in victims and is_there(pid)))
            os.kill(victims[-1], deadly)
        assert all(await asking)
        counters = server.statistics.counters
        assert counters.faults[WorkerFault.DIED] + counters.faults[WorkerFault.HUNG] >= 2
        assert server.service.meters.tiers["paid"].outcomes[Outcome.OK] == 400
        await server.until_ready(3)


# Bad inputs among good ones


async def _ask_together(server: Serving, gate: Gate, inputs: list[str]) -> list[Any]:
    """All of them in one batch: they wait behind one that is held on the only worker."""
    async with connected(server.port) as first:
        first.write(run(gate.hold))
        await until(lambda: server.statistics.num_running == 1)
        asking = asyncio.gather(*(server.ask(run(input_)) for input_ in inputs))
        await until(lambda: server.statistics.tiers[0].num_waiting == len(inputs))
        gate.open()
        assert (await first.read()).status == 200
        return await asking


@pytest.mark.parametrize("isolation", Isolation)
async def test_only_the_culprits_of_a_batch_get_an_error(gate: Gate, isolation: Isolation) -> None:
    inputs = [f"BOOM{number}" if number in (3, 31) else f"{number}" for number in range(50)]
    async with serving(in_processes(workers=1, isolation=isolation)) as server:
        responses = await _ask_together(server, gate, inputs)
        for input_, response in zip(inputs, responses, strict=True):
            if input_.startswith("BOOM"):
                assert input_ not in assert_error(response, 500, "api_error", may_retry="false")
            else:
                assert response.json["output"] == f"<{input_}>"
        assert sum(server.statistics.counters.faults.values()) == 0
        assert server.statistics.num_splits <= 2 * 12


@pytest.mark.parametrize("input_", ["EXIT", "QUIT", "CANCEL"])
async def test_an_input_that_kills_its_worker_takes_few_along(gate: Gate, input_: str) -> None:
    """B81. After two losses the batch runs in four parts: at most a quarter shares the fate of the culprit."""
    inputs = [input_ if number == 3 else f"{number}" for number in range(8)]
    async with serving(in_processes(workers=1)) as server:
        responses = await _ask_together(server, gate, inputs)
        failed = [number for number, response in enumerate(responses) if response.status != 200]
        assert 3 in failed
        assert len(failed) <= 2
        for number in failed:
            assert_error(responses[number], 500, "api_error", may_retry="true")
        assert all(responses[number].json["output"] == f"<{number}>" for number in range(8) if number not in failed)
        await server.until_ready(1)
        assert await ask_own(server, "next")


@pytest.mark.parametrize("input_", ["WRONG", "TYPES", "NOTHING"])
@pytest.mark.parametrize("isolation", Isolation)
async def test_outputs_that_break_the_contract_reach_nobody(gate: Gate, input_: str, isolation: Isolation) -> None:
    """B03: an error that names the fault and no input, and a counter."""
    async with serving(in_processes(workers=1, isolation=isolation)) as server:
        responses = await _ask_together(server, gate, ["a", input_])
        for response in responses:
            if response.status != 200:
                message = assert_error(response, 500, "api_error", may_retry="true")
                assert "run_batch returned" in message
                assert input_ not in message
        assert responses[1].status == 500
        assert server.statistics.counters.num_bad_outputs >= 3
        metrics = (await server.ask(request("GET", "/metrics", headers=OPERATOR))).body.decode()
        assert f"batcher_batch_output_mismatch_total {server.statistics.counters.num_bad_outputs}.0" in metrics
        await server.until_ready(1)
        assert await ask_own(server, "next")


@pytest.mark.parametrize("isolation", Isolation)
async def test_an_output_that_is_no_text_is_an_error_of_ours(gate: Gate, isolation: Isolation) -> None:
    async with serving(in_processes(workers=1, isolation=isolation)) as server:
        response = await server.ask(run("SURROGATE"))
        may_retry = response.headers["x-should-retry"]
        assert_error(response, 500, "api_error", may_retry=may_retry)
        assert await ask_own(server, "next")
        outcomes = server.service.meters.tiers["paid"].outcomes
        assert {str(outcome): num for outcome, num in outcomes.items() if num} == {"failed": 1, "ok": 1}


# A whole fleet lost


@pytest.mark.parametrize("isolation", Isolation)
async def test_without_a_worker_requests_are_refused_at_once_and_served_again_later(orders: Path, isolation: Isolation) -> None:
    power = orders / "power"
    settings = in_processes(backend=f"{GPUS}:NeedsPower", isolation=isolation, breaker_rest=0.05, request_timeout=2.0)
    async with serving(settings, num_ready=0) as server:
        await until(lambda: server.statistics.counters.faults[WorkerFault.NOT_STARTED] >= 2)
        for path in ("/v1/run", "/v1/run?x"):
            assert "no worker" in assert_error(await server.ask(run("early", path=path)), 529, "overloaded_error")
        assert (await server.ask(request("GET", "/ready"))).status == 503
        assert (await server.ask(request("GET", "/health"))).status == 200
        power.write_text("on")
        await server.until_ready(2)
        assert (await server.ask(request("GET", "/ready"))).status == 200
        assert await ask_own(server, "served")
        power.unlink()
        assert (await server.ask(run("the last straw"))).status == 504
        await until(lambda: server.service.dispatcher.num_ready_workers == 0)
        assert_error(await server.ask(run("refused")), 529, "overloaded_error")
        power.write_text("on")
        await server.until_ready(2)
        assert await ask_own(server, "served again")


async def test_a_frozen_worker_is_taken_out_and_comes_back_by_a_canary(orders: Path) -> None:
    """B90: nobody asks the worker how it is; its batch passed its deadline."""
    ice = orders / "ice"
    settings = in_processes(
        backend=f"{GPUS}:Freezes", workers=1, breaker_threshold=1, breaker_rest=0.05, first_batch_timeout=0.1, max_attempts=5
    )
    async with serving(settings) as server:
        ice.write_text("cold")
        asking = asyncio.gather(*(ask_own(server, f"{number}") for number in range(5)))
        await until(lambda: server.statistics.counters.faults[WorkerFault.HUNG] == 1)
        assert server.statistics.num_broken_workers == 1
        assert (await server.ask(request("GET", "/ready"))).status == 503
        ice.unlink()
        assert all(await asking)
        assert server.statistics.num_broken_workers == 0


async def test_the_first_batch_may_be_slow() -> None:
    """B11: a cold start, no sample yet, and five clients one after another."""
    async with serving(quick(backend=ASYNC_FAULTY, workers=1)) as server:
        assert await ask_own(server, "SLEEP:0.3")
        for number in range(4):
            assert await ask_own(server, f"{number}")
        assert server.statistics.num_retries == 0


# Our own failure


async def test_a_dispatcher_that_fails_makes_the_service_unready(monkeypatch: pytest.MonkeyPatch) -> None:
    """B11, B81: a bug in a decision is no reason to look healthy, nor to keep anybody waiting for an answer."""

    def fail(self: Dispatcher, *, now: float, due_at: float | None = None) -> None:
        raise ZeroDivisionError

    async with serving(quick(request_timeout=0.02, backend=ASYNC_FAULTY), breaks=True) as server:
        assert (await server.ask(request("GET", "/ready"))).status == 200
        async with connected(server.port) as client:
            with monkeypatch.context() as patch:
                patch.setattr(Dispatcher, "tick", fail)
                client.write(run("SLEEP:0.05"))
                await until(lambda: not server.service.driver.is_ready)
                assert_error(await client.read(), 500, "api_error", may_retry="true")
            assert_error(await client.ask(run("hello")), 500, "api_error", may_retry="true")
        assert (await server.ask(request("GET", "/ready"))).status == 503
        assert (await server.ask(request("GET", "/health"))).status == 200


async def test_a_handler_that_fails_answers_in_the_usual_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(quick()) as server:
        with monkeypatch.context() as patch:
            patch.setattr(Dispatcher, "statistics", lambda self: 1 / 0)
            response = await server.ask(request("GET", "/load", headers=OPERATOR))
        assert "ZeroDivision" not in assert_error(response, 500, "api_error", may_retry="true")
        assert (await server.ask(request("GET", "/load", headers=OPERATOR))).status == 200
