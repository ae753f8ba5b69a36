"""The plug: what a GPU must offer, in words and as a Protocol.

A backend computes and nothing else. It knows no request, tier, retry or deadline; whoever calls it does. So a backend can be
a plain function, and any backend can be moved into a process of its own without knowing it.
"""

from collections.abc import Awaitable
from typing import Protocol, runtime_checkable


class WorkerLost(Exception):
    """The worker itself is gone (its process died, its connection broke): no verdict on the inputs it held."""


@runtime_checkable
class BatchBackend(Protocol):
    """A GPU that serves one batch at a time (SPEC S1.1, DESIGN D4).

    `run_batch` takes 1 to 50 inputs and returns one `str` per input, in the order of the inputs. It may be a plain or a
    coroutine function; a plain one is called off the event loop. It is never called again before it has returned.

    Raising an `Exception` other than `WorkerLost` means that these inputs failed. Raising `WorkerLost` or anything that is no
    `Exception` (SystemExit, KeyboardInterrupt), or passing the caller's deadline, means that the worker failed.

    A backend may also have, and needs neither:

    - `load()`: plain or coroutine; called once before the first batch. Raising means that the worker could not start.
    - `close()`: plain or coroutine; called once after the last. It must end, quickly, even while `run_batch` still runs.
    """

    def run_batch(self, inputs: list[str]) -> list[str] | Awaitable[list[str]]: ...
