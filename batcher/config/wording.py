"""What msgspec says of a file's values, in words for whoever wrote the file: which words there are, and what was meant.

Its own name the place and the type and leave it there: it knows neither how TOML is written nor what a misspelt name is near.
"""

import difflib
import re
from collections.abc import Iterable
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

_STEP = re.compile(r"([A-Za-z_]\w*)|\[(\d+)\]")
_MAX_SHOWN = 100
"""Characters of a value."""


def one_of(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """To be said after it; empty if nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def why_unread(error: Exception) -> str:
    """Of a file: without its path, which whoever tells it has named."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def place_of(error: msgspec.ValidationError) -> str:
    """Where it is wrong, as `tiers[0].name`; empty for the whole."""
    return str(error).partition(" - at `$")[2].rstrip("`").lstrip(".")


def explain(error: msgspec.ValidationError, kind: type[msgspec.Struct], values: object) -> str | None:
    """What is wrong there, to be said after the place. `values` were not to be converted into a `kind`.

    None where msgspec's own words are as good.
    """
    what = str(error).partition(" - at `$")[0]
    if what.startswith("Invalid enum value"):
        choices, value = _at(place_of(error), kind, values)
        return f"is {str(value)[:_MAX_SHOWN]!r}; it must be {one_of(choice.value for choice in choices)}"
    if what.startswith("Object contains unknown field"):
        name = what.split("`")[1]
        struct, _ = _at(place_of(error), kind, values)
        return f"has no setting {name[:_MAX_SHOWN]!r}{did_you_mean(name, struct.__struct_fields__)}"
    if what == "Expected `array`, got `object`":
        return f"is one table; write [[{place_of(error)}]], with two brackets, for each"
    return None


def in_words(error: msgspec.ValidationError, kind: type[msgspec.Struct], values: object) -> str:
    """The same with its place; msgspec's words where those are as good."""
    told = explain(error, kind, values)
    return str(error) if told is None else f"{place_of(error)} {told}".lstrip()


def _at(place: str, kind: Any, values: Any) -> tuple[Any, Any]:
    """The type that is wanted at this place, and the value that stands there."""
    for name, index in _STEP.findall(place):
        kind, values = (get_type_hints(kind)[name], values[name]) if name else (get_args(kind)[0], values[int(index)])
        if get_origin(kind) is UnionType:  # What may be left out.
            kind = next(option for option in get_args(kind) if option is not NoneType)
    return kind, values
