"""A setting that has no effect in a mode is refused there."""

import pytest

from batcher.errors import ConfigError
from batcher.settings import load_settings
from tests.settings.examples import COMPANIONS, CONTINUOUS, example


@pytest.mark.parametrize("name", [name for name, others in COMPANIONS.items() if "mode" in others and name != "replicas"])
def test_a_setting_of_continuous_mode_is_refused_in_batch_mode(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is for .*; the mode is batch, and the backend is 'simulated'"):
        load_settings(flags={name: example(name)})


@pytest.mark.parametrize(
    "name",
    ["backend", "workers", "isolation", "max_batch_size", "batch_timeout", "service_time", "retry_ratio", "start_timeout"],
)
def test_a_setting_of_batch_mode_is_refused_in_continuous_mode(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is for batch mode only; the mode is continuous"):
        load_settings(flags={name: example(name), **CONTINUOUS})


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
