"""Anybody's own checker by the name `MODULE:ATTR`: a class, which is made once without arguments, or an object.

A checker that cannot work is told at start, as a ConfigError by its name.
"""

import importlib
import inspect
import os
import sys
from typing import cast

from batcher.errors import ConfigError
from batcher.service.safety.contract import Checker


def load_checker(name: str) -> Checker:
    """Raises ConfigError. What the module or the class itself raises comes through as its cause."""
    module_name, _, attribute = name.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        raise ConfigError(f"safety_checker {name!r} is no name like 'package.module:attribute'")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        target: object = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
        checker = target() if inspect.isclass(target) else target
    except Exception as error:
        raise ConfigError(f"safety_checker {name!r}: {type(error).__name__}: {error}") from error
    _require_method(name, checker, "check_input", "check_input(context, texts)", 2)
    _require_method(name, checker, "check_output", "check_output(context)", 1)
    if inspect.iscoroutinefunction(checker.check_output):  # type: ignore[attr-defined]
        raise ConfigError(f"safety_checker {name!r}: check_output must be a plain method; feed and flush may be coroutines")
    return cast(Checker, checker)


def _require_method(name: str, checker: object, method: str, call: str, num_arguments: int) -> None:
    function = getattr(checker, method, None)
    if not callable(function):
        raise ConfigError(f"safety_checker {name!r} has no method {call}")
    try:
        inspect.signature(function).bind(*[None] * num_arguments)
    except TypeError as error:
        raise ConfigError(f"safety_checker {name!r} cannot be called as {call}: {error}") from error
    except ValueError:
        pass  # A builtin without a signature to read.
