from random import Random
from statistics import fmean, median

import pytest

from batcher.errors import ConfigError
from batcher.sim.latency import Fixed, Jitter, Latency, Linear, LogNormal, parse_latency


def draws(latency: Latency, num: int = 4000, *, seed: int = 1) -> list[float]:
    rng = Random(seed)
    return [latency.draw(10, rng) for _ in range(num)]


def test_fixed_takes_the_same_whatever_the_size() -> None:
    assert {Fixed(0.2).draw(num, Random(1)) for num in (1, 7, 50)} == {0.2}


def test_jitter_stays_within_its_share_and_keeps_its_mean() -> None:
    times = draws(Jitter(0.2, 0.1))
    assert 0.18 <= min(times) < 0.181
    assert 0.219 < max(times) <= 0.22
    assert fmean(times) == pytest.approx(0.2, rel=0.01)


def test_lognormal_has_its_median_and_the_mean_that_it_tells() -> None:
    latency = LogNormal(0.2, 0.5)
    times = draws(latency)
    assert median(times) == pytest.approx(0.2, rel=0.03)
    assert fmean(times) == pytest.approx(latency.expected_s(10), rel=0.03)


def test_linear_pays_for_each_input() -> None:
    assert Linear(0.1, 0.002).draw(50, Random(1)) == pytest.approx(0.2)
    assert Linear(0.1, 0.002).expected_s(50) == pytest.approx(0.2)


@pytest.mark.parametrize("latency", [Jitter(0.2, 0.9), LogNormal(0.2, 3.0)])
def test_a_seed_draws_the_same_times_and_all_are_positive(latency: Latency) -> None:
    assert draws(latency, seed=7) == draws(latency, seed=7) != draws(latency, seed=8)
    assert min(draws(latency)) > 0.0


@pytest.mark.parametrize(
    ("spelling", "latency"),
    [
        ("0.2", Fixed(0.2)),
        ("jitter:0.2,0.1", Jitter(0.2, 0.1)),
        ("lognormal:0.2,0.3", LogNormal(0.2, 0.3)),
        ("linear:0.1,0.002", Linear(0.1, 0.002)),
    ],
)
def test_each_model_has_a_spelling(spelling: str, latency: Latency) -> None:
    assert parse_latency(spelling) == latency


@pytest.mark.parametrize(
    "spelling",
    ["", "fast", "0", "-1", "nan", "jitter", "jitter:0.2", "jitter:0.2,1", "normal:0.2,0.1", "lognormal:0.2,9", "linear:0,1,2"],
)
def test_anything_else_is_refused(spelling: str) -> None:
    with pytest.raises(ConfigError):
        parse_latency(spelling)
