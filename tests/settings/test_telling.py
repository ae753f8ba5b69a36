"""What the help says of each setting is what is so."""

import pytest

from batcher.config import Mode
from batcher.settings.fields import Settings
from batcher.settings.modes import foreign
from batcher.settings.telling import Panel, default_of, panel_of
from tests.settings.examples import NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_has_a_panel_and_a_default_in_words(name: str) -> None:
    assert default_of(name) not in ("", "None")
    has_effect = {mode: name not in dict(foreign(mode, "simulated", "simulated")) for mode in Mode}
    expected = {
        Panel.BOTH: {Mode.BATCH: True, Mode.CONTINUOUS: True},
        Panel.FRONT: {Mode.BATCH: True, Mode.CONTINUOUS: True},
        Panel.BATCH: {Mode.BATCH: True, Mode.CONTINUOUS: False},
        Panel.CONTINUOUS: {Mode.BATCH: False, Mode.CONTINUOUS: True},
        Panel.SIMULATED_GPU: {Mode.BATCH: True, Mode.CONTINUOUS: False},
        Panel.SIMULATED_MODEL: {Mode.BATCH: False, Mode.CONTINUOUS: True},
    }
    assert has_effect == expected[panel_of(name)]


def test_a_default_is_the_settings_own() -> None:
    assert default_of("workers") == f"{Settings().workers}; for the backend generate 1"
    assert default_of("batch_timeout") == "0.15"
    assert default_of("max_body_bytes") == "1000000"
    assert default_of("prefix_cache") == "on"
    assert default_of("policy") == "paced in batch mode, continuous in continuous mode"
