"""What the limits' benchmark calls kept, from logs that are written out, and a short run of all of it."""

import re
from collections.abc import Sequence

import pytest
import typer
from typer.testing import CliRunner

from batcher.config import RateLimit
from batcher.core.admission.reservation import Subject
from benchmarks import limits, limits_cost
from benchmarks.limits_check import Worst, by_subject, fullest_by_instant, fullest_by_second, num_undercounted
from benchmarks.limits_gateway import Admission

ANN = Subject("key:ann", RateLimit(2, 100))
BEN = Subject("key:ben", RateLimit(None, 50))
TIER = Subject("tier:free", RateLimit(3, None))


def admission(
    at: int, tokens: int = 10, *, key: int = 0, requests: int = 1, called: float = 0.0, told: float = 0.0
) -> Admission:
    return Admission(key, called, told, at, requests, tokens)


def test_each_admission_is_each_of_its_subjects() -> None:
    log = [admission(1), admission(2, key=1), admission(3)]
    assert by_subject(log, [(ANN, TIER), (BEN,)]) == {ANN: [log[0], log[2]], TIER: [log[0], log[2]], BEN: [log[1]]}


@pytest.mark.parametrize(("seconds", "most"), [((100, 130, 160), 2), ((100, 130, 159), 3), ((100, 100, 100), 3), ((), 0)])
def test_the_fullest_minute_by_seconds(seconds: Sequence[int], most: int) -> None:
    """60 seconds in a row, from the begin of the first to the end of the last: what is in them is less than a minute apart."""
    requests, tokens = fullest_by_second(ANN, [admission(at) for at in seconds])
    assert (requests.most, requests.over) == (most, max(0, most - 2))
    assert (tokens.most, tokens.over) == (10 * most, 0)


def test_what_was_given_back_is_not_counted() -> None:
    requests, tokens = fullest_by_second(ANN, [admission(100, 100), admission(100, 0, requests=0), admission(101, 1)])
    assert (requests, tokens) == (Worst("key:ann", 2, 2), Worst("key:ann", 101, 100))
    assert fullest_by_second(BEN, [admission(100, 60)]) == [Worst("key:ben", 60, 50)]


@pytest.mark.parametrize(
    ("spans", "most"),
    [
        # The third is told within a minute of the first one's call.
        (((10.0, 10.1), (40.0, 40.1), (69.0, 69.9)), 3),
        # It may have happened just a minute after it.
        (((10.0, 10.1), (40.0, 40.1), (69.0, 70.0)), 2),
        (((10.0, 10.1), (70.0, 70.1), (130.0, 130.1)), 1),
        ((), 0),
    ],
)
def test_the_fullest_minute_by_instants(spans: Sequence[tuple[float, float]], most: int) -> None:
    requests, tokens = fullest_by_instant(ANN, [admission(0, called=called, told=told) for called, told in spans])
    assert (requests.most, tokens.most) == (most, 10 * most)


def test_what_redis_forgot() -> None:
    log = [admission(100), admission(101), admission(101)]
    counted = {"requests": 3, "tokens": 30, "oldest": 100, "last": 101_500_000, "r100": 1, "t100": 10, "r101": 2, "t101": 20}
    counted |= {"l100": 100_000_001, "l101": 101_500_000}
    assert num_undercounted(ANN, log, counted) == 0
    assert num_undercounted(ANN, log, counted | {"r101": 1}) == 1
    assert num_undercounted(ANN, log, counted | {"t101": 15}) == 5
    assert num_undercounted(TIER, log, counted | {"t101": 15}) == 0, "it has no limit of tokens"
    # Given back to the second before its own: counted for longer.
    assert num_undercounted(ANN, log, counted | {"r100": 0, "r101": 3}) == 0
    assert num_undercounted(ANN, log, counted | {"r100": 2, "r101": 1}) == 1
    assert num_undercounted(ANN, log, {}) == 0, "all of it is too old to count"


def test_two_gateways_and_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_cost, "NUM_REQUESTS", 200)
    app = typer.Typer()
    app.command()(limits.main)
    result = CliRunner().invoke(app, ["--seconds", "2", "--gateways", "2"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    for mode in ("shared", "lease"):
        assert re.search(rf"^{mode} .* yes$", result.output, re.MULTILINE), result.output
    assert "64 at a time" in result.output
