"""What the process makes of where it is started: descriptors, their limit, signals."""

import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import anyio
import pytest

from batcher.service.server import _most_connections, leave
from benchmarks.ports import free_port
from tests.service.process import PATIENCE_S, ROOT, answers, serve_process
from tests.service.serving import ASYNC_FAULTY, Gate
from tests.service.wire_client import connected, run

ONE = ("--policy", "size-or-timeout", "--batch-timeout", "0", "--workers", "1")


@pytest.mark.anyio
async def test_a_terminal_that_is_closed_is_a_signal_to_drain(gate: Gate) -> None:
    with serve_process(*ONE, "--backend", ASYNC_FAULTY, num_ready=1) as server:
        async with connected(server.port) as client:
            client.write(run(gate.hold))
            server.signal(signal.SIGHUP)
            await anyio.to_thread.run_sync(server.until_event, "draining")
            server.signal(signal.SIGHUP)  # The shell has ended, too.
            await anyio.sleep(0.05)
            gate.open()
            assert (await client.read()).status == 200
        assert await anyio.to_thread.run_sync(server.wait) == 0


@pytest.mark.parametrize(("max_files", "most"), [(65_536, 20_000), (20_256, 20_000), (20_000, 19_744), (1024, 768), (100, 50)])
def test_there_are_no_more_connections_than_descriptors_for_them(max_files: int, most: int) -> None:
    assert _most_connections(20_000, max_files) == most
    assert _most_connections(10, max_files) == 10


def _few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, 300))


def _nothing_open() -> None:
    for fd in range(3):
        os.close(fd)


@pytest.mark.parametrize("prepare", [_few_files, _nothing_open])
@pytest.mark.parametrize("isolation", ["inline", "process"])
def test_it_starts_and_ends_where_there_is_little(prepare: Callable[[], None], isolation: str) -> None:
    port = free_port()
    command = (sys.executable, "-m", "batcher", "serve", "--port", str(port), *ONE, "--isolation", isolation)
    with subprocess.Popen(command, cwd=ROOT, preexec_fn=prepare, stderr=subprocess.DEVNULL) as server:
        try:
            while not answers(f"http://127.0.0.1:{port}/ready"):
                assert server.poll() is None
            server.send_signal(signal.SIGTERM)
            assert server.wait(PATIENCE_S) == 0
        finally:
            server.kill()


def test_it_leaves_a_thread_that_hangs_behind_also_without_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()
    hanging = threading.Thread(target=is_over.wait, daemon=True)
    hanging.start()
    statuses: list[int] = []
    monkeypatch.setattr(os, "_exit", statuses.append)
    monkeypatch.setattr(sys, "stdout", None)
    leave()
    assert statuses == [0]
    is_over.set()
    hanging.join()
