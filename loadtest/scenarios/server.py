"""A server in a process of its own, from its first log line to its last.

The server says where it listens in one structured line on standard error, `{"event": "listening", "url": ...}`; so the
system picks the port, and no two scenarios can meet on one.
"""

import contextlib
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from batcher.errors import BatcherError
from loadtest.scenarios.proctree import Usage, descendants, kill_survivors, tree_usage

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 40.0
"""A server may drain for a while before it ends."""

OPERATOR_KEY = "dev-operator"
"""Of a server on its development keys: it opens /metrics and /load."""

_POLL_S = 0.05


class ServerFailed(BatcherError):
    """The server did not start, or did not end."""


class Server(msgspec.Struct, frozen=True):
    """A server that runs."""

    url: str
    pid: int

    def usage(self) -> Usage:
        return tree_usage(self.pid)

    def read(self, path: str) -> str:
        return self.ask(path, None)

    def ask(self, path: str, body: bytes | None) -> str:
        """By the operator; a POST, if there is a body."""
        asked = urllib.request.Request(self.url + path, data=body, headers={"x-api-key": OPERATOR_KEY})
        with urllib.request.urlopen(asked, timeout=10.0) as answer:
            return str(answer.read().decode())


def serving(
    arguments: Sequence[str], *, module: str = "batcher", ready_path: str = "/ready"
) -> contextlib.AbstractContextManager[Server]:
    """`running`, of `python -m MODULE ARGUMENTS`."""
    return running([sys.executable, "-m", module, *arguments], ready_path=ready_path)


@contextlib.contextmanager
def running(
    command: Sequence[str], *, ready_path: str = "/ready", start_timeout_s: float = START_TIMEOUT_S
) -> Iterator[Server]:
    """Run a command that is a server until the block is left; it is ready when the block is entered.

    It is stopped by SIGTERM; whatever of its tree is left then is killed. Raises `ServerFailed`, with the end of its log,
    when it cannot be started, ends, or is not ready in time.
    """
    with tempfile.TemporaryDirectory(prefix="loadtest-") as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as stderr:
            # Its own session, so that Ctrl-C reaches the load test alone, which then stops the server in order.
            try:
                process = subprocess.Popen(command, stdout=stderr, stderr=stderr, start_new_session=True)
            except OSError as error:
                raise ServerFailed(f"cannot start {command[0]}: {error}") from error
        try:
            deadline_at = time.monotonic() + start_timeout_s
            server = Server(_wait_for_url(process, log, deadline_at), process.pid)
            _wait_until_ready(server, process, log, ready_path, deadline_at)
            yield server
        finally:
            _stop(process)


def _wait_for_url(process: "subprocess.Popen[bytes]", log: Path, deadline_at: float) -> str:
    while time.monotonic() < deadline_at and process.poll() is None:
        for line in log.read_bytes().splitlines():
            if (url := _parse_listening(line)) is not None:
                return url
        time.sleep(_POLL_S)
    raise _failure(process, log, "did not say where it listens")


def _parse_listening(line: bytes) -> str | None:
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if isinstance(entry, dict) and entry.get("event") == "listening" and isinstance(entry.get("url"), str):
        return str(entry["url"])
    return None


def _wait_until_ready(
    server: Server, process: "subprocess.Popen[bytes]", log: Path, ready_path: str, deadline_at: float
) -> None:
    while time.monotonic() < deadline_at and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            server.read(ready_path)
            return
        time.sleep(_POLL_S)
    raise _failure(process, log, "did not become ready")


def _failure(process: "subprocess.Popen[bytes]", log: Path, what: str) -> ServerFailed:
    status = process.poll()
    ended = "" if status is None else f" and ended with status {status}"
    tail = log.read_bytes()[-2000:].decode(errors="replace")
    return ServerFailed(f"the server {what}{ended}; the end of its log:\n{tail}")


def _stop(process: "subprocess.Popen[bytes]") -> None:
    below = descendants(process.pid)
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        # Also when somebody who cannot wait sends a second Ctrl-C: nothing is left running.
        process.kill()
        process.wait()
        # A process that was stopped cannot end by itself, and one whose parent died has nobody to end it.
        kill_survivors(below)
