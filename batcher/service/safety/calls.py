"""One call of a checker, however it is written and whatever it does: with a time limit, and with one kind of failure."""

import asyncio
import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any

from batcher.service.threads import Busy, Threads


class Failure(StrEnum):
    """How a check failed. A closed set: it labels metrics."""

    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    BUSY = "busy"
    """Every thread has a check, and so has every place to wait for one."""
    CONTRACT = "contract"
    """It gave back something else than was agreed."""


class CheckFailed(Exception):
    """The checker's own exception, if there is one, is the cause."""

    def __init__(self, failure: Failure, cause: BaseException | None = None) -> None:
        super().__init__(failure)
        self.failure = failure
        self.__cause__ = cause


class Runner:
    """Calls what may be slow: coroutine functions on this loop, anything else on threads of its own."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._threads = Threads("safety")

    async def run(self, function: Callable[..., Any], *arguments: object) -> Any:
        """What it returns. Raises CheckFailed; cancelled, it leaves no task behind."""
        try:
            async with asyncio.timeout(self._timeout_s):
                if inspect.iscoroutinefunction(function):
                    return await function(*arguments)
                result = await self._threads.call(function, *arguments)
        except TimeoutError as error:
            raise CheckFailed(Failure.TIMEOUT, error) from None
        except Busy:
            raise CheckFailed(Failure.BUSY) from None
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise CheckFailed(Failure.EXCEPTION, error) from None  # Its own, not ours.
        except Exception as error:
            raise CheckFailed(Failure.EXCEPTION, error) from None
        if inspect.iscoroutine(result):
            result.close()  # Or Python complains that nobody awaited it.
            raise CheckFailed(Failure.CONTRACT, TypeError("a plain function returned a coroutine"))
        return result

    def close(self) -> None:
        self._threads.close()
