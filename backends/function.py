"""Any `MODULE:ATTR` as a backend: a function, a coroutine function or a class.

The mistakes that people make with such a name (a typo, a missing module, a function with another signature) are told at
start, as a ConfigError that names what was asked for, and never on the first request. An object that is no class but has
`run_batch` is refused: all workers would share it, and a backend is never called twice at once.
"""

import importlib
import inspect
import os
import sys
from collections.abc import Awaitable, Callable

from backends.base import BatchBackend, cannot_import
from batcher.errors import ConfigError

RunBatch = Callable[[list[str]], list[str] | Awaitable[list[str]]]


class FunctionBackend:
    """A function in the shape of a backend; nothing to load, nothing to close."""

    def __init__(self, run_batch: RunBatch) -> None:
        self.run_batch = run_batch


def split_name(name: str) -> tuple[str, str]:
    """MODULE and ATTR (which may have dots) of `MODULE:ATTR`, without importing anything. Raises ConfigError."""
    module_name, _, attribute = name.partition(":")
    parts = [*module_name.split("."), *attribute.split(".")]
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(f"backend {name!r} is no name like 'package.module:attribute'")
    return module_name, attribute


def resolve(name: str) -> Callable[[int], BatchBackend]:
    """Worker index -> a fresh backend, for a `MODULE:ATTR`. The current directory can be imported from, as for uvicorn.

    Raises ConfigError if there is no such thing, it or what it imports cannot be imported, or it cannot be called as a backend
    is. What else the module itself raises while it is imported comes through.
    """
    target = _import(name)
    if inspect.isclass(target):
        return _from_class(name, target)
    if hasattr(target, "run_batch"):
        raise ConfigError(f"backend {name!r} is an instance, which all workers would share; name its class instead")
    if not callable(target):
        raise ConfigError(f"backend {name!r} is neither a function nor a class: {type(target).__name__}")
    _check_call(name, "run_batch(inputs)", target, [])
    return lambda index: FunctionBackend(target)


def _import(name: str) -> object:
    module_name, attribute = split_name(name)
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        target: object = importlib.import_module(module_name)
    except ImportError as error:
        is_itself = isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}.")
        if not is_itself:
            raise cannot_import(name, error) from error  # The module exists; something that it imports does not.
        raise ConfigError(f"backend {name!r}: there is no module {error.name!r} here or in the environment") from error
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except AttributeError as error:
            raise ConfigError(f"backend {name!r}: module {module_name!r} has no attribute {attribute!r}") from error
    return target


def _from_class(name: str, cls: type) -> Callable[[int], BatchBackend]:
    run_batch = getattr(cls, "run_batch", None)
    if not callable(run_batch):
        raise ConfigError(f"backend {name!r} is a class without a method run_batch(inputs)")
    _check_call(name, "run_batch(inputs)", run_batch, *_self_of(cls, "run_batch"), [])
    for hook in ("load", "close"):
        if not hasattr(cls, hook):
            continue
        method = getattr(cls, hook)
        if not callable(method):
            raise ConfigError(f"backend {name!r}: {hook} is not a method")
        _check_call(name, f"{hook}()", method, *_self_of(cls, hook))
    return _constructor(name, cls)


def _constructor(name: str, cls: type) -> Callable[[int], BatchBackend]:
    """How to call the class: with its index if it has a parameter of that name, or exactly one that must be given."""
    parameters = list(_signature(cls).parameters.values())
    index_parameter = next((p for p in parameters if p.name == "index"), None)
    required = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if [p for p in required if p is not index_parameter]:
        if len(required) == 1 and required[0].kind is not inspect.Parameter.KEYWORD_ONLY:
            return lambda index: cls(index)
        wanted = ", ".join(p.name for p in required)
        raise ConfigError(f"backend {name!r}: its constructor may take a worker index and no more, but wants {wanted}")
    if index_parameter is None:
        return lambda index: cls()
    if index_parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
        return lambda index: cls(index)
    return lambda index: cls(index=index)


def _self_of(cls: type, method: str) -> tuple[None, ...]:
    """The place of `self`, if an instance passes itself: not to what is static, the class's or no function at all."""
    attribute = inspect.getattr_static(cls, method)
    is_bound = hasattr(attribute, "__get__") and not isinstance(attribute, staticmethod | classmethod)
    return (None,) if is_bound else ()


def _check_call(name: str, call: str, function: Callable[..., object], *arguments: object) -> None:
    try:
        _signature(function).bind(*arguments)
    except TypeError as error:
        raise ConfigError(f"backend {name!r} cannot be called as {call}: {error}") from error


def _signature(function: Callable[..., object]) -> inspect.Signature:
    """The signature, or one that accepts anything where there is none to read (some builtins)."""
    try:
        return inspect.signature(function)
    except ValueError:
        anything = inspect.Parameter("arguments", inspect.Parameter.VAR_POSITIONAL)
        return inspect.Signature([anything])
