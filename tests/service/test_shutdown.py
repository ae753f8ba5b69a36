"""How the server ends: it answers what it has accepted, refuses the rest in words, leaves no process, and exits with 0."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from batcher.errors import ConfigError
from batcher.service import server as service_server
from batcher.types import Outcome
from tests.backends.hosting import until_gone
from tests.service.errors import assert_error
from tests.service.process import PATIENCE_S, ROOT, ServerProcess, serve_process
from tests.service.serving import ASYNC_FAULTY, FAULTY, Gate, quick, serving, until
from tests.service.wire_client import OPERATOR, connected, request, run

pytestmark = pytest.mark.anyio

GPUS = "tests.service.gpus"
QUICK = ("--policy", "size-or-timeout", "--batch-timeout", "0", "--service-time", "0.01")
ONE = (*QUICK, "--workers", "1")


async def event(server: ServerProcess, name: str) -> None:
    await anyio.to_thread.run_sync(server.until_event, name)


async def ended(server: ServerProcess) -> int:
    return await anyio.to_thread.run_sync(server.wait)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_server_ends_at_once(number: signal.Signals) -> None:
    with serve_process(*QUICK, "--workers", "2", "--isolation", "process", num_ready=2) as server:
        workers = server.workers()
        assert len(workers) == 2
        server.signal(number)
        assert await ended(server) == 0
        assert server.events()[-2:] == ["draining", "drained"]
        assert server.events(level="error") == server.events(level="warning") == server.other_lines == []
        for pid in workers:
            await until_gone(pid)


async def test_what_was_accepted_is_answered_and_what_comes_is_refused(gate: Gate) -> None:
    with serve_process(*ONE, "--backend", ASYNC_FAULTY, num_ready=1) as server:
        port = server.port
        async with connected(port) as running, connected(port) as waiting, connected(port) as kept, connected(port) as slow:
            assert (await kept.ask(run("before"))).status == 200
            running.write(run(gate.hold))
            waiting.write(run("waits", path="/v1/run?x"))
            half = run("half a request")
            slow.write(half[:-5])
            while (await kept.ask(request("GET", "/load", headers=OPERATOR))).json["live"] < 2:
                pass
            server.signal(signal.SIGTERM)
            await event(server, "draining")
            assert (await kept.ask(request("GET", "/ready"))).status == 503
            assert (await kept.ask(request("GET", "/health"))).status == 200
            slow.write(half[-5:])
            for client in (kept, slow):
                response = await client.read() if client is slow else await client.ask(run("late"))
                assert "shutting down" in assert_error(response, 529, "overloaded_error")
                assert response.headers["connection"] == "close"
                assert await client.read_to_end() == b""
            for path in ("/v1/run", "/v1/run?x"):
                async with connected(port) as new:
                    response = await new.ask(run("late", path=path))
                    assert_error(response, 529, "overloaded_error")
                    assert response.headers["connection"] == "close"
                    assert await new.read_to_end() == b""
            gate.open()
            assert (await running.read()).json["output"] == f"<{gate.hold}>"
            assert (await waiting.read()).json["output"] == "<waits>"
        assert await ended(server) == 0


async def test_an_input_that_is_accepted_survives_its_worker_during_the_drain(gate: Gate, tmp_path: Path) -> None:
    flags = (*QUICK, "--workers", "2", "--isolation", "process", "--backend", FAULTY)
    log = tmp_path / "log"
    with serve_process(*flags, num_ready=2, env={"FAULTY_LOG": str(log), "BATCHER_RESTART_BACKOFF": "0.01"}) as server:
        async with connected(server.port) as client:
            client.write(run(gate.hold))
            await until(lambda: gate.hold in log.read_text())
            server.signal(signal.SIGTERM)
            await event(server, "draining")
            for pid in server.workers():
                os.kill(pid, signal.SIGKILL)
            gate.open()
            assert (await client.read()).json["output"] == f"<{gate.hold}>"
        assert await ended(server) == 0


async def test_after_the_drain_deadline_the_rest_is_told_so(gate: Gate) -> None:
    with serve_process(*ONE, "--backend", ASYNC_FAULTY, "--drain-deadline", "0.1", num_ready=1) as server:
        async with connected(server.port) as running, connected(server.port) as waiting, connected(server.port) as probe:
            running.write(run(gate.hold))
            waiting.write(run("waits", path="/v1/run?x"))
            while (await probe.ask(request("GET", "/load", headers=OPERATOR))).json["live"] < 2:
                pass
            server.signal(signal.SIGTERM)
            for client in (running, waiting):
                response = await client.read()
                assert "could not answer in time" in assert_error(response, 529, "overloaded_error")
                assert response.headers["connection"] == "close"
        assert await ended(server) == 0
        assert "drain_deadline_passed" in server.events()


@pytest.mark.parametrize("isolation", ["inline", "process"])
async def test_a_second_signal_ends_it_now(gate: Gate, isolation: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = (*ONE, "--backend", FAULTY, "--isolation", isolation)
    with serve_process(*flags, num_ready=1, env={"FAULTY_LOG": str(log)}) as server:
        async with connected(server.port) as client:
            client.write(run(gate.hold))
            await until(lambda: gate.hold in log.read_text())
            workers = server.workers()
            server.signal(signal.SIGTERM)
            await event(server, "draining")
            server.signal(signal.SIGTERM)
            assert_error(await client.read(), 529, "overloaded_error")
            assert await ended(server) == 0
            for pid in workers:
                await until_gone(pid)


async def test_the_workers_of_a_killed_server_end_by_themselves(gate: Gate, tmp_path: Path) -> None:
    """One in the middle of a batch, one idle, one still loading."""
    log = tmp_path / "log"
    flags = (*QUICK, "--workers", "2", "--isolation", "process", "--backend", FAULTY)
    with serve_process(*flags, num_ready=2, env={"FAULTY_LOG": str(log)}) as server:
        async with connected(server.port) as client:
            client.write(run(gate.hold))
            await until(lambda: gate.hold in log.read_text())
            workers = server.workers()
            assert len(workers) == 2
            server.signal(signal.SIGKILL)
            assert await ended(server) == -signal.SIGKILL
            for pid in workers:
                await until_gone(pid)


LONG = "x" * 900_000
PATIENT = {"BATCHER_BODY_TIMEOUT": "60"}
"""Else a client that takes nothing is cut off."""


def ask_and_read_nothing(port: int, text: str) -> socket.socket:
    """The beginning of the answer is there; the system holds little of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(PATIENCE_S)
    client.connect(("127.0.0.1", port))
    client.sendall(run(text))
    assert client.recv(1, socket.MSG_PEEK)
    return client


async def test_an_answer_is_waited_for_until_its_client_has_taken_it() -> None:
    """For longer than uvicorn waits for connections to close, which is a second."""
    with serve_process(*ONE, num_ready=1, env=PATIENT) as server, ask_and_read_nothing(server.port, LONG) as client:
        server.signal(signal.SIGTERM)
        await event(server, "draining")
        await anyio.sleep(1.5)
        answer = await anyio.to_thread.run_sync(lambda: client.makefile("rb").read())
        assert await ended(server) == 0
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["output"] == LONG
        assert server.events()[-1] == "drained"


async def test_a_second_signal_waits_for_nobody_to_take_an_answer() -> None:
    with serve_process(*ONE, num_ready=1, env=PATIENT) as server, ask_and_read_nothing(server.port, LONG):
        server.signal(signal.SIGTERM)
        await event(server, "draining")
        server.signal(signal.SIGTERM)
        assert await ended(server) == 0
        assert "drain_cut_short" in server.events()
        assert "drained" not in server.events()


async def test_a_worker_that_still_starts_does_not_keep_the_server(tmp_path: Path) -> None:
    """Worker 1 loads for ever, worker 0 closes slowly: there is time for a restart that must not happen."""
    flags = (*QUICK, "--workers", "2", "--isolation", "process", "--backend", f"{GPUS}:LeavesOneBehind")
    with serve_process(*flags, num_ready=1, env={"BATCHER_RESTART_BACKOFF": "0.01", "GPUS_DIR": str(tmp_path)}) as server:
        workers = server.workers()
        assert len(workers) == 2
        server.signal(signal.SIGTERM)
        assert await ended(server) == 0
        for pid in workers:
            await until_gone(pid)
        assert server.events(level="error") == []


async def test_a_worker_that_still_starts_does_not_keep_an_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same under another ASGI server: the lifespan ends and leaves no task."""
    monkeypatch.setenv("GPUS_DIR", str(tmp_path))
    settings = quick(backend=f"{GPUS}:LeavesOneBehind", isolation="process", restart_backoff=0.01)
    async with serving(settings, num_ready=1) as server:
        assert server.statistics.workers["starting"] == settings.workers - 1


async def test_a_signal_before_the_workers_are_ready_ends_it_too(tmp_path: Path) -> None:
    flags = (*QUICK, "--workers", "2", "--isolation", "process", "--backend", f"{GPUS}:NeedsPower")
    with serve_process(*flags, num_ready=0, env={"GPUS_DIR": str(tmp_path)}) as server:
        server.signal(signal.SIGTERM)
        assert await ended(server) == 0


def test_a_host_that_has_no_address_is_said_so() -> None:
    with pytest.raises(ConfigError, match=r"^--host not a host has no address"):
        service_server._listen("not a host", 0)


IMPORTS = "tests.backends.odd:ImportsInLoad"


@pytest.mark.parametrize(("is_left", "status"), [(True, 0), (False, 7)])
def test_a_thread_that_does_not_return_cannot_crash_the_end(is_left: bool, status: int) -> None:
    """A signal while a model loaded ended with SIGSEGV now and then: the load went on in native code while the interpreter took
    itself apart. Without such a thread the end is the ordinary one."""
    left = "threading.Thread(target=threading.Event().wait, daemon=True).start()" if is_left else ""
    program = f"import sys, threading; from batcher.service.server import leave\n{left}\nleave(); sys.exit(7)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=PATIENCE_S).returncode == status


def test_a_port_that_is_taken_is_said_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "batcher", "serve", "--port", str(port), "--workers", "1"]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert ended.stderr == (
        f"batcher: cannot listen on 127.0.0.1 port {port}: Address already in use; choose another with --port\n"
    )
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("backend", "isolation", "words"),
    [
        ("nosuch:run_batch", "process", "there is no module 'nosuch'"),
        (IMPORTS, "process", "no module named 'no_such_dependency' (is its extra installed?)"),
        (IMPORTS, "inline", "no module named 'no_such_dependency' (is its extra installed?)"),
    ],
)
def test_a_backend_that_only_a_worker_can_find_missing_ends_it_with_one_clear_line(
    backend: str, isolation: str, words: str
) -> None:
    """In a process of its own a name is looked up by the worker, as is in either what `load` imports. It was tried again for
    ever, with a traceback each time."""
    flags = ("--port", "0", "--workers", "2", "--isolation", isolation, "--backend", backend)
    command = [sys.executable, "-m", "batcher", "serve", *flags]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith(f"batcher: backend '{backend}': {words}")
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count('"event":"worker_misconfigured"') == 1


# The drain, seen from one connection


async def test_what_is_pipelined_behind_an_accepted_request_is_refused_in_order(path: str, gate: Gate) -> None:
    async with serving(quick(backend=ASYNC_FAULTY, workers=1)) as server, connected(server.port) as client:
        client.write(run(gate.hold, path=path) + run("late") + run("never heard"))
        await until(lambda: server.statistics.num_running == 1)
        server.service.driver.drain()
        gate.open()
        assert (await client.read()).status == 200
        response = await client.read()
        assert_error(response, 529, "overloaded_error")
        assert response.headers["connection"] == "close"
        assert await client.read_to_end() == b""
        assert server.statistics.counters.batch_sizes == {1: 1}


async def test_abandoned_requests_are_refused_each_by_its_connection(gate: Gate) -> None:
    async with serving(quick(backend=ASYNC_FAULTY, workers=1)) as server:
        asked = [run(gate.hold), run("a"), run("b", path="/v1/run?x")]
        async with anyio.create_task_group() as tasks:

            async def ask(data: bytes) -> None:
                response = await server.ask(data)
                assert_error(response, 529, "overloaded_error")
                assert response.headers["connection"] == "close"

            for data in asked:
                tasks.start_soon(ask, data)
            await until(lambda: server.statistics.num_live == 3)
            server.service.driver.drain()
            server.service.driver.abandon()
        assert server.service.meters.tiers["paid"].outcomes[Outcome.REJECTED_SHUTDOWN] == 3
        gate.open()
