"""Where settings come from: a TOML file, the environment and flags, the later ones winning, all of one set of keys.

`Settings` is flat, since a flag, a variable and a key of the file are one name (`--max-batch-size`, `BATCHER_MAX_BATCH_SIZE`,
`max_batch_size`); components get the slices of `batcher.config`. A key that nobody knows is refused wherever it stands: a
misspelt setting must not be ignored in one place and obeyed in another.
"""

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from batcher.config import (
    DEFAULT_TIERS,
    DispatchConfig,
    HttpConfig,
    Isolation,
    KeyConfig,
    PolicyName,
    TierConfig,
    check_tiers,
)
from batcher.errors import ConfigError

_PREFIX = "BATCHER_"
CONFIG_VARIABLE = f"{_PREFIX}CONFIG"
"""Names the file; the one variable that is no setting."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything `batcher serve` can be told. Times are in seconds; what each means stands in `batcher.config`."""

    mode: str = "batch"
    backend: str = "simulated"
    workers: int = 16
    isolation: Isolation = Isolation.INLINE
    policy: PolicyName = PolicyName.PACED
    max_batch_size: int = 50
    batch_timeout: float = 0.15
    service_time: float = 0.2
    host: str = "127.0.0.1"
    port: int = 8000
    request_timeout: float = 10.0
    drain_deadline: float = 30.0
    max_body_bytes: int = 1_000_000
    body_timeout: float = 10.0
    keep_alive: float = 75.0
    max_connections: int = 20_000
    max_waiting: int = 20_000
    max_waiting_bytes: int = 64 * 2**20
    max_attempts: int = 3
    hang_factor: float = 1.3
    first_batch_timeout: float = 30.0
    start_timeout: float = 120.0
    retry_ratio: float = 0.2
    retry_reserve: int = 100
    restart_backoff: float = 0.1
    breaker_threshold: int = 5
    breaker_rest: float = 30.0
    simulated_jitter: float = 0.0
    simulated_poison: str | None = None
    simulated_raise_rate: float = 0.0
    simulated_hang_rate: float = 0.0
    simulated_die_rate: float = 0.0
    simulated_seed: int = 0
    log_level: str = "info"
    tiers: tuple[TierConfig, ...] = DEFAULT_TIERS
    keys: tuple[KeyConfig, ...] = ()
    """None means the two development keys, and then only a loopback host."""

    def __post_init__(self) -> None:
        if self.mode != "batch":
            raise ConfigError(f"mode is {self.mode!r}; it must be 'batch'")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ConfigError(f"log_level is {self.log_level!r}; it must be debug, info, warning or error")
        check_tiers(self.tiers)
        self.dispatch()
        http = self.http()
        if not self.keys and not http.is_loopback:
            raise ConfigError(
                f"host is {self.host!r} and no keys are configured: the development keys are known to everybody. "
                "Configure keys in the file, or serve on 127.0.0.1"
            )
        self._check_simulated()
        if self.max_waiting_bytes < 2 * self.max_body_bytes:
            raise ConfigError(
                f"max_waiting_bytes is {self.max_waiting_bytes}; it must be at least twice max_body_bytes "
                f"({self.max_body_bytes}): a tenant may fill half of the queue, and the largest body must fit in that"
            )
        for key in self.keys:
            if key.tier not in self.dispatch().tiers:
                raise ConfigError(f"the key of {key.tenant!r} names the tier {key.tier!r}, which is not configured")

    def _check_simulated(self) -> None:
        if self.backend == "simulated":
            return
        for field in msgspec.structs.fields(self):
            if field.name.startswith("simulated_") and getattr(self, field.name) != field.default:
                raise ConfigError(f"{field.name} is for the simulated backend only, and the backend is {self.backend!r}")

    def dispatch(self) -> DispatchConfig:
        return DispatchConfig(
            num_workers=self.workers,
            tiers=tuple(tier.name for tier in self.tiers),
            policy=self.policy,
            max_batch_size=self.max_batch_size,
            batch_timeout_s=self.batch_timeout,
            service_time_s=self.service_time,
            max_waiting=self.max_waiting,
            max_waiting_bytes=self.max_waiting_bytes,
            max_attempts=self.max_attempts,
            hang_factor=self.hang_factor,
            first_batch_timeout_s=self.first_batch_timeout,
            start_timeout_s=self.start_timeout,
            retry_ratio=self.retry_ratio,
            retry_reserve=self.retry_reserve,
            restart_backoff_s=self.restart_backoff,
            breaker_threshold=self.breaker_threshold,
            breaker_rest_s=self.breaker_rest,
        )

    def http(self) -> HttpConfig:
        return HttpConfig(
            host=self.host,
            port=self.port,
            max_body_bytes=self.max_body_bytes,
            body_timeout_s=self.body_timeout,
            keep_alive_s=self.keep_alive,
            max_connections=self.max_connections,
            request_timeout_s=self.request_timeout,
            drain_deadline_s=self.drain_deadline,
        )

    def backend_settings(self) -> dict[str, object] | None:
        """What the backend is told; only the simulated one takes any."""
        if self.backend != "simulated":
            return None
        return {
            "service_time_s": self.service_time,
            "jitter": self.simulated_jitter,
            "poison_prefix": self.simulated_poison,
            "raise_rate": self.simulated_raise_rate,
            "hang_rate": self.simulated_hang_rate,
            "die_rate": self.simulated_die_rate,
            "seed": self.simulated_seed,
        }


def load_settings(
    *, file: Path | None = None, environment: Mapping[str, str] | None = None, flags: Mapping[str, object] | None = None
) -> Settings:
    """Merges file, environment and flags, the later winning. Raises ConfigError for anything that cannot work."""
    merged: dict[str, object] = {}
    origins: dict[str, str] = {}
    given = [(key, value, f"{key} in {file}") for key, value in (_read(file) if file is not None else {}).items()]
    for name, text in (environment or {}).items():
        if name.startswith(_PREFIX) and name != CONFIG_VARIABLE:
            given.append((name.removeprefix(_PREFIX).lower(), text, name))
    given += [(key, value, "--" + key.replace("_", "-")) for key, value in (flags or {}).items()]
    for key, value, origin in given:
        _require_known(key, origin)
        merged[key], origins[key] = value, origin
    try:
        # Not strict: the environment has only strings.
        return msgspec.convert(merged, Settings, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(error, merged, origins)) from error


_WORDS = {"int": "a whole number", "float": "a number", "str": "text", "array": "a list", "object": "a table"}
"""What msgspec's names of types mean to somebody who writes a file."""


def _require_known(key: str, origin: str) -> None:
    if key in Settings.__struct_fields__:
        return
    near = difflib.get_close_matches(key, Settings.__struct_fields__, n=1)
    raise ConfigError(f"{origin}: there is no such setting" + (f"; did you mean {near[0]}?" if near else ""))


def _read(file: Path) -> dict[str, object]:
    try:
        with file.open("rb") as stream:
            return {key.replace("-", "_"): value for key, value in tomllib.load(stream).items()}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration file {file}: {error}") from error


def _explain(error: msgspec.ValidationError, values: Mapping[str, object], origins: Mapping[str, str]) -> str:
    """In our words where ours were raised and arrive wrapped; else what is wrong with the value, and where it stands."""
    if error.__cause__ is not None:
        return str(error.__cause__)
    what, _, path = str(error).partition(" - at `$.")
    key = path.rstrip("`").partition(".")[0].partition("[")[0]
    if key not in origins:
        return str(error)
    shown = f" is {values[key]!r}" if isinstance(values[key], str | int | float) else f" (at {path.rstrip('`')})"
    wanted = _WORDS.get(what.partition("`")[2].partition("`")[0])
    return f"{origins[key]}{shown}; it must be {wanted}" if wanted else f"{origins[key]}{shown}: {what[0].lower()}{what[1:]}"
