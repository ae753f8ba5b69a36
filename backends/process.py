"""Any backend in an operating-system process of its own: a crash, a leak or a held interpreter lock stays there.

One process per worker, one socket pair per process, one batch at a time. The parent's side is an `asyncio.Protocol` and
callbacks: what must happen when a process dies happens even if nobody awaits it, and no cancellation can interrupt it.
Asyncio's streams cost the same per batch, but need a task per process that reads; `multiprocessing` forks a process that has
threads, or brings a queue and its thread per worker.

    is alive ──▶ died, broke the frames, or was closed: the latch is set and the pending batch raises WorkerLost
             ──▶ SIGKILL to its process group, unless it ended by itself ──▶ reaped by the loop's child watcher
             ──▶ SIGKILL to what is left of its group: the programs that the backend started end with it ──▶ `_exited`
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import cast

import msgspec

from backends import wire
from backends.base import CLOSE_GRACE_S, REAP_TIMEOUT_S, BackendSpec, ContractBreach, LostLatch, WorkerLost, check_call
from batcher.errors import ConfigError

EXIT_STATUS_GRACE_S = 0.5
"""How long after the end of the connection the exit status is waited for; then the process is killed, whatever it does."""

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[1])
_BOOTSTRAP = "import sys; sys.path.append(sys.argv[2]); from backends.process_child import main; main()"
"""Not `-m`: that looks in the current directory first, where a user may well have a package named `backends`."""


class RemoteError(Exception):
    """The backend raised, in its process: the type and the message of what it raised, at most 2,000 characters. Where it was
    raised there is a note of it, which whoever prints this error's traceback sees."""

    def __init__(self, answer: wire.Failed | wire.Raised) -> None:
        super().__init__(f"{answer.kind}: {answer.message}")
        if answer.traceback:
            self.add_note(f"In its process:\n{answer.traceback}")


class _Connection(asyncio.Protocol):
    def __init__(self, owner: "ProcessBackend") -> None:
        self._owner = owner
        self._reader = wire.FrameReader()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._reader.feed(data):
                self._owner.on_message(wire.decode_from_child(frame))
        except (ValueError, msgspec.DecodeError) as error:
            self._owner.on_broken(f"sent what is no frame: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.on_disconnected()


class _ExitWatch(asyncio.SubprocessProtocol):
    def __init__(self, owner: "ProcessBackend") -> None:
        self._owner = owner

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._owner.on_started(cast(asyncio.SubprocessTransport, transport))  # By shape alone under uvloop.

    def process_exited(self) -> None:
        self._owner.on_exited()


class ProcessBackend:
    """A WorkerBackend whose backend lives in a child process."""

    def __init__(self, spec: BackendSpec, *, index: int, start: int = 0, start_timeout_s: float) -> None:
        self._spec = spec
        self._index = index
        self._start = start
        self._start_timeout_s = start_timeout_s
        self._lost = LostLatch()
        self._exited = asyncio.Event()
        """The process is reaped."""
        self._process: asyncio.SubprocessTransport | None = None
        self._connection: asyncio.WriteTransport | None = None
        """None before the start, and after the end of the connection."""
        self._kill_timer: asyncio.TimerHandle | None = None
        self._answer: asyncio.Future[wire.FromChild | None] | None = None
        """What `load` or `run_batch` waits for; resolved to None when the worker is lost."""
        self._is_loading = False
        self._is_loaded = False
        self._is_closing = False
        self._is_busy = False
        """The process holds a batch; stays true if the caller was cancelled, until the answer comes."""
        self.last_run_s: float | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process; None before it is started and after it is reaped."""
        return None if self._process is None or self._exited.is_set() else self._process.get_pid()

    async def load(self) -> None:
        self._lost.check()
        if self._is_loading or self._is_loaded:
            raise ContractBreach("load was called twice")
        self._is_loading = True
        try:
            async with asyncio.timeout(self._start_timeout_s):
                answer = await self._start_process()
        except TimeoutError:
            await self._end(f"was not ready within {self._start_timeout_s:g} s")
            self._lost.check()
            raise
        except BaseException:
            await self._end("did not start")
            raise
        if isinstance(answer, wire.Failed):
            await self._end("did not start")
            raise ConfigError(answer.message) if answer.is_config else RemoteError(answer)
        self._is_loaded = True

    async def run_batch(self, inputs: list[str]) -> object:
        self._lost.check()
        check_call(inputs, is_busy=self._is_busy)
        if not self._is_loaded:
            raise ContractBreach("run_batch was called before load")
        frame = wire.encode(wire.Run(inputs))
        self._is_busy = True
        answer = await self._ask(frame)
        if isinstance(answer, wire.Raised):
            raise RemoteError(answer)
        assert isinstance(answer, wire.Done)
        return answer.outputs

    async def close(self) -> None:
        """Lets an idle process close by itself, for the grace; kills a busy one, whose batch is lost already. Returns when it
        is reaped; only one stuck in the kernel takes longer than REAP_TIMEOUT_S, and it is let go.

        What ends it is a timer, not this coroutine: cancelled, it has done its work all the same.
        """
        if not self._is_closing:
            self._is_closing = True
            is_idle = self._is_loaded and not self._is_busy and self._lost.reason is None
            self._lose("was closed")
            if is_idle and self._connection is not None:
                self._connection.write(wire.encode(wire.Close()))
                self._kill_timer = asyncio.get_running_loop().call_later(CLOSE_GRACE_S, self._kill)
            else:
                self._kill()
        await self._wait_exited()

    async def wait_lost(self) -> WorkerLost:
        return await self._lost.wait()

    async def _start_process(self) -> wire.FromChild:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await loop.subprocess_exec(
                    lambda: _ExitWatch(self),
                    *(sys.executable, "-P", "-c", _BOOTSTRAP, str(theirs.fileno()), _PACKAGE_ROOT),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=None,
                    stderr=None,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,  # Its own process group, so that what the backend starts can be ended with it.
                )
            self._connection, _ = await loop.create_unix_connection(lambda: _Connection(self), sock=ours)
        except BaseException:
            ours.close()
            raise
        self._lost.check()  # It may have ended, or been closed, in the meantime.
        return await self._ask(wire.encode(wire.Load(self._spec, self._index, self._start)))

    async def _ask(self, frame: bytes) -> wire.FromChild:
        """Sends a frame and waits for the answer. Raises WorkerLost."""
        self._answer = asyncio.get_running_loop().create_future()
        if self._connection is not None:  # Otherwise it has just ended; the exit status is on its way.
            self._connection.write(frame)
        try:
            answer = await self._answer
        finally:
            self._answer = None  # An idle worker must not keep the last batch alive.
        if answer is None:
            self._lost.check()
        assert answer is not None
        return answer

    async def _end(self, reason: str) -> None:
        """Kills it and waits until it is reaped."""
        self._lose(reason)
        self._kill()
        await self._wait_exited()

    async def _wait_exited(self) -> None:
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_GRACE_S + REAP_TIMEOUT_S):
                    await self._exited.wait()

    def _lose(self, reason: str) -> None:
        """No call from now on; the pending one raises."""
        pid = "" if self._process is None else f" (pid {self._process.get_pid()})"
        self._lost.set(f"worker process {self._index}{pid} {reason}")
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)

    def _kill(self) -> None:
        """Idempotent; after the process is reaped it is `on_exited` that ends its group, once."""
        if self._connection is not None:
            self._connection.abort()
        if self._process is not None and self._process.get_returncode() is None:
            self._kill_group(self._process.get_pid())

    def _kill_group(self, pid: int) -> None:
        """The process and all that the backend started and did not move elsewhere."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # Nobody is left, or (macOS) only zombies are.
            os.killpg(pid, signal.SIGKILL)

    def on_started(self, process: asyncio.SubprocessTransport) -> None:
        self._process = process

    def on_message(self, message: wire.FromChild) -> None:
        if isinstance(message, wire.Done | wire.Raised):
            self.last_run_s = message.run_s
        self._is_busy = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)

    def on_broken(self, reason: str) -> None:
        self._lose(reason)
        self._kill()

    def on_disconnected(self) -> None:
        """The process is ending, most likely: gives its exit status a moment to arrive, for the message."""
        self._connection = None
        if not self._exited.is_set() and self._kill_timer is None:
            loop = asyncio.get_running_loop()
            self._kill_timer = loop.call_later(EXIT_STATUS_GRACE_S, self.on_broken, "closed its connection")

    def on_exited(self) -> None:
        assert self._process is not None
        self._lose(_in_words(self._process.get_returncode()))
        # It is reaped, but while others of its group live the kernel gives its id to nobody else; and if none does, the id was
        # freed a moment ago, and the kernel goes through all the others first.
        self._kill_group(self._process.get_pid())
        self._process.close()
        if self._connection is not None:
            self._connection.abort()
        if self._kill_timer is not None:
            self._kill_timer.cancel()
        self._exited.set()

    def __repr__(self) -> str:
        state = "lost" if self._lost.reason else "busy" if self._is_busy else "idle" if self._is_loaded else "new"
        return f"<ProcessBackend {self._index} pid {self.pid} {state}>"


def _in_words(returncode: int | None) -> str:
    if returncode is None or returncode >= 0:
        return f"ended with exit code {returncode}"
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"was ended by signal {-returncode}"
