"""Backends that go wrong at the start or at the end, and targets that are no backends: MODULE:ATTRs for the tests here."""

import ctypes
import os
import subprocess
import sys
import time

from backends.base import WorkerLost

FOREVER_S = 3600


class Noisy:
    """Prints wherever it can."""

    print("at import")

    def load(self) -> None:
        print("in load", flush=True)

    def run_batch(self, inputs: list[str]) -> list[str]:
        print("in run_batch", flush=True)
        sys.__stdout__.write("straight to standard output\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
        return inputs


class RaisesInConstructor:
    def __init__(self) -> None:
        raise RuntimeError("no GPU today")

    def run_batch(self, inputs: list[str]) -> list[str]:
        return inputs


class ImportsInLoad:
    def load(self) -> None:
        import no_such_dependency  # type: ignore[import-not-found]  # noqa: F401

    def run_batch(self, inputs: list[str]) -> list[str]:
        return inputs


class RaisesInLoad:
    def load(self) -> None:
        raise RuntimeError("no GPU today")

    def run_batch(self, inputs: list[str]) -> list[str]:
        return inputs


class ExitsInLoad(RaisesInLoad):
    def load(self) -> None:
        raise SystemExit(7)


class NeverReady(RaisesInLoad):
    def load(self) -> None:
        time.sleep(FOREVER_S)


class HangsInClose(RaisesInLoad):
    def load(self) -> None:
        pass

    def close(self) -> None:
        time.sleep(FOREVER_S)


class RaisesInClose(HangsInClose):
    def close(self) -> None:
        raise RuntimeError("cannot let go")


class RaisesLongMessage:
    def run_batch(self, inputs: list[str]) -> list[str]:
        raise KeyError("\ud800" + "x" * 100_000)


class Loses:
    def run_batch(self, inputs: list[str]) -> list[str]:
        raise WorkerLost("the link to the GPU broke")


class HoldsInterpreter:
    """A batch that never gives the interpreter lock back: no other thread of its process runs again."""

    def run_batch(self, inputs: list[str]) -> list[str]:
        ctypes.PyDLL(None).sleep(FOREVER_S)
        return inputs


class Starter:
    """Starts a process of its own and answers with its id."""

    def run_batch(self, inputs: list[str]) -> list[str]:
        if inputs == ["HANG"]:
            time.sleep(FOREVER_S)
        if inputs == ["EXIT"]:
            os._exit(3)
        started = subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({FOREVER_S})"])
        return [str(started.pid) for _ in inputs]


class StopsIteration:
    def run_batch(self, inputs: list[str]) -> list[str]:
        raise StopIteration("out of luck")


class WithIndex:
    def __init__(self, model: str = "small", *, index: int) -> None:
        self.told = f"{model} {index}"

    def run_batch(self, inputs: list[str]) -> list[str]:
        return [self.told for _ in inputs]


class WithOnePositional(WithIndex):
    def __init__(self, device: int, /) -> None:
        self.told = f"device {device}"


class WithDefaults(WithIndex):
    def __init__(self, model: str = "large") -> None:
        self.told = model


class WithTwo(WithIndex):
    def __init__(self, index: int, model: str) -> None:
        self.told = model


class WithoutRunBatch:
    def run(self, inputs: list[str]) -> list[str]:
        return inputs


class RunBatchWithTwo:
    def run_batch(self, inputs: list[str], temperature: float) -> list[str]:
        return inputs


class Static:
    @staticmethod
    def run_batch(inputs: list[str]) -> list[str]:
        return inputs


class Nested:
    Inner = Static


class LoadIsNoMethod(Static):
    load = 3


class LoadWantsPath(Static):
    async def load(self, path: str) -> None:
        pass


class CloseWantsReason(Static):
    def close(self, reason: str) -> None:
        pass


class StaticLoadWantsPath(Static):
    @staticmethod
    def load(path: str) -> None:
        pass


class Callable:
    def __call__(self, inputs: list[str]) -> list[str]:
        return inputs


class AnyHooks:
    """Methods of every kind that can be called."""

    run_batch = Callable()

    @staticmethod
    def load() -> None:
        pass

    @classmethod
    def close(cls, reason: str = "") -> None:
        pass


a_callable = Callable()
an_instance = Static()
a_number = 3
a_lambda = lambda inputs: inputs  # noqa: E731


def takes_nothing() -> list[str]:
    return []


def takes_two(inputs: list[str], temperature: float) -> list[str]:
    return inputs


def takes_more_by_default(inputs: list[str], temperature: float = 0.7) -> list[str]:
    return inputs
