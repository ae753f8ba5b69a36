"""What a process and all its descendants have used, read from /proc (Linux).

A server is charged for its whole tree: one that hands its work to children is not cheaper for it.
"""

import contextlib
import os
import signal
from pathlib import Path

import msgspec

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage(msgspec.Struct, frozen=True):
    cpu_s: float
    """User and system time of the living, and of the dead that their parents have waited for."""
    rss_bytes: int
    """Resident memory; pages that processes share are counted once for each."""
    num_processes: int


class _Process(msgspec.Struct, frozen=True):
    pid: int
    parent: int
    ticks: int
    started: int
    """In ticks since the machine's start. With the id it names a process for good; the id alone may be given again."""
    pages: int


def tree_usage(root: int) -> Usage:
    """Of the process `root` and its descendants. Zero when it is gone."""
    processes = _tree(root)
    return Usage(
        cpu_s=sum(process.ticks for process in processes) / _TICKS_PER_S,
        rss_bytes=sum(process.pages for process in processes) * _PAGE_BYTES,
        num_processes=len(processes),
    )


def descendants(root: int) -> "list[tuple[int, int]]":
    """What is below `root`, as (process id, start), for `kill_survivors`."""
    return [(process.pid, process.started) for process in _tree(root) if process.pid != root]


def kill_survivors(processes: "list[tuple[int, int]]") -> None:
    """SIGKILL those of them that still live."""
    for pid, started in processes:
        process = _read(pid)
        if process is not None and process.started == started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def leaves(root: int) -> list[int]:
    """Descendants without children: a server's workers, however many managers stand between."""
    processes = _tree(root)
    parents = {process.parent for process in processes}
    return sorted(process.pid for process in processes if process.pid != root and process.pid not in parents)


def _tree(root: int) -> list[_Process]:
    everyone = {process.pid: process for process in map(_read, _pids()) if process is not None}
    children: dict[int, list[int]] = {}
    for process in everyone.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, frontier = [], [root] if root in everyone else []
    while frontier:
        pid = frontier.pop()
        found.append(everyone[pid])
        frontier += children.get(pid, [])
    return found


def _pids() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdecimal()]


def _read(pid: int) -> _Process | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:  # It ended meanwhile.
        return None
    # The second field is the name in parentheses, which may itself hold spaces and parentheses.
    fields = text[text.rindex(")") + 2 :].split()
    state, parent, ticks = fields[0], int(fields[1]), sum(map(int, fields[11:15]))
    return None if state == "Z" else _Process(pid, parent, ticks, started=int(fields[19]), pages=int(fields[21]))
