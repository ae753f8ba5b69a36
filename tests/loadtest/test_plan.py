"""A plan draws the same schedule each time, and refuses what cannot work."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.errors import ConfigError
from batcher.sim.traffic import mix_of_paid_share, requests
from batcher.sim.workload import Constant, Poisson, Sender, Steps, parse_arrivals
from loadtest import plan as plan_module
from loadtest.plan import draw_schedule, parse_mix, parse_senders
from tests.loadtest.examples import make_plan


@given(st.integers(), st.sampled_from([0.0, 0.1]))
def test_one_seed_draws_one_schedule(seed: int, poison_share: float) -> None:
    plan = make_plan(arrivals=Poisson(300.0), seed=seed, poison_share=poison_share, poison_prefix="BOOM")
    assert draw_schedule(plan) == draw_schedule(plan)


def test_another_seed_draws_another_schedule() -> None:
    first, second = (draw_schedule(make_plan(arrivals=Poisson(300.0), seed=seed)) for seed in (1, 2))
    assert first.planned_at != second.planned_at
    assert first.sender != second.sender


@pytest.mark.parametrize("seed", [0, 1, 2, -7])
@pytest.mark.parametrize("arrivals", ["poisson", "constant", "burst", "ramp", "steps:50x1,200x1"])
def test_a_simulation_of_the_same_seed_has_the_same_requests(seed: int, arrivals: str) -> None:
    """Each had drawn its own, so a figure of one could not be held against a figure of the other."""
    process = parse_arrivals(arrivals, rate=None if ":" in arrivals else 100.0, duration_s=2.0)
    plan = make_plan(arrivals=process, mix=parse_mix("paid=0.3,free=0.7"), duration_s=2.0, seed=seed)
    schedule = draw_schedule(plan)
    simulated = list(requests(process, mix_of_paid_share(0.3), seed=seed, duration_s=2.0, deadline_s=1.0))
    assert [request.arrived_at for request in simulated] == list(schedule.planned_at)
    assert [request.tier for request in simulated] == [schedule.senders[index].tier for index in schedule.sender]


def test_a_schedule_ends_before_the_duration() -> None:
    schedule = draw_schedule(make_plan(arrivals=Constant(10.0), duration_s=1.0))
    assert list(schedule.planned_at) == [i / 10.0 for i in range(10)]
    assert set(schedule.ending) == {0}


def test_poison_is_drawn_by_its_share_and_within_its_time() -> None:
    plan = make_plan(arrivals=Constant(1000.0), duration_s=3.0, poison_share=0.5, poison_from_s=1.0, poison_to_s=2.0, seed=3)
    schedule = draw_schedule(plan)
    assert sum(schedule.is_poison[:1000]) == sum(schedule.is_poison[2000:]) == 0
    assert 400 < sum(schedule.is_poison[1000:2000]) < 600


def test_mixes_are_parsed() -> None:
    mix = parse_mix("paid=0.2, free=0.8")
    assert mix.senders == (Sender("dev-paid", "paid", 0.2), Sender("dev-free", "free", 0.8))
    assert parse_senders(["a:b:paid:3000", "dev-free:free:5"]).senders[0] == Sender("a:b", "paid", 3000.0)
    assert parse_senders(["a:paid:3000", "b:free:5"]).total == 3005.0


@pytest.mark.parametrize("spelling", ["", "paid", "paid=many", "paid=1,paid=2", "=1", "paid=0", "paid=-1"])
def test_mixes_that_cannot_work_are_refused(spelling: str) -> None:
    with pytest.raises(ConfigError):
        parse_mix(spelling)


@pytest.mark.parametrize("spelling", ["", "key", "key:paid", ":paid:3", "key::3", "key:paid:fast", "key:paid:0"])
def test_keys_that_cannot_work_are_refused(spelling: str) -> None:
    with pytest.raises(ConfigError):
        parse_senders([spelling])


@pytest.mark.parametrize(
    "changes",
    [
        {"duration_s": 0.0},
        {"duration_s": 1e9},
        {"timeout_s": 0.0},
        {"slo_s": 0.0},
        {"poison_share": 1.5},
        {"input_size": 3},
        {"input_size": 22, "poison_share": 0.1, "poison_prefix": "BOOM"},
        {"max_connections": 0},
        {"warm_connections": -1},
    ],
)
def test_plans_that_cannot_work_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_plan(**changes)


def test_a_schedule_without_requests_is_refused() -> None:
    with pytest.raises(ConfigError, match="no request is due"):
        draw_schedule(make_plan(arrivals=Steps(((0.0, 5.0),))))


def test_a_schedule_without_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_module, "MAX_REQUESTS", 100)
    assert len(draw_schedule(make_plan(arrivals=Constant(100.0), duration_s=1.0))) == 100
    with pytest.raises(ConfigError, match="more than 100 requests"):
        draw_schedule(make_plan(arrivals=Constant(101.0), duration_s=1.0))
