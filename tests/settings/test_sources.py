"""Where settings come from: one name for each in the file, the environment and the flags; no other name is taken."""

from pathlib import Path
from typing import Any

import pytest

from batcher.errors import ConfigError
from batcher.settings import Settings, load_settings
from tests.settings.examples import COMPANIONS, NAMES, example, toml, write

# Three ways, one meaning (B17)


@pytest.mark.parametrize("name", NAMES)
def test_a_setting_means_the_same_by_each_way(tmp_path: Path, name: str) -> None:
    value = example(name)
    others = COMPANIONS.get(name, {})
    by_flag = load_settings(flags={name: value, **others})
    assert getattr(by_flag, name) == value
    assert load_settings(environment={f"BATCHER_{name.upper()}": str(value)}, flags=others) == by_flag
    assert load_settings(file=write(tmp_path, toml(name, value)), flags=others) == by_flag
    assert load_settings(file=write(tmp_path, toml(name.replace("_", "-"), value)), flags=others) == by_flag


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "workers = 3\nmax-batch-size = 3\nport = 3\n")
    environment = {"BATCHER_WORKERS": "2", "BATCHER_MAX_BATCH_SIZE": "2", "PATH": "/bin", "BATCH": "1"}
    settings = load_settings(file=file, environment=environment, flags={"workers": 1})
    assert (settings.workers, settings.max_batch_size, settings.port) == (1, 2, 3)
    assert settings == Settings(workers=1, max_batch_size=2, port=3)


def test_the_variable_that_names_the_file_is_no_setting() -> None:
    assert load_settings(environment={"BATCHER_CONFIG": "batcher.toml"}) == Settings()
    with pytest.raises(ConfigError, match="config"):
        load_settings(flags={"config": "batcher.toml"})


def test_what_kubernetes_tells_of_a_service_of_our_name_is_no_setting() -> None:
    told = {
        "BATCHER_SERVICE_HOST": "10.96.3.4",
        "BATCHER_SERVICE_PORT": "8000",
        "BATCHER_SERVICE_PORT_HTTP": "8000",
        "BATCHER_PORT": "tcp://10.96.3.4:8000",
        "BATCHER_PORT_8000_TCP": "tcp://10.96.3.4:8000",
        "BATCHER_PORT_8000_TCP_ADDR": "10.96.3.4",
        "BATCHER_PORT_8000_TCP_PORT": "8000",
        "BATCHER_PORT_8000_TCP_PROTO": "tcp",
        "BATCHER_REDIS_SERVICE_HOST": "10.96.3.5",
        "BATCHER_REDIS_PORT": "tcp://10.96.3.5:6379",
        "BATCHER_REDIS_PORT_6379_TCP_ADDR": "10.96.3.5",
    }
    assert load_settings(environment=told) == Settings()
    assert load_settings(environment={**told, "BATCHER_PORT": "8001"}) == Settings(port=8001)


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
        {"file": write(tmp_path, f'"{name}" = 1\n')},
    ]
    for way in ways:
        with pytest.raises(ConfigError, match=f"(?i){name}"):
            load_settings(**way)


def test_an_unknown_key_of_a_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="budget"):
        load_settings(file=write(tmp_path, '[[tiers]]\nname = "paid"\nbudget = 1\n'))
    with pytest.raises(ConfigError, match="key"):
        load_settings(file=write(tmp_path, '[[keys]]\ntenant = "a"\ntier = "paid"\nkey = "sk-live"\n'))
