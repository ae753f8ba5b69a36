"""Structs that the collector of cycles does not see must hold nothing that could lead back to them: such a cycle is forever."""

import asyncio
import importlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("batcher", "backends")
PLAIN = (int, float, str, bytes, bytearray, bool, NoneType, Enum)
CONTAINERS = (list, tuple, dict, Sequence, UnionType, Union)


def hidden_structs() -> Iterator[type[msgspec.Struct]]:
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if "gc=False" not in file.read_text():
                continue  # Nothing is imported in vain.
            module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
            for thing in vars(module).values():
                is_own = isinstance(thing, type) and issubclass(thing, msgspec.Struct) and thing.__module__ == module.__name__
                if is_own and not thing.__struct_config__.gc:
                    yield thing


HIDDEN = {f"{struct.__module__}.{struct.__qualname__}": struct for struct in hidden_structs()}


def hints_of(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return get_type_hints(struct, localns={"array": list})  # Python 3.11's takes no arguments at run time.


def leads_nowhere(kind: Any) -> bool:
    if arguments := get_args(kind):
        is_plain = get_origin(kind) in CONTAINERS
        return is_plain and all(leads_nowhere(argument) for argument in arguments if argument is not Ellipsis)
    if not isinstance(kind, type):
        return False
    if issubclass(kind, msgspec.Struct):
        return all(leads_nowhere(hint) for hint in hints_of(kind).values())
    return issubclass(kind, PLAIN)


@pytest.mark.parametrize("kind", [Exception, Callable[[], None], asyncio.Future[None], deque[int], list, list[Exception]])
def test_what_may_lead_anywhere_is_known(kind: Any) -> None:
    assert not leads_nowhere(kind)


def test_there_are_some() -> None:
    assert "batcher.types.Request" in HIDDEN


@pytest.mark.parametrize("name", sorted(HIDDEN))
def test_what_the_collector_does_not_see_leads_nowhere(name: str) -> None:
    """An event with an error in it was hidden: the error's traceback led to the frame that held the event, and each refused
    conversation stayed in memory, 9 kB of it."""
    for field, kind in hints_of(HIDDEN[name]).items():
        assert leads_nowhere(kind), f"{name}.{field} may be anything: {kind}"
