"""`batcher serve` as people start it: a process of its own, with a log to read and signals to send."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ROOT = Path(__file__).parents[2]
PATIENCE_S = 30.0


class ServerProcess:
    """Its log lines are read by a thread as they come; `lines` has those that a test has looked at."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.lines: list[dict[str, Any]] = []
        self.other_lines: list[str] = []
        """Whatever is no JSON: a worker's own words, on the same standard error."""
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = 0

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._queue.put(line)
        self._queue.put(None)

    def next_line(self) -> dict[str, Any] | None:
        """The next log line; None at the end of the log."""
        while (text := self._queue.get(timeout=PATIENCE_S)) is not None and not text.startswith("{"):
            self.other_lines.append(text)
        if text is None:
            self._queue.put(None)  # It stays the end.
            return None
        line: dict[str, Any] = json.loads(text)
        self.lines.append(line)
        return line

    def until_event(self, name: str) -> dict[str, Any]:
        """Reads the log up to this event."""
        while (line := self.next_line()) is not None:
            if line["event"] == name:
                return line
        raise AssertionError(f"no {name} in {self.lines}")

    def until_listening(self, *, num_ready: int) -> None:
        """Reads the log until it listens and so many workers were ready; which comes first is not said."""
        while "listening" not in self.events() or self.events().count("worker_ready") < num_ready:
            assert self.next_line() is not None, f"it ended: {self.lines} {self.other_lines}"
        (listening,) = (line for line in self.lines if line["event"] == "listening")
        self.port = urlsplit(listening["url"]).port or 0

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        """The exit status. Reads the rest of the log."""
        while self.next_line() is not None:
            pass
        return self.process.wait(PATIENCE_S)

    def events(self, *, level: str | None = None) -> list[str]:
        """In order; the lines of requests, which are written a little later than they happen, are none of them."""
        return [line["event"] for line in self.lines if level in (None, line["level"]) and line["event"] != "request"]

    def workers(self) -> list[int]:
        """The processes that it has started and that are still there."""
        return children_of(self.process.pid)


def children_of(parent: int) -> list[int]:
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            children.append(int(stat.parent.name))
    return children


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError):  # It does not listen yet, or is not ready.
        return False


@contextmanager
def serve_process(*flags: str, num_ready: int = 16, env: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    """Starts the server, waits until it listens and `num_ready` workers are ready; kills what is left of it afterwards."""
    command = [sys.executable, "-m", "batcher", "serve", "--port", "0", *flags]
    with subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **(env or {})}, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        server = ServerProcess(process)
        try:
            server.until_listening(num_ready=num_ready)
            yield server
        finally:
            process.kill()
            server.wait()
