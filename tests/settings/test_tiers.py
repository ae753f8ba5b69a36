"""Tiers are configuration: all of a tier stands in the file, and one flag moves the wait budgets of all."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from batcher.config import DEFAULT_TIERS, Mode, TierConfig
from batcher.errors import ConfigError
from batcher.settings import Settings, load_settings
from tests.settings.examples import write

GOLD = TierConfig(
    "gold",
    wait_budget_s=0.3,
    start_budget_s=2.0,
    reserved_share=0.25,
    requests_per_minute=60,
    tokens_per_minute=6000,
    total_requests_per_minute=600,
    total_tokens_per_minute=60_000,
)


def test_all_of_a_tier_can_stand_in_the_file(tmp_path: Path) -> None:
    fields = "".join(
        f"{name} = {value!r}\n".replace("'", '"') for name, value in msgspec.to_builtins(GOLD).items() if value is not None
    )
    assert fields.count("=") == len(GOLD.__struct_fields__)
    settings = load_settings(file=write(tmp_path, f'[[tiers]]\n{fields}[[tiers]]\nname = "iron"\n'))
    assert settings.tiers == settings.tiers_in_force == (GOLD, TierConfig("iron"))


@pytest.mark.parametrize("field", ["requests_per_minute", "tokens_per_minute", "total_requests_per_minute", "reserved_share"])
def test_a_tier_that_cannot_be_is_refused_by_its_name(tmp_path: Path, field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} of tier gold is -1"):
        load_settings(file=write(tmp_path, f'[[tiers]]\nname = "gold"\n{field} = -1\n'))


def budgets(settings: Settings) -> list[tuple[float, float]]:
    return [(tier.wait_budget_s, tier.start_budget_s) for tier in settings.tiers_in_force]


def test_the_wait_budget_is_the_first_tiers_in_the_mode_at_hand_and_the_others_follow() -> None:
    assert budgets(Settings()) == [(0.2, 1.0), (0.15, 0.75)]
    assert budgets(Settings(wait_budget=0.4)) == [(0.4, 1.0), (pytest.approx(0.3), 0.75)]
    assert budgets(Settings(wait_budget=4, mode=Mode.CONTINUOUS)) == [(0.2, 4.0), (0.15, 3.0)]
    assert budgets(Settings(wait_budget=0)) == [(0.0, 1.0), (0.0, 0.75)]
    for mode in Mode:
        settings = Settings(mode=mode, wait_budget=7)
        assert settings.tiers == DEFAULT_TIERS
        assert settings.in_force()["tiers"] == settings.tiers_in_force != DEFAULT_TIERS


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"wait_budget": -0.1}, "wait_budget is -0.1; it must be from 0 to 3600 seconds"),
        ({"wait_budget": 3601}, "wait_budget is 3601.0"),
        ({"wait_budget": 1, "tiers": [{"name": "paid", "wait_budget_s": 0}]}, "the first one's, which is 0"),
        (
            {"wait_budget": 3600, "tiers": [{"name": "paid"}, {"name": "batch", "wait_budget_s": 3600}]},
            "wait_budget_s of tier batch",
        ),
    ],
)
def test_a_wait_budget_that_cannot_be_is_refused(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(flags=flags)
    assert words in str(raised.value)


def test_the_first_tiers_share_is_kept_for_it_in_slots_too() -> None:
    model = {"context_len": 8192, "kv_bytes_per_token": 1024, "kv_bytes": 64 * 2**20}
    settings = Settings(mode=Mode.CONTINUOUS, tiers=(GOLD, TierConfig("iron", reserved_share=0.5)))
    assert settings.replica(**model).reserved_slot_share == 0.25
    assert Settings(mode=Mode.CONTINUOUS).replica(**model).reserved_slot_share == 0.1
