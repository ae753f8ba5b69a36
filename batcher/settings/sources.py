"""Where settings come from: a TOML file, the environment and flags, the later ones winning, all of one set of keys.

A key that nobody knows is refused wherever it stands: a misspelt setting must not be ignored in one place and obeyed in
another.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import get_args, get_type_hints

import msgspec

from batcher.config.wording import did_you_mean, explain, place_of, why_unread
from batcher.errors import ConfigError
from batcher.settings.fields import Settings
from batcher.settings.modes import GENERATE, GENERATE_DEFAULTS

_PREFIX = "BATCHER_"
CONFIG_VARIABLE = f"{_PREFIX}CONFIG"
"""Names the file; the one variable that is no setting."""
_OF_KUBERNETES = re.compile(r"BATCHER_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")


_PATHS = {name for name, kind in get_type_hints(Settings).items() if Path in get_args(kind)}
"""A file's name may be any bytes."""
_SURROGATE = re.compile("[\ud800-\udfff]")
"""What Python makes of a byte that is no UTF-8, in a variable and in an argument."""


def load_settings(
    *, file: Path | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> Settings:
    """Merges file, environment and flags, the later winning. Raises ConfigError for anything that cannot work."""
    merged: dict[str, object] = {}
    origins: dict[str, str] = {}
    given = [(key, value, f"{key} in {file}") for key, value in (_read(file) if file is not None else {}).items()]
    for name, text in (environment or {}).items():
        if name.startswith(_PREFIX) and name != CONFIG_VARIABLE and not _is_of_kubernetes(name, text):
            given.append((name.removeprefix(_PREFIX).lower(), text, name))
    given += [(key, value, "--" + key.replace("_", "-")) for key, value in (flags or {}).items()]
    for key, value, origin in given:
        _require_known(key, origin)
        if isinstance(value, str) and key not in _PATHS and _SURROGATE.search(value):
            raise ConfigError(f"{origin} is {value!r}; it must be text in UTF-8")
        if value == "null":  # The conversion of text would take it for a setting that was not set.
            raise ConfigError(f"{origin} is 'null'; leave it out for its default")
        merged[key], origins[key] = value, origin
    if merged.get("backend") == GENERATE:
        merged = {**GENERATE_DEFAULTS, **merged}
    try:
        # Not strict: the environment has only strings.
        return msgspec.convert(merged, Settings, strict=False, dec_hook=_to_path)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(error, merged, origins)) from error


_WORDS = {"int": "a whole number", "float": "a number", "str": "text", "array": "a list", "object": "a table", "Path": "a path"}
"""What msgspec's names of types mean to somebody who writes a file."""


def _to_path(kind: type, value: object) -> object:
    """Settings have one type that msgspec does not know. What is returned unchanged it refuses itself, by its name."""
    return Path(value) if kind is Path and isinstance(value, str) and value and "\0" not in value else value


def _is_of_kubernetes(name: str, text: str) -> bool:
    """Whether it is one of those that Kubernetes puts into every pod beside a Service named `batcher`, or `batcher-redis`."""
    return bool(_OF_KUBERNETES.fullmatch(name)) or (name.endswith("_PORT") and "://" in text)


def _require_known(key: str, origin: str) -> None:
    if key in Settings.__struct_fields__:
        return
    raise ConfigError(f"{origin}: there is no such setting{did_you_mean(key, Settings.__struct_fields__)}")


def _read(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as stream:
            return {key.replace("-", "_"): value for key, value in tomllib.load(stream).items()}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {file}: {why_unread(error)}") from error


def _explain(error: msgspec.ValidationError, values: Mapping[str, object], origins: Mapping[str, str]) -> str:
    """In our words where ours were raised and arrive wrapped; else what is wrong with the value, and where it stands."""
    if error.__cause__ is not None:
        return str(error.__cause__)
    what, place = str(error).partition(" - at `$")[0], place_of(error)
    key = place.partition(".")[0].partition("[")[0]
    if key not in origins:
        return str(error)
    if (told := explain(error, Settings, values)) is not None:
        return f"{origins[key].replace(key, place, 1)} {told}"
    shown = f" is {values[key]!r}" if isinstance(values[key], str | int | float) else f" (at {place})"
    wanted = _WORDS.get(what.partition("`")[2].partition("`")[0])
    return f"{origins[key]}{shown}; it must be {wanted}" if wanted else f"{origins[key]}{shown}: {what[0].lower()}{what[1:]}"
