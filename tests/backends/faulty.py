"""Backends that misbehave when an input asks for it; for the tests of backends here and of the service.

The first input that gives an order decides how the call ends; without one each input comes back as `<input>`.

    BOOM...        raises ValueError
    SLEEP:seconds  sleeps first
    HOLD:path      waits first, until that file exists: a gate that a test opens
    EXIT           ends the process at once, as a crash does (status 3)
    QUIT           raises SystemExit(4)
    CANCEL         raises CancelledError, which is no Exception
    WRONG          returns one output too few
    TYPES          returns a number among the strings
    NOTHING        returns None
    OBJECT         returns what no frame can carry
    SURROGATE      returns text that has no UTF-8 form

With the environment variable FAULTY_LOG set to a path, each event is appended to that file as a line of JSON: `event` (load,
run, close), `index`, `pid`, and `inputs` of a run.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_S = 0.005


class FaultyBackend:
    """The class among them: one instance per worker, with every hook."""

    def __init__(self, index: int) -> None:
        self.index = index

    def load(self) -> None:
        _log("load", self.index)

    def run_batch(self, inputs: list[str]) -> Any:
        _log("run", self.index, inputs)
        return run_batch(inputs)

    def close(self) -> None:
        _log("close", self.index)


class AsyncFaultyBackend:
    """The same with coroutines all over."""

    def __init__(self, index: int) -> None:
        self.index = index

    async def load(self) -> None:
        _log("load", self.index)

    async def run_batch(self, inputs: list[str]) -> Any:
        _log("run", self.index, inputs)
        return await run_batch_async(inputs)

    async def close(self) -> None:
        _log("close", self.index)


def run_batch(inputs: list[str]) -> Any:
    """The plain function."""
    for text in inputs:
        verb, _, argument = text.partition(":")
        if verb == "SLEEP":
            time.sleep(float(argument))
        while verb == "HOLD" and not Path(argument).exists():
            time.sleep(POLL_S)
    return _answer(inputs)


async def run_batch_async(inputs: list[str]) -> Any:
    """The coroutine function."""
    for text in inputs:
        verb, _, argument = text.partition(":")
        if verb == "SLEEP":
            await asyncio.sleep(float(argument))
        while verb == "HOLD" and not Path(argument).exists():  # noqa: ASYNC110, ASYNC240 - no event crosses processes
            await asyncio.sleep(POLL_S)
    return _answer(inputs)


def _answer(inputs: list[str]) -> Any:
    for text in inputs:
        if text.startswith("BOOM"):
            raise ValueError("an input began with BOOM")
        if text in ORDERS:
            return ORDERS[text]([f"<{text}>" for text in inputs])
    return [f"<{text}>" for text in inputs]


def _quit(outputs: list[str]) -> None:
    raise SystemExit(4)


def _cancel(outputs: list[str]) -> None:
    raise asyncio.CancelledError


ORDERS: dict[str, Callable[[list[str]], Any]] = {
    "EXIT": lambda outputs: os._exit(3),
    "QUIT": _quit,
    "CANCEL": _cancel,
    "WRONG": lambda outputs: outputs[:-1],
    "TYPES": lambda outputs: [*outputs[:-1], 1],
    "NOTHING": lambda outputs: None,
    "OBJECT": lambda outputs: object(),
    "SURROGATE": lambda outputs: ["\ud800" for _ in outputs],
}


def _log(event: str, index: int, inputs: list[str] | None = None) -> None:
    path = os.environ.get("FAULTY_LOG")
    if path is None:
        return
    line = json.dumps({"event": event, "index": index, "pid": os.getpid(), "inputs": inputs})
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(log, f"{line}\n".encode())  # One write: lines of several processes do not mix.
    finally:
        os.close(log)
