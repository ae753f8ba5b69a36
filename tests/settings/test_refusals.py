"""Values that cannot work are refused before anything starts, in one line that names the setting."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from batcher.errors import ConfigError
from batcher.settings import load_settings
from tests.settings.examples import COMPANIONS, CONTINUOUS, NAMES, example, write

NUMBERS = [name for name in NAMES if not isinstance(example(name), str | Path) and not name.startswith("simulated_")]


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
        ({"mode": "fast"}, "mode is 'fast'; it must be batch or continuous"),
        ({"token_estimate": "some"}, "token-estimate is 'some'; it must be max_tokens, expected or exact"),
        ({"limit_mode": "lease"}, "limit_mode is 'lease'; it must be shared without redis"),
        ({"redis": "foo"}, "redis is 'foo'; it must be redis://HOST"),
        (
            {"redis": "redis://cache/prod"},
            "redis is 'redis://cache/prod'; it must be redis://HOST:PORT/DB or rediss://..., with",
        ),
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
        ({"replicas": 2, **CONTINUOUS}, "one process serves one replica"),
        ({"kv_blocks": 1, **CONTINUOUS}, "kv_blocks is 1; it must be from 2 to 2147483647 blocks"),
        ({"kv_blocks": 10, "kv_memory": 1, **CONTINUOUS}, "give one of them"),
        ({"kv_memory": 0, **CONTINUOUS}, "kv_memory is 0"),
        ({"kv_memory": 1e-7, **CONTINUOUS}, "kv_memory is 1e-07; it must be from 0.000001 to 65536 GiB"),
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
        ({"tiers": {"name": "paid"}}, "tiers is one table; write [[tiers]], with two brackets"),
        (
            {"tiers": [{"name": "a"}, {"name": "b", "wait_budget": 1}]},
            "tiers[1] has no setting 'wait_budget'; did you mean wait_budget_s?",
        ),
        ({"keys": [{"tenant": "a", "tear": "paid"}]}, "keys[0] has no setting 'tear'; did you mean tier?"),
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
        write(tmp_path, "workers = \n"),
        write(tmp_path, "workers = 1\n" * 2),
    ):
        with pytest.raises(ConfigError, match=r"cannot read the configuration file .*/") as raised:
            load_settings(file=file)
        assert str(raised.value).count(str(file)) == 1


@pytest.mark.parametrize("url", ["http://:hunter2@localhost", "localhost?password=hunter2", "ann:hunter2@localhost"])
def test_an_address_of_redis_with_a_password_is_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match=r"redis is .*; it must be redis://HOST") as raised:
        load_settings(flags={"redis": url})
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("name", ["workers", "mode", "tiers", "host", "redis"])
def test_bytes_that_are_no_text_are_refused_by_their_name(name: str) -> None:
    value = os.fsdecode(b"redis://\xff")
    with pytest.raises(ConfigError, match=f"BATCHER_{name.upper()} is 'redis://.udcff'; it must be text in UTF-8"):
        load_settings(environment={f"BATCHER_{name.upper()}": value})
    with pytest.raises(ConfigError, match=f"--{name} is .*; it must be text in UTF-8"):
        load_settings(flags={name: value})


@pytest.mark.parametrize("name", ["keys_file", "safety_rules", "usage_dir"])
@pytest.mark.parametrize("value", ["", "a\0b"], ids=["empty", "nul"])
def test_a_path_that_is_none_is_refused_wherever_it_stands(tmp_path: Path, name: str, value: str) -> None:
    """Empty it would be the current folder, and a log would be kept there."""
    ways: list[dict[str, Any]] = [
        {"flags": {name: value}},
        {"environment": {f"BATCHER_{name.upper()}": value}},
        {"file": write(tmp_path, f"{name} = {json.dumps(value)}\n")},
    ]
    for way in ways:
        with pytest.raises(ConfigError) as raised:
            load_settings(**way)
        assert str(raised.value).endswith(f" is {value!r}; it must be a path")
        assert name in str(raised.value).lower().replace("-", "_")


def test_a_file_s_name_may_be_any_bytes() -> None:
    name = os.fsdecode(b"usage-\xff")
    assert load_settings(environment={"BATCHER_USAGE_DIR": name}).usage_dir == Path(name)
