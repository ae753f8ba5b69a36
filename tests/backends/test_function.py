"""MODULE:ATTR: what is accepted, how a class is constructed, and that each mistake is told by name."""

import sys
from pathlib import Path

import pytest

from backends.function import resolve
from batcher.errors import ConfigError

ODD = "tests.backends.odd"


@pytest.mark.parametrize(
    ("attribute", "output"),
    [
        ("WithIndex", "small 3"),
        ("WithOnePositional", "device 3"),
        ("WithDefaults", "large"),
        ("Static", "x"),
        ("AnyHooks", "x"),
        ("Nested.Inner", "x"),
        ("a_callable", "x"),
        ("a_lambda", "x"),
        ("an_instance.run_batch", "x"),
        ("takes_more_by_default", "x"),
    ],
)
def test_what_can_be_called_as_a_backend_is_one(attribute: str, output: str) -> None:
    make = resolve(f"{ODD}:{attribute}")
    assert make(3).run_batch(["x"]) == [output]


def test_each_worker_has_an_instance_of_its_own() -> None:
    make = resolve(f"{ODD}:Static")
    assert make(0) is not make(0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tests.backends.missing:run_batch", r"no module 'tests\.backends\.missing'"),
        ("missing.module:run_batch", "no module 'missing'"),
        (f"{ODD}:missing", "no attribute 'missing'"),
        (f"{ODD}:Nested.missing", "no attribute 'Nested.missing'"),
        (f"{ODD}:a_number", "neither a function nor a class"),
        (f"{ODD}:an_instance", "name its class"),
        (f"{ODD}:takes_nothing", "too many positional arguments"),
        (f"{ODD}:takes_two", "temperature"),
        (f"{ODD}:WithoutRunBatch", "without a method run_batch"),
        (f"{ODD}:RunBatchWithTwo", "temperature"),
        (f"{ODD}:WithTwo", "wants index, model"),
        (f"{ODD}:LoadIsNoMethod", "load is not a method"),
        (f"{ODD}:LoadWantsPath", r"cannot be called as load\(\): missing a required argument: 'path'"),
        (f"{ODD}:StaticLoadWantsPath", r"cannot be called as load\(\): missing a required argument: 'path'"),
        (f"{ODD}:CloseWantsReason", r"cannot be called as close\(\): missing a required argument: 'reason'"),
        ("run_batch", "no name like"),
        ("a:", "no name like"),
        (":a", "no name like"),
        ("a/b.py:run_batch", "no name like"),
        ("a:b:c", "no name like"),
        ("", "no name like"),
    ],
)
def test_a_mistake_is_told_by_name(name: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        resolve(name)
    assert repr(name) in str(raised.value)


def test_the_current_directory_can_be_imported_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backend_of_a_user.py").write_text("def run_batch(inputs):\n    return [text.upper() for text in inputs]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert resolve("backend_of_a_user:run_batch")(0).run_batch(["x"]) == ["X"]


def test_what_a_module_fails_to_import_is_not_called_missing_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backend_that_lacks_something.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    words = (
        r"backend 'backend_that_lacks_something:run_batch': no module named 'no_such_dependency' \(is its extra installed\?\)"
    )
    with pytest.raises(ConfigError, match=words):
        resolve("backend_that_lacks_something:run_batch")


def test_a_name_that_a_module_cannot_import_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "backend_that_lacks_a_name.py").write_text("from json import no_such_name\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="cannot import name 'no_such_name' from 'json'"):
        resolve("backend_that_lacks_a_name:run_batch")
