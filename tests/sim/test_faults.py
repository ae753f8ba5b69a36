from collections import Counter
from random import Random

import pytest

from batcher.errors import ConfigError
from batcher.sim.faults import KILLER, POISON, FaultPlan, Faults, RunFate, StartFate, plan_of_intensity
from batcher.types import Request

EVERYTHING = FaultPlan(
    dies=0.1,
    hangs=0.1,
    answers_late=0.1,
    bad_outputs=0.1,
    starts_badly=0.3,
    cancels=0.5,
    impatient=0.5,
    poison=0.2,
    killers=0.2,
)


def requests(num: int) -> list[Request]:
    return [Request(i, "tenant", "paid", f"input {i}", 9, float(i), i + 10.0) for i in range(num)]


def test_by_itself_a_plan_lets_nothing_go_wrong() -> None:
    faults = Faults(FaultPlan(), Random(1))
    offered = requests(10)
    assert {faults.run_fate() for _ in range(1000)} == {RunFate.ANSWERS}
    assert {faults.start_fate() for _ in range(1000)} == {StartFate.READY}
    assert list(faults.trouble(iter(offered), service_time_s=0.2)) == offered
    assert list(faults.instants(0.0, until=1e9)) == []


def test_fates_come_as_often_as_planned() -> None:
    faults = Faults(EVERYTHING, Random(1))
    fates = Counter(faults.run_fate() for _ in range(20_000))
    assert fates[RunFate.DIES] / 20_000 == pytest.approx(0.1, abs=0.01)
    assert set(fates) == set(RunFate)
    assert {faults.start_fate() for _ in range(100)} == set(StartFate)


def test_a_seed_draws_the_same_fates() -> None:
    def fates(seed: int) -> list[RunFate]:
        faults = Faults(EVERYTHING, Random(seed))
        return [faults.run_fate() for _ in range(100)]

    assert fates(1) == fates(1) != fates(2)


def test_after_stop_nothing_goes_wrong() -> None:
    faults = Faults(EVERYTHING, Random(1))
    faults.stop()
    offered = requests(100)
    assert {faults.run_fate() for _ in range(100)} == {RunFate.ANSWERS}
    assert {faults.start_fate() for _ in range(100)} == {StartFate.READY}
    assert list(faults.trouble(iter(offered), service_time_s=0.2)) == offered


def test_troubled_requests_are_the_same_but_for_their_input_and_patience() -> None:
    offered = requests(500)
    troubled = list(Faults(EVERYTHING, Random(1)).trouble(iter(offered), service_time_s=0.2))
    assert [(r.id, r.tenant, r.tier, r.arrived_at) for r in troubled] == [
        (r.id, r.tenant, r.tier, r.arrived_at) for r in offered
    ]
    words = Counter(request.input.split()[0] for request in troubled)
    assert set(words) == {"input", POISON, KILLER}
    assert all(new.arrived_at < new.deadline_at <= old.deadline_at for new, old in zip(troubled, offered, strict=True))
    assert 100 < sum(request.deadline_at - request.arrived_at < 1.0 for request in troubled) < 400


def test_bad_outputs_break_the_contract_in_each_way() -> None:
    faults = Faults(EVERYTHING, Random(1))
    spoilt = [faults.bad_outputs(["a", "b"]) for _ in range(200)]
    lists = [outputs for outputs in spoilt if isinstance(outputs, list)]
    assert {len(outputs) for outputs in lists} == {0, 1, 2, 3}
    assert all(len(outputs) != 2 or not all(isinstance(output, str) for output in outputs) for outputs in lists)
    assert "xx" in spoilt
    assert None in spoilt


def test_what_happens_by_itself_keeps_its_rate() -> None:
    instants = list(Faults(EVERYTHING, Random(1)).instants(5.0, until=1000.0))
    assert len(instants) == pytest.approx(5000, rel=0.05)
    assert instants == sorted(instants)


def test_shares_are_checked_at_birth() -> None:
    with pytest.raises(ConfigError, match="dies"):
        FaultPlan(dies=1.5)
    with pytest.raises(ConfigError, match="stall_s"):
        FaultPlan(stall_s=-1.0)
    with pytest.raises(ConfigError, match="faults"):
        plan_of_intensity(11.0)


def test_intensity_scales_a_plan() -> None:
    assert plan_of_intensity(0.0) == FaultPlan()
    assert plan_of_intensity(2.0).dies == 2 * plan_of_intensity(1.0).dies > 0.0
