"""How a setting that cannot work is refused: by its name, its value and what would do."""

from enum import Enum
from math import isfinite

from batcher.errors import ConfigError


def require(condition: bool, setting: str, value: object, expected: str) -> None:
    """Raises ConfigError unless the condition holds; `expected` is what the value must be, in words."""
    if not condition:
        shown = value.value if isinstance(value, Enum) else value
        raise ConfigError(f"{setting} is {shown!r}; it must be {expected}")


def require_between(setting: str, value: float, low: float, high: float, unit: str = "") -> None:
    """Raises ConfigError unless the value is finite and within both bounds, themselves included."""
    expected = f"from {_in_full(low)} to {_in_full(high)}{unit and ' ' + unit}"
    require(isfinite(value) and low <= value <= high, setting, value, expected)


def _in_full(number: float) -> str:
    """1000000 and not 1e+06."""
    return str(number) if isinstance(number, int) else f"{number:g}"
