"""Who sends what, when: seeded traffic, drawn the same way for the simulator and for the load test.

Both must offer the same traffic, or a figure of one could not be held against a figure of the other; so it lives here
once, with no clock and no I/O besides reading a trace. An arrival process answers `instants(rng)`: seconds from 0,
never decreasing, made one at a time. They are plain loops around `random()` and `log`: numpy is no part of the base
install, and these cost about 0.1 microseconds each, which an hour at 2,000/s (7.2 million) affords.
"""

import itertools
import math
import random
from array import array
from bisect import bisect
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from batcher.errors import ConfigError
from batcher.sim.trace import read_instants


def stream(seed: int, what: str) -> random.Random:
    """The randomness of one thing in a run of this seed, such as its `arrivals` or its `mix`, and of nothing else.

    All streams come from here: the same seed is the same traffic in the simulator and in the load test. `Random(seed + 1)`
    was refused: the senders of one seed are then drawn from the numbers that are the arrivals of the next.
    """
    return random.Random(f"{seed}:{what}")


class Arrivals(Protocol):
    """When requests arrive."""

    def instants(self, rng: random.Random) -> Iterator[float]:
        """Instants in seconds from 0, never decreasing; endless, except where the process itself has an end."""
        ...


class Poisson(msgspec.Struct, frozen=True):
    """Independent callers: the gaps are exponential with mean 1 / `rate`."""

    rate: float

    def __post_init__(self) -> None:
        _check_positive("rate", self.rate)

    def instants(self, rng: random.Random) -> Iterator[float]:
        uniform, log, mean_gap_s = rng.random, math.log, 1.0 / self.rate
        at = 0.0
        while True:
            at -= log(1.0 - uniform()) * mean_gap_s
            yield at


class Constant(msgspec.Struct, frozen=True):
    """A metronome: request i arrives at i / `rate`, computed from i so that no rounding error adds up."""

    rate: float

    def __post_init__(self) -> None:
        _check_positive("rate", self.rate)

    def instants(self, rng: random.Random) -> Iterator[float]:
        rate = self.rate
        for i in itertools.count():
            yield i / rate


class Burst(msgspec.Struct, frozen=True):
    """Poisson whose rate jumps: every `period_s` begins with `burst_s` at `factor` times the rate of the rest.

    `rate` is the mean over a period, so that a burst and a Poisson process of one rate offer the same load.
    """

    rate: float
    factor: float = 5.0
    period_s: float = 5.0
    burst_s: float = 0.5

    def __post_init__(self) -> None:
        _check_positive("rate", self.rate)
        _check_positive("factor", self.factor)
        if not 0.0 < self.burst_s < self.period_s < math.inf:
            raise ConfigError(f"a burst must be shorter than its period, not {self.burst_s} of {self.period_s} s")

    def instants(self, rng: random.Random) -> Iterator[float]:
        calm_rate = self.rate * self.period_s / (self.period_s + (self.factor - 1.0) * self.burst_s)
        period = ((calm_rate * self.factor, self.burst_s), (calm_rate, self.period_s - self.burst_s))
        return _piecewise_poisson(itertools.cycle(period), rng)


class Ramp(msgspec.Struct, frozen=True):
    """Poisson whose rate grows (or falls) in a line from `start_rate` to `rate` over `duration_s`, and then stays."""

    start_rate: float
    rate: float
    duration_s: float

    def __post_init__(self) -> None:
        _check_positive("rate", self.rate)
        _check_positive("duration_s", self.duration_s)
        if not 0.0 <= self.start_rate < math.inf:
            raise ConfigError(f"start_rate must be 0 or more, not {self.start_rate}")

    def instants(self, rng: random.Random) -> Iterator[float]:
        """A unit Poisson process seen through the inverse of the expected count, a parabola while the rate moves."""
        uniform, log, sqrt = rng.random, math.log, math.sqrt
        start_rate, rate, duration_s = self.start_rate, self.rate, self.duration_s
        slope = (rate - start_rate) / duration_s
        num_while_moving = (start_rate + rate) / 2.0 * duration_s
        num_expected = -log(1.0 - uniform())
        while num_expected < num_while_moving:
            # The stable root of slope/2 at^2 + start_rate at = num_expected: right for slope 0 too.
            yield 2.0 * num_expected / (start_rate + sqrt(start_rate * start_rate + 2.0 * slope * num_expected))
            num_expected -= log(1.0 - uniform())
        while True:
            yield duration_s + (num_expected - num_while_moving) / rate
            num_expected -= log(1.0 - uniform())


class Steps(msgspec.Struct, frozen=True):
    """Poisson whose rate changes at once: `pieces` are (rate, seconds), one after the other, and then it ends."""

    pieces: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        for rate, duration_s in self.pieces:
            _check_positive("a step's duration", duration_s)
            if not 0.0 <= rate < math.inf:
                raise ConfigError(f"a step's rate must be 0 or more, not {rate}")

    def instants(self, rng: random.Random) -> Iterator[float]:
        return _piecewise_poisson(self.pieces, rng)


class Trace(msgspec.Struct, frozen=True):
    """Recorded arrivals, replayed `speed_up` times as fast as they were recorded. It ends with the recording.

    `at` starts at 0, as recorded, and never decreases.
    """

    at: "array[float]"
    speed_up: float = 1.0

    def __post_init__(self) -> None:
        _check_positive("speed_up", self.speed_up)

    def instants(self, rng: random.Random) -> Iterator[float]:
        speed_up = self.speed_up
        return (at / speed_up for at in self.at)


class Sender(msgspec.Struct, frozen=True):
    """One API key (in the simulator: one tenant), its tier, and its part of the traffic.

    Only the ratio of weights matters to `Mix.draws`, so a weight may be a share or a rate in requests per second.
    """

    key: str
    tier: str
    weight: float

    def __post_init__(self) -> None:
        _check_positive("a sender's weight", self.weight)


class Mix(msgspec.Struct, frozen=True):
    """Who sends each request: drawn by weight, independently of when.

    Marking one Poisson process at random is the same as merging independent ones, so separate rates per key need no
    second mechanism: weights that are rates, and `total` as the rate of the whole.
    """

    senders: tuple[Sender, ...]

    def __post_init__(self) -> None:
        if not self.senders:
            raise ConfigError("a mix needs at least one sender")

    @property
    def total(self) -> float:
        return math.fsum(sender.weight for sender in self.senders)

    def draws(self, rng: random.Random) -> Iterator[int]:
        """Indices into `senders`, without end."""
        cumulative = list(itertools.accumulate(sender.weight for sender in self.senders))
        uniform, find, total, last = rng.random, bisect, cumulative[-1], len(cumulative) - 1
        if last == 0:
            return itertools.repeat(0)
        return (find(cumulative, uniform() * total, 0, last) for _ in itertools.repeat(None))


def parse_arrivals(spelling: str, *, rate: float | None, duration_s: float, speed_up: float = 1.0) -> Arrivals:
    """The process that `poisson|constant|burst|ramp|steps:RATExSECONDS,...|trace:FILE` names.

    A ramp grows from 0 to `rate` over `duration_s`. Steps and traces bring their own rate, so theirs must be None.
    Raises `ConfigError` for anything else.
    """
    kind, _, argument = spelling.partition(":")
    if kind in ("steps", "trace"):
        if rate is not None:
            raise ConfigError(f"arrivals {kind!r} have their own rate; leave out the rate {rate:g}")
        if kind == "trace":
            return read_trace(Path(argument), speed_up=speed_up)
        return Steps(tuple(_parse_step(piece) for piece in argument.split(",")))
    if argument or kind not in ("poisson", "constant", "burst", "ramp"):
        raise ConfigError(f"unknown arrivals {spelling!r}; use poisson, constant, burst, ramp, steps:... or trace:FILE")
    if rate is None:
        raise ConfigError(f"arrivals {kind!r} need a rate")
    if kind == "ramp":
        return Ramp(0.0, rate, duration_s)
    return Constant(rate) if kind == "constant" else Burst(rate) if kind == "burst" else Poisson(rate)


def read_trace(path: Path, *, speed_up: float = 1.0) -> Trace:
    """The arrivals in a .csv or .csv.gz file. Raises `ConfigError`, with the line, for what cannot be read."""
    return Trace(read_instants(path), speed_up)


def _parse_step(text: str) -> tuple[float, float]:
    try:
        rate, duration_s = map(float, text.split("x"))
    except ValueError:
        raise ConfigError(f"a step is written RATExSECONDS, not {text!r}") from None
    return rate, duration_s


def _piecewise_poisson(pieces: Iterable[tuple[float, float]], rng: random.Random) -> Iterator[float]:
    """Poisson arrivals at each (rate, seconds) in turn. A gap starts afresh at a border, since it has no memory."""
    uniform, log = rng.random, math.log
    start_at = 0.0
    for rate, duration_s in pieces:
        end_at = start_at + duration_s
        if rate > 0.0:
            mean_gap_s = 1.0 / rate
            at = start_at - log(1.0 - uniform()) * mean_gap_s
            while at < end_at:
                yield at
                at -= log(1.0 - uniform()) * mean_gap_s
        start_at = end_at


def _check_positive(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise ConfigError(f"{name} must be more than 0, not {value}")
