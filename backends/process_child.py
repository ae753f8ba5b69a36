"""A backend's own process: what `backends.process` starts, with its end of a socket pair as the first argument.

The main thread computes, as a backend that owns the process would expect; a second thread reads, so that the parent's death
is noticed in the middle of a batch too. An event loop that runs everything was refused: a plain `run_batch` blocks it, and a
blocked loop notices nothing.

The process ends
- when the parent is gone: at once; on Linux by the kernel, whatever this code does, elsewhere by the second thread;
- when the parent says Close: after the backend's own close();
- when SystemExit, KeyboardInterrupt, WorkerLost or another non-Exception leaves the backend: that is how a worker dies.
SIGINT and SIGTERM are the parent's to act on: a terminal or a service manager sends them to every process at once, and a
worker must finish what a draining parent still waits for.
"""

import asyncio
import ctypes
import inspect
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import backends
from backends import wire
from backends.base import BatchBackend, WorkerLost, cannot_import
from batcher.errors import ConfigError

READ_BYTES = 1 << 18
EXIT_GRACE_S = 1.0
"""How long the interpreter may take to end, atexit hooks and the backend's own threads included."""

Inbox = queue.SimpleQueue[wire.FromParent]


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    os.dup2(2, 1)  # Standard output belongs to the service; whatever the backend prints joins the log.
    _leave_signals_to_parent()
    _die_with_parent()
    inbox: Inbox = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, inbox), name="parent", daemon=True).start()
    runner = asyncio.Runner()
    try:
        _serve(connection, inbox, runner)
    except WorkerLost as error:
        print(f"the worker is lost: {error}", file=sys.stderr)
        sys.exit(1)
    finally:
        _bound_exit()
        runner.close()


def _serve(connection: socket.socket, inbox: Inbox, runner: asyncio.Runner) -> None:
    """Load, batches, close, in that order; returns when the process should end."""
    load = inbox.get()
    assert isinstance(load, wire.Load)
    try:
        backend = backends.make(load.spec, index=load.index, start=load.start)
        _call(runner, getattr(backend, "load", None))
    except Exception as error:
        told = cannot_import(load.spec.name, error) if isinstance(error, ImportError) else error
        kind, text = wire.describe(told)
        failed = wire.Failed(kind, text, isinstance(told, ConfigError), wire.describe_traceback(error))
        connection.sendall(wire.encode(failed))
        return
    connection.sendall(wire.encode(wire.Ready()))
    while isinstance(message := inbox.get(), wire.Run):
        connection.sendall(_run(runner, backend, message.inputs))
        del message  # An idle process must not keep the last batch alive.
    _call(runner, getattr(backend, "close", None))


def _run(runner: asyncio.Runner, backend: BatchBackend, inputs: list[str]) -> bytes:
    """One batch, answered as a frame. Lets out what ends the worker."""
    started_at = time.perf_counter()
    try:
        outputs = _call(runner, backend.run_batch, inputs)
    except WorkerLost:
        raise
    except Exception as error:
        run_s = time.perf_counter() - started_at
        kind, text = wire.describe(error)
        return wire.encode(wire.Raised(kind, text, run_s, wire.describe_traceback(error)))
    run_s = time.perf_counter() - started_at
    try:
        return wire.encode(wire.Done(outputs, run_s))
    except wire.CannotCarry as error:
        return wire.encode(wire.Raised("CannotCarry", f"the outputs cannot leave the process: {error}", run_s))


def _call(runner: asyncio.Runner, function: Callable[..., Any] | None, *arguments: object) -> Any:
    if function is None:
        return None
    result = function(*arguments)
    return runner.run(_await(result)) if inspect.isawaitable(result) else result


async def _await(awaitable: Any) -> Any:
    return await awaitable


def _read(connection: socket.socket, inbox: Inbox) -> None:
    """Fills the inbox until the parent is gone; then ends this process, whatever the main thread does."""
    reader = wire.FrameReader()
    try:
        while data := connection.recv(READ_BYTES):
            for frame in reader.feed(data):
                inbox.put(wire.decode_from_parent(frame))
    finally:
        os._exit(1)


def _leave_signals_to_parent() -> None:
    """Handlers that do nothing, not SIG_IGN: a program that the backend starts would inherit that, and a fork must not."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=_restore_signals)


def _restore_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _die_with_parent() -> None:
    """Asks the kernel to kill this process when the thread that started it ends: the parent's event loop. Linux only.

    It reaches what the second thread cannot: code that never gives the interpreter lock back.
    """
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _bound_exit() -> None:
    """Lets the interpreter end in good order, and ends it anyway after EXIT_GRACE_S."""

    def end() -> None:
        time.sleep(EXIT_GRACE_S)
        os._exit(1)

    threading.Thread(target=end, name="exit", daemon=True).start()
