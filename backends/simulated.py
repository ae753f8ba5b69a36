"""A GPU for people who have none: the one of SPEC S1.1, with faults on request.

It echoes its inputs after exactly `service_time_s`, whatever their number. The wait is a timer of the event loop, not a
sleeping thread: sixteen of them cost next to nothing, so a test of the service measures the service. Under uvloop a timer is
good to a millisecond.

Everything random comes from `(seed, worker index, number of the start)`: a run repeats exactly, two workers differ, and a
worker that died on its first call does not die on the first call of every later life.
"""

import asyncio
import math
import random
from enum import Enum

import msgspec

from backends.base import LostLatch, WorkerLost, check_call
from batcher.errors import ConfigError


class SimulatedSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the simulated GPU behaves. The three rates are chances per call, exclude each other, and sum to 1 at most."""

    service_time_s: float = 0.2
    """How long a call takes, whatever the number of inputs (SPEC S1.1)."""
    jitter: float = 0.0
    """Fraction of the service time by which it varies, uniformly, both ways: 0.1 means between 0.9 and 1.1 times."""
    poison_prefix: str | None = None
    """A call with an input that begins with this raises ValueError."""
    raise_rate: float = 0.0
    """Calls that raise RuntimeError."""
    hang_rate: float = 0.0
    """Calls that never end."""
    die_rate: float = 0.0
    """Calls during which the GPU is lost."""
    seed: int = 0

    def __post_init__(self) -> None:
        _check_number("service_time_s", self.service_time_s, most=math.inf)
        for name in ("jitter", "raise_rate", "hang_rate", "die_rate"):
            _check_number(name, getattr(self, name), most=1.0)
        total = self.raise_rate + self.hang_rate + self.die_rate
        if total > 1.0:
            raise ConfigError(f"raise_rate + hang_rate + die_rate must be at most 1, not {total:g}")
        if self.poison_prefix == "":
            raise ConfigError("poison_prefix must not be empty (every input begins with that); leave it out for no poison")
        if not isinstance(self.seed, int):
            raise ConfigError(f"seed must be a whole number, not {self.seed!r}")


def _check_number(name: str, value: float, *, most: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not 0 <= value <= most:
        accepted = "a finite number of at least 0" if most == math.inf else f"between 0 and {most:g}"
        raise ConfigError(f"{name} must be {accepted}, not {value!r}")


class _Fate(Enum):
    """How a call will end, drawn as it begins."""

    ANSWER = "answer"
    RAISE = "raise"
    HANG = "hang"
    DIE = "die"


class SimulatedBackend:
    """The simulated GPU: a WorkerBackend by itself, and a BatchBackend that can live in a process.

    Whatever ends a call ends it after its service time, faults too: the worst case for whoever must recover. Death is
    `WorkerLost`, inline and in a process (which then ends), and it is final: every later call is lost at once. SystemExit
    was refused: asyncio lets it out of the task and stops the whole loop.
    """

    def __init__(self, settings: SimulatedSettings, *, index: int = 0, start: int = 0) -> None:
        self._settings = settings
        self._random = random.Random(f"{settings.seed}/{index}/{start}")
        self._lost = LostLatch()
        self._running: asyncio.Future[None] | None = None
        """Done when the call in progress is over; only `run_batch` sets and clears it, `close` and a timer end it."""
        self.last_run_s: float | None = None

    async def load(self) -> None:
        """Nothing to load; refuses only to live again."""
        self._lost.check()

    async def run_batch(self, inputs: list[str]) -> list[str]:
        """The inputs, unchanged, after the service time. Raises as the settings ask."""
        self._lost.check()
        check_call(inputs, is_busy=self._running is not None)
        duration_s, fate = self._draw()
        loop = asyncio.get_running_loop()
        self._running = loop.create_future()
        timer = None if fate is _Fate.HANG else loop.call_at(loop.time() + duration_s, self._end_call)
        try:
            await self._running
        finally:
            self._running = None
            if timer is not None:
                timer.cancel()
        self._lost.check()
        self.last_run_s = duration_s
        return self._answer(inputs, fate)

    async def close(self) -> None:
        self._lost.set("the simulated GPU was closed")
        self._end_call()

    async def wait_lost(self) -> WorkerLost:
        return await self._lost.wait()

    def _draw(self) -> tuple[float, _Fate]:
        """Always two draws, so that one setting does not shift what another one draws."""
        settings = self._settings
        duration_s = settings.service_time_s * (1 + settings.jitter * self._random.uniform(-1, 1))
        chance = self._random.random()
        for fate, rate in (
            (_Fate.DIE, settings.die_rate),
            (_Fate.HANG, settings.hang_rate),
            (_Fate.RAISE, settings.raise_rate),
        ):
            if chance < rate:
                return duration_s, fate
            chance -= rate
        return duration_s, _Fate.ANSWER

    def _end_call(self) -> None:
        if self._running is not None and not self._running.done():
            self._running.set_result(None)

    def _answer(self, inputs: list[str], fate: _Fate) -> list[str]:
        if fate is _Fate.DIE:
            self._lost.set("the simulated GPU died")
            self._lost.check()
        if fate is _Fate.RAISE:
            raise RuntimeError("the simulated GPU raised, as configured")
        prefix = self._settings.poison_prefix
        if prefix is not None and any(text.startswith(prefix) for text in inputs):
            raise ValueError("the batch holds an input that the simulated GPU cannot take")
        return list(inputs)

    def __repr__(self) -> str:
        state = "lost" if self._lost.reason else "running" if self._running else "idle"
        return f"<SimulatedBackend {state}>"
