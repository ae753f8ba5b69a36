"""What can stand behind a worker, by name.

The table is explicit: entry points and scans for plug-ins were refused, since `MODULE:ATTR` already names anything on the path
without them. Each entry is imported when it is asked for, so that a service pays only for the backend it runs.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from backends.base import BackendFactory, BackendSpec, BatchBackend, WorkerBackend
from batcher.config import Isolation
from batcher.errors import ConfigError

if TYPE_CHECKING:
    from backends.generate import GenerateSettings
    from backends.simulated import SimulatedSettings

GENERATE = "generate"

Settings = Mapping[str, object] | msgspec.Struct | None


def create(
    name: str, *, isolation: str = Isolation.INLINE, settings: Settings = None, start_timeout_s: float
) -> BackendFactory:
    """A factory of workers' backends: `simulated`, `generate` or `MODULE:ATTR`, in this process or each in its own.

    `settings` are for the first two (a SimulatedSettings or GenerateSettings, or the same keys in a mapping); `start_timeout_s`
    bounds the start of a process: imports, and weights from a disk. Raises ConfigError for whatever can be known to be wrong
    before a worker starts: for a MODULE:ATTR inline everything, in a process only the form of the name, since importing a model
    here is what the process is for.
    """
    if isolation not in tuple(Isolation):
        raise ConfigError(f"isolation must be one of {', '.join(Isolation)}, not {isolation!r}")
    if not start_timeout_s > 0:
        raise ConfigError(f"start_timeout_s must be above 0, not {start_timeout_s!r}")
    spec = BackendSpec(name, _as_dict(settings))
    _check(spec)
    starts: Counter[int] = Counter()
    host = _inline(spec) if isolation == Isolation.INLINE else _in_process(spec, start_timeout_s)

    def start(index: int) -> WorkerBackend:
        starts[index] += 1
        return host(index, starts[index] - 1)

    return start


def make(spec: BackendSpec, *, index: int, start: int) -> BatchBackend:
    """The bare backend, for whoever hosts it. `start` counts the earlier starts of the same worker. Raises ConfigError."""
    if spec.name == "simulated":
        from backends.simulated import SimulatedBackend

        return SimulatedBackend(_simulated_settings(spec), index=index, start=start)
    if spec.name == GENERATE:
        from backends.generate import GenerateBackend

        return GenerateBackend(_generate_settings(spec))
    from backends.function import resolve

    return resolve(spec.name)(index)


_Host = Callable[[int, int], WorkerBackend]


def _inline(spec: BackendSpec) -> _Host:
    if spec.name == "simulated":
        from backends.simulated import SimulatedBackend

        settings = _simulated_settings(spec)
        return lambda index, start: SimulatedBackend(settings, index=index, start=start)
    from backends.inline import InlineBackend

    if spec.name == GENERATE:
        return lambda index, start: InlineBackend(lambda: make(spec, index=index, start=start), name=spec.name, index=index)
    from backends.function import resolve

    make_backend = resolve(spec.name)
    return lambda index, start: InlineBackend(lambda: make_backend(index), name=spec.name, index=index)


def _in_process(spec: BackendSpec, start_timeout_s: float) -> _Host:
    from backends.process import ProcessBackend

    return lambda index, start: ProcessBackend(spec, index=index, start=start, start_timeout_s=start_timeout_s)


def _check(spec: BackendSpec) -> None:
    if spec.name == "simulated":
        _simulated_settings(spec)
        return
    if spec.name == GENERATE:
        _generate_settings(spec)
        return
    if ":" not in spec.name:
        known = "'simulated', 'generate' or a name like 'package.module:attribute'"
        raise ConfigError(f"backend must be {known}, not {spec.name!r}")
    if spec.settings:
        raise ConfigError(f"backend {spec.name!r} takes no settings here: {', '.join(spec.settings)}")
    from backends.function import split_name

    split_name(spec.name)


def _simulated_settings(spec: BackendSpec) -> "SimulatedSettings":
    from backends.simulated import SimulatedSettings

    try:
        return msgspec.convert(spec.settings, SimulatedSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"settings of backend 'simulated': {error}") from error


def _generate_settings(spec: BackendSpec) -> "GenerateSettings":
    from backends.generate import GenerateSettings

    try:
        return msgspec.convert(spec.settings, GenerateSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"settings of backend 'generate': {error}") from error


def _as_dict(settings: Settings) -> dict[str, object]:
    if isinstance(settings, msgspec.Struct):
        return msgspec.structs.asdict(settings)
    return dict(settings or {})
