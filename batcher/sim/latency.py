"""What a simulated batch takes: small models, all of one shape, drawn from a seed.

SPEC S1.1's GPU takes 200 ms whatever the size; the others are there because real ones do not.
"""

from math import exp
from random import Random
from typing import Protocol

import msgspec

from batcher.errors import ConfigError

_MIN_S = 1e-6
"""A batch takes time, whatever was drawn."""


class Latency(Protocol):
    def draw(self, num_inputs: int, rng: Random) -> float:
        """Seconds that this batch takes: more than 0."""
        ...

    def expected_s(self, num_inputs: int) -> float:
        """What an operator would configure as the service time: about the mean."""
        ...


class Fixed(msgspec.Struct, frozen=True):
    """Always the same, whatever the size."""

    service_time_s: float

    def __post_init__(self) -> None:
        _check("a fixed service time", self.service_time_s)

    def draw(self, num_inputs: int, rng: Random) -> float:
        return self.service_time_s

    def expected_s(self, num_inputs: int) -> float:
        return self.service_time_s


class Jitter(msgspec.Struct, frozen=True):
    """Uniform within `share` of the service time on either side."""

    service_time_s: float
    share: float

    def __post_init__(self) -> None:
        _check("the service time of a jitter", self.service_time_s)
        if not 0.0 <= self.share < 1.0:
            raise ConfigError(f"the share of a jitter is {self.share}; it must be from 0 to below 1")

    def draw(self, num_inputs: int, rng: Random) -> float:
        return max(self.service_time_s * (1.0 + self.share * (2.0 * rng.random() - 1.0)), _MIN_S)

    def expected_s(self, num_inputs: int) -> float:
        return self.service_time_s


class LogNormal(msgspec.Struct, frozen=True):
    """A long tail: the logarithm is normal around the median's, with standard deviation `sigma`."""

    median_s: float
    sigma: float

    def __post_init__(self) -> None:
        _check("the median of a lognormal", self.median_s)
        if not 0.0 <= self.sigma <= 3.0:
            raise ConfigError(f"the sigma of a lognormal is {self.sigma}; it must be from 0 to 3")

    def draw(self, num_inputs: int, rng: Random) -> float:
        return max(self.median_s * exp(rng.gauss(0.0, self.sigma)), _MIN_S)

    def expected_s(self, num_inputs: int) -> float:
        return self.median_s * exp(self.sigma**2 / 2.0)


class Linear(msgspec.Struct, frozen=True):
    """A fixed part and a part for each input: a model that computes more than it reads."""

    fixed_s: float
    per_input_s: float

    def __post_init__(self) -> None:
        _check("the fixed part of a linear service time", self.fixed_s)
        if not 0.0 <= self.per_input_s < 3600.0:
            raise ConfigError(f"the part for each input is {self.per_input_s}; it must be 0 or more seconds")

    def draw(self, num_inputs: int, rng: Random) -> float:
        return self.fixed_s + self.per_input_s * num_inputs

    def expected_s(self, num_inputs: int) -> float:
        return self.draw(num_inputs, Random(0))


_MODELS: dict[str, type[Jitter] | type[LogNormal] | type[Linear]] = {"jitter": Jitter, "lognormal": LogNormal, "linear": Linear}


def parse_latency(spelling: str) -> Latency:
    """The model that `SECONDS|jitter:SECONDS,SHARE|lognormal:MEDIAN,SIGMA|linear:SECONDS,PER_INPUT` names.

    Raises ConfigError for anything else.
    """
    kind, _, arguments = spelling.rpartition(":")
    try:
        if not kind:
            return Fixed(float(arguments))
        first, second = map(float, arguments.split(","))
        return _MODELS[kind](first, second)
    except (ValueError, KeyError):
        raise ConfigError(
            f"unknown service time {spelling!r}; use SECONDS, jitter:SECONDS,SHARE, lognormal:MEDIAN,SIGMA "
            "or linear:SECONDS,PER_INPUT"
        ) from None


def _check(what: str, value_s: float) -> None:
    if not 0.0 < value_s <= 3600.0:
        raise ConfigError(f"{what} is {value_s}; it must be more than 0 and up to 3600 seconds")
