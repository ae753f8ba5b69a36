"""How the tests here hold a backend: loaded on the way in, closed on the way out, and nothing left after it."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from backends.base import BackendSpec, WorkerBackend
from backends.process import ProcessBackend

ROOT = Path(__file__).parents[2]
FAULTY = "tests.backends.faulty:FaultyBackend"
START_TIMEOUT_S = 30.0


def in_process(name: str = FAULTY, *, index: int = 0, start_timeout_s: float = START_TIMEOUT_S) -> ProcessBackend:
    return ProcessBackend(BackendSpec(name), index=index, start_timeout_s=start_timeout_s)


def odd(name: str, *, start_timeout_s: float = START_TIMEOUT_S) -> ProcessBackend:
    return in_process(f"tests.backends.odd:{name}", start_timeout_s=start_timeout_s)


def running(backend: ProcessBackend) -> int:
    assert backend.pid is not None
    return backend.pid


@asynccontextmanager
async def loaded(backend: WorkerBackend) -> AsyncIterator[WorkerBackend]:
    tasks_before = asyncio.all_tasks()
    await backend.load()
    pid = backend.pid if isinstance(backend, ProcessBackend) else None
    try:
        yield backend
    finally:
        await backend.close()
    assert asyncio.all_tasks() <= tasks_before
    if pid is not None:
        assert is_gone(pid)


def is_gone(pid: int) -> bool:
    """Neither running nor a zombie of ours."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def until_gone(pid: int) -> None:
    """For a process whose parent is not this one. The test's own timeout bounds it."""
    while not is_gone(pid) and not _is_zombie(pid):  # noqa: ASYNC110 - nothing tells us
        await asyncio.sleep(0.005)


def _is_zombie(pid: int) -> bool:
    """Dead, and not yet waited for by whoever adopted it; some containers' first process takes its time."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def num_open_files() -> int:
    return len(os.listdir("/dev/fd"))
