"""Who may be served: keys that are known to everybody serve this machine only."""

import hashlib
from pathlib import Path

import pytest

from batcher.config import KeyConfig
from batcher.errors import ConfigError
from batcher.settings import Settings, load_settings
from tests.settings.examples import write


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
    file = write(tmp_path, f'[[keys]]\ntenant = "ada"\ntier = "paid"\nsha256 = "{digest}"\n')
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


def test_keys_of_a_file_serve_any_host() -> None:
    """Whether there is one in it is asked when the service is put together."""
    settings = load_settings(flags={"host": "0.0.0.0", "keys_file": "keys.toml"})
    assert settings.has_keys
    assert settings.keys_file == Path("keys.toml")


def test_a_key_that_is_there_twice_is_refused() -> None:
    keys = [{"tenant": tenant, "tier": "paid", "sha256": "0" * 64} for tenant in ("ada", "bob")]
    with pytest.raises(ConfigError, match="'key_000000000000' of 'bob' is configured twice"):
        load_settings(flags={"keys": keys})


@pytest.mark.parametrize("path", [3, "", [], True])
def test_a_path_that_is_none_is_refused_by_its_name(path: object) -> None:
    with pytest.raises(ConfigError, match=r"--keys-file.*; it must be a path|--keys-file"):
        load_settings(flags={"keys_file": path})


def test_a_secret_written_where_its_digest_belongs_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(flags={"keys": [{"tenant": "ada", "tier": "paid", "sha256": "sk-live-secret"}]})
    assert "sk-live-secret" not in str(raised.value)
