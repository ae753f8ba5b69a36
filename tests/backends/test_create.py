"""The table of backends: what is accepted, what is refused at start, and what is imported for it."""

import subprocess
import sys
from typing import Any

import pytest

import backends
from backends.inline import InlineBackend
from backends.process import ProcessBackend
from backends.simulated import SimulatedBackend, SimulatedSettings
from batcher.config import Isolation
from batcher.errors import ConfigError
from tests.backends.hosting import FAULTY, ROOT, START_TIMEOUT_S


@pytest.mark.parametrize(
    ("name", "isolation", "expected"),
    [
        ("simulated", "inline", SimulatedBackend),
        ("simulated", "process", ProcessBackend),
        ("generate", "inline", InlineBackend),
        ("generate", "process", ProcessBackend),
        (FAULTY, "inline", InlineBackend),
        (FAULTY, "process", ProcessBackend),
    ],
)
def test_makes_a_fresh_backend_for_each_start(name: str, isolation: str, expected: type) -> None:
    make = backends.create(name, isolation=isolation, start_timeout_s=START_TIMEOUT_S)
    first, second = make(0), make(0)
    assert first is not second
    assert isinstance(first, expected)


def test_settings_may_be_a_struct_or_a_mapping() -> None:
    settings = SimulatedSettings(service_time_s=0.3, seed=7)
    for given in (settings, {"service_time_s": 0.3, "seed": 7}):
        for isolation in Isolation:
            make = backends.create("simulated", isolation=isolation, settings=given, start_timeout_s=START_TIMEOUT_S)
            assert make(0).last_run_s is None


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"name": "generat"}, "'simulated', 'generate' or a name like"),
        ({"name": "generate", "settings": {"modell": "smollm2"}}, "modell"),
        ({"name": "generate", "settings": {"dtype": "int8"}}, "int8"),
        ({"name": "simulated", "isolation": "ray"}, "inline, process, not 'ray'"),
        ({"name": "simulated", "settings": {"service_time": 1}}, "service_time"),
        ({"name": "simulated", "settings": {"service_time_s": "1"}}, "service_time_s"),
        ({"name": FAULTY, "settings": {"seed": 1}}, "takes no settings"),
        ({"name": "tests.backends.missing:f"}, "no module"),
        ({"name": "not a name:f", "isolation": "process"}, "no name like"),
        ({"name": "simulated", "isolation": "process", "start_timeout_s": 0}, "start_timeout_s"),
    ],
)
def test_what_cannot_work_is_refused_before_any_worker_starts(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        backends.create(**{"start_timeout_s": START_TIMEOUT_S, **arguments})


def test_imports_only_what_is_asked_for() -> None:
    create = "import sys, backends; backends.create('simulated', start_timeout_s=1)"
    code = f"{create}; print(*(name for name in sys.modules if 'backends' in name))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert set(done.stdout.split()) == {"backends", "backends.base", "backends.simulated"}
