"""A few threads for calls that may be slow or never return: checkers of somebody else's, long searches, files of a slow disk.

The executor of the standard library was refused: its threads keep the process from ending while one hangs, and its queue has no
bound.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

NUM_THREADS = 4
"""Calls that run at the same time, unless told otherwise. One that hangs keeps its thread; when all hang, every further call
fails at once."""
MAX_WAITING = 64
"""Calls that wait for a thread: more could not start within any timeout that is worth having."""


class Busy(Exception):
    """Every thread is taken, and so is every place to wait for one."""


class Threads:
    """Started by its first call; lives on one event loop. Daemons: the process ends without those that hang."""

    def __init__(self, name: str, *, num_threads: int = NUM_THREADS) -> None:
        """`name` is what the threads are called by, with a number."""
        self._name = name
        self._max_threads = num_threads
        self._calls: queue.SimpleQueue[tuple[asyncio.Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._num_open = 0
        """Calls that wait or run, whether or not somebody still waits for them. Touched on the event loop only."""
        self._num_threads = 0

    async def call(self, function: Callable[..., Any], *arguments: object, is_bounded: bool = True) -> Any:
        """What it returns or raises. Raises Busy at once, unless something else bounds how many such calls there can be.
        Cancelled, it leaves the call to itself: nobody can stop a thread."""
        if is_bounded and self._num_open >= self._max_threads + MAX_WAITING:
            raise Busy
        if self._num_threads < min(self._max_threads, self._num_open + 1):
            threading.Thread(target=self._run, name=f"{self._name}-{self._num_threads + 1}", daemon=True).start()
            self._num_threads += 1  # Not before: a system without a thread to spare has refused this call, and not all to come.
        self._num_open += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls.put((future, lambda: function(*arguments)))
        return await future

    def close(self) -> None:
        """The threads end when they have done what they are at."""
        for _ in range(self._num_threads):
            self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            result, error = None, None
            # Looked at from another thread: at worst a call is made that nobody waits for.
            if not future.cancelled():
                try:
                    result = function()
                except BaseException as raised:  # A thread that ended would be one less for good.
                    error = raised
            with suppress(RuntimeError):  # The loop is closed: nobody waits.
                future.get_loop().call_soon_threadsafe(self._settle, future, result, error)
            del call, future, function, result, error  # Until the next call they would keep what this one was given.

    def _settle(self, future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
        self._num_open -= 1
        if future.done():
            return
        if error is None:
            future.set_result(result)
        else:
            # Whatever it raised is a failure of what was called, and no SystemExit or StopIteration of ours.
            future.set_exception(error if isinstance(error, Exception) and not isinstance(error, StopIteration) else _as(error))


def _as(error: BaseException) -> RuntimeError:
    return RuntimeError(f"it raised {type(error).__name__}: {error}")
