"""Where settings come from: one name for each in the file, the environment and the flags; what is not understood is refused."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batcher.config import Isolation, KeyConfig, PolicyName, TierConfig
from batcher.errors import ConfigError
from batcher.settings import Settings, load_settings

EXAMPLES: dict[str, Any] = {
    "mode": "batch",
    "backend": "examples.embedding:Embedding",
    "isolation": Isolation.PROCESS,
    "policy": PolicyName.STATIC,
    "host": "localhost",
    "simulated_poison": "BOOM",
    "log_level": "debug",
    "max_batch_size": 7,
}
"""A value of a setting. Other numbers get one more than their default, or its double."""

STRUCTURED = ("tiers", "keys")
"""Tables of the file: no flag and no variable has them."""


def _example(name: str) -> Any:
    if name in EXAMPLES:
        return EXAMPLES[name]
    default = getattr(Settings(), name)
    return default + 1 if isinstance(default, int) else default * 2 or 0.25


NAMES = [name for name in Settings.__struct_fields__ if name not in STRUCTURED]


def _write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "batcher.toml"
    file.write_text(text)
    return file


def _toml(name: str, value: Any) -> str:
    return f"{name} = {value}\n" if isinstance(value, int | float) else f'{name} = "{value}"\n'


# Three ways, one meaning (B17)


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_means_the_same_by_each_way(tmp_path: Path, name: str) -> None:
    value = _example(name)
    by_flag = load_settings(flags={name: value})
    assert getattr(by_flag, name) == value
    assert load_settings(environment={f"BATCHER_{name.upper()}": str(value)}) == by_flag
    assert load_settings(file=_write(tmp_path, _toml(name, value))) == by_flag
    assert load_settings(file=_write(tmp_path, _toml(name.replace("_", "-"), value))) == by_flag


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = _write(tmp_path, "workers = 3\nmax-batch-size = 3\nport = 3\n")
    environment = {"BATCHER_WORKERS": "2", "BATCHER_MAX_BATCH_SIZE": "2", "PATH": "/bin", "BATCH": "1"}
    settings = load_settings(file=file, environment=environment, flags={"workers": 1})
    assert (settings.workers, settings.max_batch_size, settings.port) == (1, 2, 3)
    assert settings == Settings(workers=1, max_batch_size=2, port=3)


def test_the_variable_that_names_the_file_is_no_setting() -> None:
    assert load_settings(environment={"BATCHER_CONFIG": "batcher.toml"}) == Settings()
    with pytest.raises(ConfigError, match="config"):
        load_settings(flags={"config": "batcher.toml"})


def test_nothing_said_is_the_defaults() -> None:
    assert load_settings() == load_settings(environment={}, flags={}) == Settings()
    settings = Settings()
    assert (settings.workers, settings.backend, settings.host, settings.port) == (16, "simulated", "127.0.0.1", 8000)


# What is not understood


@pytest.mark.parametrize("name", ["worker", "max_batch", "ports", "", "workers "])
def test_an_unknown_name_is_refused_wherever_it_stands(tmp_path: Path, name: str) -> None:
    ways: list[dict[str, Any]] = [
        {"flags": {name: 1}},
        {"environment": {f"BATCHER_{name.upper()}": "1"}},
        {"file": _write(tmp_path, f'"{name}" = 1\n')},
    ]
    for way in ways:
        with pytest.raises(ConfigError, match=f"(?i){name}"):
            load_settings(**way)


def test_an_unknown_key_of_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="budget"):
        load_settings(file=_write(tmp_path, '[[tiers]]\nname = "paid"\nbudget = 1\n'))
    with pytest.raises(ConfigError, match="key"):
        load_settings(file=_write(tmp_path, '[[keys]]\ntenant = "a"\ntier = "paid"\nkey = "sk-live"\n'))


NUMBERS = [name for name in NAMES if not isinstance(_example(name), str) and not name.startswith("simulated_")]


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", ["", "many", "1s", "[]", "null", "nan", "inf", "-1", "1e400"])
def test_a_number_that_is_none_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(environment={f"BATCHER_{name.upper()}": value})
    message = str(raised.value)
    assert "\n" not in message
    assert name in message.lower()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mode": "continuous"}, "mode is 'continuous'"),
        ({"workers": 0}, "workers is 0; it must be from 1 to 1024"),
        ({"workers": 100_000}, "workers is 100000"),
        ({"workers": 1.5}, "workers"),
        ({"workers": True}, "workers"),
        ({"max_batch_size": 0}, "max_batch_size is 0; it must be from 1 to 50"),
        ({"max_batch_size": 51}, "max_batch_size is 51"),
        ({"batch_timeout": -0.1}, "batch_timeout is -0.1"),
        ({"service_time": 0.0}, "service_time is 0.0"),
        ({"port": 65_536}, "port is 65536"),
        ({"policy": "fast"}, "policy"),
        ({"isolation": "docker"}, "isolation"),
        ({"log_level": "loud"}, "log_level is 'loud'"),
        ({"log_level": "INFO"}, "log_level is 'INFO'"),
        ({"max_waiting": 0}, "max_waiting is 0"),
        ({"request_timeout": 0.0}, "request_timeout is 0"),
        ({"tiers": []}, "tiers"),
        ({"tiers": [{"name": "paid"}, {"name": "paid"}]}, "all different"),
        ({"tiers": [{"name": "Paid Tier"}]}, "tier name is 'Paid Tier'"),
        ({"tiers": [{"name": "paid", "wait_budget_s": -1}]}, "wait_budget_s of tier paid"),
        ({"keys": "sk-live"}, "keys"),
    ],
)
def test_a_value_that_cannot_work_is_refused_in_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(flags=values)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b'mode = "\xff"')
    for file in (
        tmp_path / "missing.toml",
        tmp_path,
        binary,
        _write(tmp_path, "workers = \n"),
        _write(tmp_path, "workers = 1\n" * 2),
    ):
        with pytest.raises(ConfigError, match=r"cannot read the configuration file .*/") as raised:
            load_settings(file=file)
        assert str(file) in str(raised.value)


# Who may listen to the world


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1"])
def test_development_keys_serve_this_machine(host: str) -> None:
    assert Settings(host=host).http().is_loopback


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "", "10.0.0.1", "example.com", "127.example.com", "127.0.0.1.example.com", "localhost.example.com"],
)
def test_another_host_needs_keys(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="keys") as raised:
        load_settings(flags={"host": host})
    assert repr(host) in str(raised.value)
    digest = hashlib.sha256(b"sk-live").hexdigest()
    file = _write(tmp_path, f'[[keys]]\ntenant = "ada"\ntier = "paid"\nsha256 = "{digest}"\n')
    assert load_settings(file=file, flags={"host": host}).keys == (KeyConfig("ada", "paid", digest),)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tier": "gold"}, "'ada' names the tier 'gold'"),
        ({"tenant": "a b"}, "tenant of a key"),
        ({"tenant": ""}, "tenant of a key"),
        ({"tenant": "x" * 65}, "tenant of a key"),
        ({"sha256": "sk-live"}, "sha256 of ada's key"),
        ({"sha256": "0" * 63}, "sha256 of ada's key"),
        ({"sha256": "0" * 64 + "\n"}, "sha256 of ada's key"),
        ({"sha256": "A" * 64}, "sha256 of ada's key"),
    ],
)
def test_a_key_that_cannot_work_is_refused(change: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_settings(flags={"keys": [{"tenant": "ada", "tier": "paid", "sha256": "0" * 64, **change}]})


def test_a_secret_written_where_its_digest_belongs_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(flags={"keys": [{"tenant": "ada", "tier": "paid", "sha256": "sk-live-secret"}]})
    assert "sk-live-secret" not in str(raised.value)


# Slices


def test_each_component_receives_its_slice() -> None:
    tiers = (TierConfig("gold", 0.3), TierConfig("iron", 0.1))
    settings = Settings(workers=3, tiers=tiers, request_timeout=2.0, simulated_poison="BOOM", simulated_jitter=0.1)
    assert (settings.dispatch().num_workers, settings.dispatch().tiers) == (3, ("gold", "iron"))
    assert settings.http().request_timeout_s == 2.0
    told = settings.backend_settings()
    assert told is not None
    assert (told["poison_prefix"], told["jitter"]) == ("BOOM", 0.1)
    assert Settings(backend="module:attribute").backend_settings() is None


def test_settings_cannot_be_changed_after_birth() -> None:
    with pytest.raises(AttributeError):
        Settings().workers = 3  # type: ignore[misc]
    assert msgspec.structs.replace(Settings(), workers=3).workers == 3
