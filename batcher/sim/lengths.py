"""How long prompts and answers are: seeded draws of token counts, the same for the simulator and for the load test.

The shape decides as much as the mean. One answer of 256 tokens among three of 8 is what a static batch waits for, and a
heavy tail is what fills the memory; an average hides both. So a length is a distribution with a spelling, never a number
that is drawn around in secret.
"""

import itertools
import math
import random
from array import array
from bisect import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from batcher.errors import ConfigError
from batcher.sim.trace import read_lengths

MAX_LENGTH = 10_000_000
"""Most tokens of one text: longer than any model's context."""


class Lengths(Protocol):
    """Token counts of texts."""

    def draws(self, rng: random.Random) -> Iterator[int]:
        """Without end, each from 1 to `MAX_LENGTH`."""
        ...


class Fixed(msgspec.Struct, frozen=True):
    """Always the same."""

    num: int

    def __post_init__(self) -> None:
        _check_length(self.num)

    def draws(self, rng: random.Random) -> Iterator[int]:
        return itertools.repeat(self.num)


class Uniform(msgspec.Struct, frozen=True):
    """Each from `low` to `high`, both included, equally likely."""

    low: int
    high: int

    def __post_init__(self) -> None:
        _check_length(self.low)
        _check_length(self.high)
        if self.low > self.high:
            raise ConfigError(f"lengths from {self.low} to {self.high}: the first must not be more than the second")

    def draws(self, rng: random.Random) -> Iterator[int]:
        return (rng.randint(self.low, self.high) for _ in itertools.repeat(None))


class LogNormal(msgspec.Struct, frozen=True):
    """Half of the draws are below `median`; `sigma` is the standard deviation of the logarithm: 1 is a heavy tail.

    Rounded; draws above `max` are cut down to it, so the longest length is as likely as the whole tail beyond it.
    """

    median: int
    sigma: float
    max: int = MAX_LENGTH

    def __post_init__(self) -> None:
        _check_length(self.median)
        _check_length(self.max)
        if not 0.0 <= self.sigma <= 10.0:
            raise ConfigError(f"the sigma of a lognormal length must be from 0 to 10, not {self.sigma}")

    def draws(self, rng: random.Random) -> Iterator[int]:
        mu = math.log(self.median)
        # The exponent is bounded before it is raised, since a draw far out would overflow.
        log_max = math.log(self.max)
        return (
            max(min(round(math.exp(min(rng.normalvariate(mu, self.sigma), log_max))), self.max), 1)
            for _ in itertools.repeat(None)
        )


class LengthMix(msgspec.Struct, frozen=True):
    """One of a few lengths, by weight: short and long answers side by side."""

    parts: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        for num, weight in self.parts:
            _check_length(num)
            if not 0.0 < weight < math.inf:
                raise ConfigError(f"the weight of a length must be more than 0, not {weight}")

    def draws(self, rng: random.Random) -> Iterator[int]:
        cumulative = list(itertools.accumulate(weight for _, weight in self.parts))
        last = len(cumulative) - 1
        return (self.parts[bisect(cumulative, rng.random() * cumulative[-1], 0, last)][0] for _ in itertools.repeat(None))


class Recorded(msgspec.Struct, frozen=True):
    """The lengths of a trace, in its order, and again from its start when it ends."""

    nums: "array[int]"

    def draws(self, rng: random.Random) -> Iterator[int]:
        return itertools.cycle(self.nums)


def parse_lengths(spelling: str, *, column: str) -> Lengths:
    """What `N | uniform:LOW-HIGH | lognormal:MEDIAN,SIGMA[,MAX] | N@WEIGHT,N@WEIGHT,... | trace:FILE` names.

    A trace's lengths are in `column`. Raises `ConfigError` for anything else.
    """
    kind, colon, argument = spelling.strip().partition(":")
    try:
        if not colon and "@" in kind:
            parts = [part.split("@") for part in kind.split(",")]
            return LengthMix(tuple((int(num), float(weight)) for num, weight in parts))
        if not colon:
            return Fixed(int(kind))
        if kind == "uniform":
            low, high = argument.split("-")
            return Uniform(int(low), int(high))
        if kind == "lognormal":
            median, sigma, *more = argument.split(",")
            return LogNormal(int(median), float(sigma), *map(int, more))
        if kind == "trace":
            return Recorded(read_lengths(Path(argument), column))
    except (ValueError, TypeError):
        pass
    raise ConfigError(
        f"a length is written 128, uniform:LOW-HIGH, lognormal:MEDIAN,SIGMA[,MAX], 8@0.75,256@0.25 or trace:FILE, "
        f"not {spelling!r}"
    )


def _check_length(num: int) -> None:
    if not 1 <= num <= MAX_LENGTH:
        raise ConfigError(f"a length must be from 1 to {MAX_LENGTH:,} tokens, not {num}")
