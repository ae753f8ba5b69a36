"""The commands run to their end on the smallest models; the figures mean nothing here."""

import re
from collections.abc import Callable, Iterator

import pytest
import torch
import typer
from typer.testing import CliRunner

from benchmarks import engine, floor, skewed, stall

SIMULATED = ("--model", "simulated")
TINY = ("--random-llama", "tiny")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(main: Callable[..., None], *arguments: str, exit_code: int = 0) -> str:
    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result.output


def test_engine_beside_transformers_on_the_same_weights() -> None:
    output = run(engine.main, *TINY, "--at-a-time", "1,3", "--prompt", "20", "--output", "6", "--rounds", "2")
    for count in (1, 3):
        for name in engine.NAMES:
            assert re.search(rf"^ +{count}  {name} +[\d,]+ \(", output, re.MULTILINE), output


def test_engine_alone_needs_no_weights() -> None:
    output = run(engine.main, *SIMULATED, "--only", "ours", "--at-a-time", "2", "--output", "4", "--rounds", "1")
    assert "ours" in output
    assert "the simulated model has no weights" in run(engine.main, *SIMULATED, exit_code=2)


def test_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.device_rates._NUM_BYTES", {"cpu": 2**20})
    monkeypatch.setattr("benchmarks.device_rates._ROWS", {"cpu": (16,)})
    output = run(floor.main, *TINY, "--at-a-time", "1,2", "--output", "6", "--prefill", "40", "--rounds", "1")
    assert re.search(r"^2 +\d+ +[\d.]+ \(", output, re.MULTILINE), output
    assert "prefill, tokens" in output
    assert "no floor" in run(floor.main, *SIMULATED, exit_code=2)


def test_skewed() -> None:
    sizes = ("--requests", "12", "--at-a-time", "4", "--prompt", "20", "--long-output", "40", "--prefix", "64", "--rounds", "1")
    output = run(skewed.main, *SIMULATED, *sizes)
    for line in ("continuous over static", "paged over contiguous: running", "off over on: TTFT p50"):
        assert line in output, output


@pytest.mark.parametrize("model", [SIMULATED, TINY], ids=["simulated", "tiny"])
def test_stall(model: tuple[str, ...]) -> None:
    sizes = ("--streams", "2", "--prompt", "20", "--long-prompt", "100", "--prefill-chunk", "0,32", "--rounds", "1")
    output = run(stall.main, *model, *sizes)
    assert re.search(r"^whole ", output, re.MULTILINE), output
    assert re.search(r"^32 ", output, re.MULTILINE), output


@pytest.mark.parametrize(
    ("main", "arguments"),
    [
        (engine.main, ("--only", "theirs")),
        (engine.main, ("--at-a-time", "1,x")),
        (engine.main, ("--at-a-time", "0")),
        (engine.main, ("--model", "no-such-model")),
        (skewed.main, ("--only", "everything")),
        (stall.main, ("--prefill-chunk", "many")),
    ],
    ids=lambda value: value.__module__ if callable(value) else str(value),
)
def test_what_cannot_be_run_is_refused(main: Callable[..., None], arguments: tuple[str, ...]) -> None:
    run(main, *arguments, exit_code=2)
