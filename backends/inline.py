"""Any backend inside this process: a plain function on a thread of its own, a coroutine function on the event loop.

The thread is a daemon and belongs to one worker for life, so that what is bound to a thread (a GPU context, a thread-local)
stays valid. A shared executor was refused: the interpreter waits for its threads at exit, so one hung `run_batch` would keep
the whole service from ending.

What no process boundary can do, this cannot: a plain function that holds the interpreter lock, or a coroutine that blocks,
stops the service with it, and a hung thread is abandoned, not ended. `--isolation process` is for those.
"""

import asyncio
import contextlib
import functools
import inspect
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from backends.base import (
    CLOSE_GRACE_S,
    REAP_TIMEOUT_S,
    BatchBackend,
    ContractBreach,
    LostLatch,
    WorkerLost,
    cannot_import,
    check_call,
)

logger = logging.getLogger(__name__)

Function = Callable[..., Any]


class Outcome(NamedTuple):
    """How a call ended, as a value: SystemExit may not travel as an exception through a task, nor StopIteration a future."""

    value: Any
    error: BaseException | None
    duration_s: float


class WorkerThread:
    """A daemon thread that performs calls one after another and reports each to the event loop that asked."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def call(self, function: Function, *arguments: object) -> asyncio.Future[Outcome]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Outcome] = loop.create_future()

        def perform() -> None:
            outcome = _measure(function, *arguments)
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
                loop.call_soon_threadsafe(_set_unless_done, answer, outcome)

        self._calls.put(perform)
        return answer

    def stop(self) -> None:
        """Ends the thread once it has done what it was told; does not wait for it."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (perform := self._calls.get()) is not None:
            perform()
            del perform  # An idle thread must not keep the last batch alive.


def _set_unless_done(answer: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not answer.done():
        answer.set_result(outcome)


def _measure(function: Function, *arguments: object) -> Outcome:
    started_at = time.perf_counter()
    try:
        value, error = function(*arguments), None
    except BaseException as raised:
        value, error = None, raised
    return Outcome(value, error, time.perf_counter() - started_at)


async def _measure_awaitable(function: Function, *arguments: object) -> Outcome:
    """The call is measured too: one that the function does not take raises before there is anything to await."""
    started_at = time.perf_counter()
    try:
        value, error = await function(*arguments), None
    except BaseException as raised:
        value, error = None, raised
    return Outcome(value, error, time.perf_counter() - started_at)


class InlineBackend:
    """A WorkerBackend around any BatchBackend, in this process."""

    def __init__(self, make: Callable[[], BatchBackend], *, name: str, index: int = 0) -> None:
        self._make = make
        self._backend_name = name
        self._name = f"{name}#{index}"
        self._lost = LostLatch()
        self._is_closed = False
        self._backend: BatchBackend | None = None
        self._thread: WorkerThread | None = None
        self._task: asyncio.Task[Outcome] | None = None
        """The call in progress; lives on when its caller was cancelled, so that no other call overlaps it."""
        self._waiter: asyncio.Future[Outcome] | None = None
        """What the caller of that call waits for; None when nobody does. `close` can end it before the call ends."""
        self.last_run_s: float | None = None

    async def load(self) -> None:
        self._lost.check()
        if self._thread is not None:
            raise ContractBreach("load was called twice")
        self._thread = WorkerThread(self._name)
        try:
            backend: BatchBackend = (await self._perform(self._make)).value
            if (load := getattr(backend, "load", None)) is not None:
                await self._perform(load)
        except BaseException as error:
            self._is_closed = True
            self._interrupt("could not start")
            self._thread.stop()
            if isinstance(error, ImportError):
                raise cannot_import(self._backend_name, error) from error
            raise
        self._backend = backend

    async def run_batch(self, inputs: list[str]) -> object:
        self._lost.check()
        check_call(inputs, is_busy=self._task is not None)
        if self._backend is None:
            raise ContractBreach("run_batch was called before load")
        return (await self._perform(self._backend.run_batch, inputs, is_batch=True)).value

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._interrupt("was closed")
        if self._thread is None or self._backend is None:
            return  # Never loaded, or `load` is about to see that it was interrupted, and cleans up.
        finishing = asyncio.ensure_future(self._finish(self._thread))
        try:
            await asyncio.wait({finishing}, timeout=CLOSE_GRACE_S)
        finally:
            finishing.cancel()
            self._thread.stop()
        await asyncio.wait({finishing}, timeout=REAP_TIMEOUT_S)

    async def wait_lost(self) -> WorkerLost:
        return await self._lost.wait()

    def _interrupt(self, reason: str) -> None:
        """No call from now on; the pending one is lost. Cancels a coroutine; a plain function goes on, unheard."""
        lost = self._lost.set(f"worker {self._name} {reason}")
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(Outcome(None, lost, 0.0))
        if self._task is not None:
            self._task.cancel()

    async def _finish(self, thread: WorkerThread) -> None:
        """The backend's own `close`, once its last batch is over."""
        if self._task is not None:
            await asyncio.wait({self._task})
        await thread.call(lambda: None)
        if (close := getattr(self._backend, "close", None)) is not None:
            outcome = await self._call(close)
            if outcome.error is not None:
                logger.error("close of worker %s failed", self._name, exc_info=outcome.error)

    async def _perform(self, function: Function, *arguments: object, is_batch: bool = False) -> Outcome:
        """Calls it and returns its Outcome if it returned; raises what it raised, WorkerLost for what is no Exception."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        self._task = loop.create_task(self._call(function, *arguments))
        self._task.add_done_callback(functools.partial(self._settle, self._waiter))
        try:
            outcome = await self._waiter
        finally:
            self._waiter = None
        self._lost.check()
        error = outcome.error
        if error is not None and (isinstance(error, WorkerLost) or not isinstance(error, Exception)):
            self._lost.set(f"worker {self._name} ended by {type(error).__name__}: {error}")
            self._lost.check()
        if is_batch:
            self.last_run_s = outcome.duration_s
        if error is not None:
            raise error
        return outcome

    async def _call(self, function: Function, *arguments: object) -> Outcome:
        if inspect.iscoroutinefunction(function):
            return await _measure_awaitable(function, *arguments)
        assert self._thread is not None
        outcome = await self._thread.call(function, *arguments)
        if not inspect.isawaitable(outcome.value):
            return outcome
        awaited = await _measure_awaitable(lambda: outcome.value)
        return awaited._replace(duration_s=outcome.duration_s + awaited.duration_s)

    def _settle(self, waiter: asyncio.Future[Outcome], task: asyncio.Task[Outcome]) -> None:
        self._task = None
        if task.cancelled():
            self._interrupt("was cancelled")
        elif (error := task.exception()) is not None:  # Raised around the call and not in it: by what was returned, say.
            _set_unless_done(waiter, Outcome(None, error, 0.0))
        else:
            _set_unless_done(waiter, task.result())

    def __repr__(self) -> str:
        state = "lost" if self._lost.reason else "running" if self._task else "idle"
        return f"<InlineBackend {self._name} {state}>"
