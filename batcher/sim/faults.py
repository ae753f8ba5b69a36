"""What goes wrong, drawn from a seed: a plan says how often, `Faults` draws when.

A script of failures was refused: it tries what its author thought of. Shares are per thing (a run, a start, a request), so a
plan means the same on any traffic; what happens by itself has a rate.
"""

from collections.abc import Iterator
from enum import Enum, auto
from random import Random

import msgspec

from batcher.errors import ConfigError
from batcher.types import Request

POISON = "BOOM"
"""`run_batch` raises on an input that begins so."""

KILLER = "EXIT"
"""The worker dies of an input that begins so."""


class RunFate(Enum):
    """What becomes of one call of `run_batch`."""

    ANSWERS = auto()
    DIES = auto()
    """The worker dies in the middle."""
    HANGS = auto()
    """It never answers."""
    ANSWERS_LATE = auto()
    """It answers, raises or dies after the worker was given up: the late word of a superseded attempt."""
    BAD_OUTPUT = auto()
    """It answers with the wrong number or type of outputs."""


class StartFate(Enum):
    """What becomes of one start of a worker."""

    READY = auto()
    FAILS = auto()
    LATE = auto()
    """It becomes ready after it was given up."""
    NEVER = auto()
    """Nothing is heard of it."""


class FaultPlan(msgspec.Struct, frozen=True):
    """How often things go wrong; by itself nothing does."""

    dies: float = 0.0
    """Share of runs in which the worker dies; likewise the next three."""
    hangs: float = 0.0
    answers_late: float = 0.0
    bad_outputs: float = 0.0
    starts_badly: float = 0.0
    """Share of starts that fail, come late or never; a third each."""
    sick: float = 0.0
    """Share of starts after which a worker raises on everything."""
    echoes: float = 0.0
    """Share of losses that are reported twice: the process ended, and its pipe closed."""
    cancels: float = 0.0
    """Share of requests whose caller leaves, at any instant."""
    handoff_cancels: float = 0.0
    """Share of runs at whose very start or end a caller of theirs leaves."""
    impatient: float = 0.0
    """Share of requests with a deadline of about one service time."""
    poison: float = 0.0
    """Share of requests on which `run_batch` raises."""
    killers: float = 0.0
    """Share of requests of which the worker dies."""
    idle_deaths_rate: float = 0.0
    """Workers that die by themselves, free or busy, per second."""
    stalls_rate: float = 0.0
    """Stalls of the event loop, per second."""
    stall_s: float = 0.0
    """The longest stall."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value, most = getattr(self, name), 1000.0 if name.endswith(("_rate", "_s")) else 1.0
            if not 0.0 <= value <= most:
                raise ConfigError(f"fault {name} is {value}; it must be from 0 to {most:g}")


def plan_of_intensity(intensity: float) -> FaultPlan:
    """A bad day of an operator, scaled: 0 is none, 1 loses a worker in every fiftieth batch or so."""
    if not 0.0 <= intensity <= 10.0:
        raise ConfigError(f"faults is {intensity}; it must be from 0 to 10")
    return FaultPlan(
        dies=0.005 * intensity,
        hangs=0.005 * intensity,
        answers_late=0.003 * intensity,
        bad_outputs=0.003 * intensity,
        starts_badly=0.05 * intensity,
        cancels=0.01 * intensity,
        poison=0.0005 * intensity,
        idle_deaths_rate=0.05 * intensity,
        stalls_rate=0.02 * intensity,
        stall_s=0.1 if intensity else 0.0,
    )


class Faults:
    """Draws what happens, in the order in which it is asked. Once `are_over` is set, by `stop`, nothing goes wrong."""

    def __init__(self, plan: FaultPlan, rng: Random) -> None:
        self.plan = plan
        self.are_over = False
        self._rng = rng

    def stop(self) -> None:
        self.are_over = True

    def happens(self, share: float) -> bool:
        """Whether something that happens to this share happens now. What can never happen draws nothing."""
        return share > 0.0 and not self.are_over and self._rng.random() < share

    def run_fate(self) -> RunFate:
        plan = self.plan
        if self.happens(plan.dies):
            return RunFate.DIES
        if self.happens(plan.hangs):
            return RunFate.HANGS
        if self.happens(plan.answers_late):
            return RunFate.ANSWERS_LATE
        return RunFate.BAD_OUTPUT if self.happens(plan.bad_outputs) else RunFate.ANSWERS

    def start_fate(self) -> StartFate:
        if not self.happens(self.plan.starts_badly):
            return StartFate.READY
        return self._rng.choice((StartFate.FAILS, StartFate.LATE, StartFate.NEVER))

    def bad_outputs(self, outputs: list[str]) -> object:
        """The outputs, spoilt: too few, too many, none, one that is no string, or nothing that is a list."""
        return self._rng.choice(
            (
                outputs[:-1],
                [*outputs, "one too many"],
                [],
                [*outputs[:-1], self._rng.choice((None, 7, b"bytes", ["list"]))],
                "x" * len(outputs),
                None,
            )
        )

    def portion(self, of_s: float) -> float:
        """Any part of a duration."""
        return of_s * self._rng.random()

    def choose(self, num: int) -> int:
        return self._rng.randrange(num)

    def instants(self, rate: float, *, until: float) -> Iterator[float]:
        """When what happens by itself at this rate happens."""
        at = self._rng.expovariate(rate) if rate > 0.0 else until
        while at < until:
            yield at
            at += self._rng.expovariate(rate)

    def trouble(self, requests: Iterator[Request], *, service_time_s: float) -> Iterator[Request]:
        """The same requests, some of them poison, killers, or impatient. Nothing is copied when none can be."""
        plan = self.plan
        return self._troubled(requests, service_time_s) if plan.poison or plan.killers or plan.impatient else requests

    def _troubled(self, requests: Iterator[Request], service_time_s: float) -> Iterator[Request]:
        plan = self.plan
        for request in requests:
            word, deadline_at = request.input, request.deadline_at
            if self.happens(plan.poison):
                word = f"{POISON} {word}"
            elif self.happens(plan.killers):
                word = f"{KILLER} {word}"
            if self.happens(plan.impatient):
                deadline_at = min(deadline_at, request.arrived_at + self.portion(3.0 * service_time_s) + 1e-4)
            yield Request(request.id, request.tenant, request.tier, word, request.num_bytes, request.arrived_at, deadline_at)
