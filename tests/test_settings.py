"""Where settings come from: one name for each in the file, the environment and the flags; what is not understood is refused."""

import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from batcher.config import (
    DEFAULT_TIERS,
    Device,
    Dtype,
    Isolation,
    KeyConfig,
    KvMode,
    Mode,
    PolicyName,
    ReplicaConfig,
    ReplicaPolicy,
    Switch,
    TierConfig,
)
from batcher.errors import ConfigError
from batcher.settings import Settings, load_settings

EXAMPLES: dict[str, Any] = {
    "mode": Mode.CONTINUOUS,
    "backend": "examples.embedding:Embedding",
    "isolation": Isolation.PROCESS,
    "policy": PolicyName.STATIC,
    "host": "localhost",
    "simulated_poison": "BOOM",
    "log_level": "debug",
    "max_batch_size": 7,
    "max_waiting": 300,
    "model": "simulated",
    "dtype": Dtype.FLOAT32,
    "device": Device.CUDA,
    "replicas": 1,
    "kv": KvMode.CONTIGUOUS,
    "prefix_cache": Switch.OFF,
    "kv_blocks": 100,
    "kv_memory": 0.5,
    "max_model_len": 1000,
    "simulated_answer": "repeat",
}
"""A value of a setting. Other numbers get one more than their default, or its double."""

CONTINUOUS = {"mode": "continuous"}
COMPANIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("model", "dtype", "device", "replicas", "kv", "prefill_chunk", "prefix_cache"), CONTINUOUS),
    **dict.fromkeys(("max_num_seqs", "kv_blocks", "kv_memory", "max_model_len"), CONTINUOUS),
    "simulated_time_scale": {**CONTINUOUS, "model": "simulated"},
    "simulated_answer": {**CONTINUOUS, "model": "simulated"},
}
"""What must be set for another setting to have an effect."""

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
    others = COMPANIONS.get(name, {})
    by_flag = load_settings(flags={name: value, **others})
    assert getattr(by_flag, name) == value
    assert load_settings(environment={f"BATCHER_{name.upper()}": str(value)}, flags=others) == by_flag
    assert load_settings(file=_write(tmp_path, _toml(name, value)), flags=others) == by_flag
    assert load_settings(file=_write(tmp_path, _toml(name.replace("_", "-"), value)), flags=others) == by_flag


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
        load_settings(environment={f"BATCHER_{name.upper()}": value}, flags=COMPANIONS.get(name, {}))
    message = str(raised.value)
    assert "\n" not in message
    assert name in message.lower()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mode": "fast"}, "mode is 'fast'"),
        ({"workers": 0}, "workers is 0; it must be from 1 to 1024"),
        ({"workers": 100_000}, "workers is 100000"),
        ({"workers": 1.5}, "workers"),
        ({"workers": True}, "workers"),
        ({"max_batch_size": 0}, "max_batch_size is 0; it must be from 1 to 50"),
        ({"max_batch_size": 51}, "max_batch_size is 51"),
        ({"batch_timeout": -0.1}, "batch_timeout is -0.1"),
        ({"service_time": 0.0}, "service_time is 0.0"),
        ({"port": 65_536}, "port is 65536"),
        ({"policy": "fast"}, "in batch mode it must be one of paced"),
        ({"policy": "continuous"}, "policy is 'continuous'"),
        ({"policy": "paced", **CONTINUOUS}, "in continuous mode it must be one of continuous, static, single"),
        ({"replicas": 2, **CONTINUOUS}, "one replica for now"),
        ({"kv_blocks": 1, **CONTINUOUS}, "kv_blocks is 1"),
        ({"kv_blocks": 10, "kv_memory": 1, **CONTINUOUS}, "give one of them"),
        ({"kv_memory": 0, **CONTINUOUS}, "kv_memory is 0"),
        ({"kv_blocks": 10, "max_model_len": 161, **CONTINUOUS}, "10 KV blocks, which hold 160 tokens"),
        ({"prefill_chunk": 8, **CONTINUOUS}, "prefill_chunk is 8"),
        ({"prefix_cache": "maybe", **CONTINUOUS}, "prefix-cache is 'maybe'"),
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


# Which mode a setting is for


@pytest.mark.parametrize("name", [name for name in NAMES if name in COMPANIONS and name != "replicas"])
def test_a_setting_of_continuous_mode_is_refused_in_batch_mode(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is for .*; the mode is batch, and the backend is 'simulated'"):
        load_settings(flags={name: _example(name)})


@pytest.mark.parametrize(
    "name",
    ["backend", "workers", "isolation", "max_batch_size", "batch_timeout", "service_time", "retry_ratio", "start_timeout"],
)
def test_a_setting_of_batch_mode_is_refused_in_continuous_mode(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is for batch mode only; the mode is continuous"):
        load_settings(flags={name: _example(name), **CONTINUOUS})


def test_what_simulates_one_thing_is_refused_for_another() -> None:
    for flags in (
        {"simulated_jitter": 0.1, **CONTINUOUS, "model": "simulated"},
        {"simulated_jitter": 0.1, "backend": "m:a"},
        {"simulated_time_scale": 0.1, **CONTINUOUS, "model": "smollm2"},
        {"simulated_time_scale": 0.1, "backend": "generate", "model": "smollm2"},
    ):
        with pytest.raises(ConfigError, match="simulated_"):
            load_settings(flags=flags)
    assert load_settings(flags={"backend": "generate", "model": "simulated", "simulated_time_scale": 0.1}).workers == 1


def test_generating_in_batches_has_times_of_its_own_unless_they_are_given() -> None:
    settings = load_settings(flags={"backend": "generate", "request_timeout": 5})
    assert (settings.workers, settings.service_time, settings.request_timeout) == (1, 10.0, 5.0)


# Slices


MODEL = {"context_len": 8192, "kv_bytes_per_token": 1024, "kv_bytes": 64 * 2**20}


def test_a_replica_is_sized_by_its_model_unless_it_is_told() -> None:
    by_itself = Settings(mode=Mode.CONTINUOUS).replica(**MODEL)
    assert by_itself == ReplicaConfig(num_blocks=4096, max_model_len=8192)
    assert by_itself.tiers == tuple(tier.name for tier in DEFAULT_TIERS)
    told = Settings(
        mode=Mode.CONTINUOUS, policy="static", kv=KvMode.CONTIGUOUS, kv_memory=0.03125, max_model_len=100, max_waiting=3,
        prefix_cache=Switch.OFF, prefill_chunk=64, max_num_seqs=2,
    ).replica(**MODEL)  # fmt: skip
    assert (told.policy, told.kv, told.num_blocks, told.max_model_len) == (ReplicaPolicy.STATIC, KvMode.CONTIGUOUS, 2048, 100)
    assert (told.max_waiting, told.has_prefix_cache, told.prefill_chunk, told.max_num_seqs) == (3, False, 64, 2)


def test_no_request_is_let_in_that_the_blocks_could_not_hold() -> None:
    assert Settings(mode=Mode.CONTINUOUS, kv_blocks=10).replica(**MODEL).max_model_len == 160
    with pytest.raises(ConfigError, match="model's context of 8192 tokens"):
        Settings(mode=Mode.CONTINUOUS, max_model_len=8193).replica(**MODEL)
    with pytest.raises(ConfigError, match="kv_blocks is 0"):
        Settings(mode=Mode.CONTINUOUS, kv_memory=1e-6).replica(**MODEL)


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
