"""The keys that a service starts with: its settings', its file's, or none but the development keys."""

from pathlib import Path
from typing import Any

import pytest

from batcher.config import Mode
from batcher.errors import ConfigError
from batcher.keys.file import change_keys
from batcher.service.keys_file import KeySource
from batcher.settings import Settings
from tests.service.keyed import configured, key, put


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """With ada's key and bob's."""
    file = tmp_path / "keys.toml"
    change_keys(file, put(key("ada"), key("bob")), creates=True)
    return file


def start(**settings: Any) -> KeySource:
    loaded = Settings(**settings)
    return KeySource(configured=loaded.keys, file=loaded.keys_file, tiers=loaded.tiers_in_force)


def test_keys_of_the_settings_and_of_the_file_are_all_keys(file: Path) -> None:
    keys = start(keys=(configured("eve"),), keys_file=file).keys
    assert [keys.find(f"sk-{tenant}".encode()).tenant for tenant in ("ada", "bob", "eve")] == ["ada", "bob", "eve"]


def test_a_key_in_both_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="configured twice"):
        start(keys=(configured("ada"),), keys_file=file)


def test_a_file_without_a_key_is_refused_with_what_makes_one(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"`batcher keys create --file {file} --tenant NAME --tier TIER` makes one"):
            start(keys_file=file)
        file.write_text("keys = []\n")
    assert start(keys_file=file, keys=(configured("ada"),)).keys.find(b"sk-ada").tenant == "ada"


def test_a_tier_that_is_not_there_is_refused(file: Path) -> None:
    change_keys(file, put(key("ada", "gold")))
    with pytest.raises(ConfigError, match="names the tier 'gold'"):
        start(keys_file=file, mode=Mode.CONTINUOUS)
