"""The search for the knee, against servers and generators whose limits are known."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.errors import ConfigError
from loadtest.report import Report, make_report
from loadtest.samples import Ending
from loadtest.sweep import MAX_STEPS, Judgement, Knee, Search, Slo, Step, sweep
from tests.loadtest.examples import end, generate, make_messages_plan, make_plan, make_recording


def make_search(**changes: float) -> Search:
    return Search(**({"start_rate": 250.0, "max_rate": 20_000.0, "precision": 0.05} | changes))


def search_for(limit: float, search: Search, above: Judgement = Judgement.MISSED) -> tuple[Knee, int]:
    num_steps = 0
    while (rate := search.next_rate()) is not None:
        num_steps += 1
        assert num_steps <= MAX_STEPS
        search.tell(rate, Judgement.MET if rate <= limit else above)
    return search.knee(), num_steps


@given(st.floats(min_value=5.0, max_value=19_999.0), st.sampled_from([Judgement.MISSED, Judgement.INVALID]))
def test_the_knee_is_found_from_below_within_its_precision(limit: float, above: Judgement) -> None:
    knee, _ = search_for(limit, make_search(), above)
    assert knee.rate is not None
    assert knee.rate <= limit < knee.bound_rate
    assert knee.bound_rate - knee.rate <= 0.05 * knee.bound_rate
    assert knee.bound_by is above


def test_a_server_above_the_highest_rate_is_not_given_a_limit() -> None:
    knee, num_steps = search_for(1e9, make_search())
    assert (knee.rate, knee.bound_by) == (20_000.0, Judgement.MET)
    assert num_steps == 8
    assert "above it" in knee.describe_limit()


def test_a_server_that_holds_nothing_has_no_knee() -> None:
    knee, _ = search_for(0.0, make_search())
    assert knee.rate is None


def test_the_generators_limit_is_not_read_as_the_servers() -> None:
    knee, _ = search_for(3000.0, make_search(), Judgement.INVALID)
    assert "the generator could not offer" in knee.describe_limit()


@pytest.mark.parametrize("changes", [{"start_rate": 0.0}, {"start_rate": 30_000.0}, {"precision": 0.0}])
def test_searches_that_cannot_work_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        make_search(**changes)


@pytest.mark.parametrize("changes", [{"quantile": "p97"}, {"ok_share": 0.0}])
def test_slos_that_cannot_work_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Slo(0.5, **changes)


def make_valid(*, latency_s: float = 0.2, num_refused: int = 0) -> Report:
    recording = make_recording(make_plan(rate=100.0, duration_s=1.0))
    for row in range(100):
        end(recording.samples, row, Ending.OK, latency_s=latency_s, status=200)
    for row in range(num_refused):
        end(recording.samples, row, Ending.REJECTED_CAPACITY, latency_s=0.001, status=529)
    return make_report(recording)


def make_invalid() -> Report:
    return msgspec.structs.replace(make_valid(), verdict="INVALID", reasons=["late"])


def test_an_slo_is_a_latency_and_few_refusals() -> None:
    slo = Slo(0.5)
    assert slo.judge(make_valid()) is Judgement.MET
    assert slo.judge(make_valid(num_refused=1)) is Judgement.MET
    assert slo.judge(make_valid(num_refused=2)) is Judgement.MISSED
    assert slo.judge(make_valid(num_refused=100)) is Judgement.MISSED
    assert slo.judge(make_valid(latency_s=0.6)) is Judgement.MISSED
    assert slo.judge(make_invalid()) is Judgement.INVALID


def test_an_invalid_step_is_tried_once_more() -> None:
    steps: list[Step] = []
    reports = iter([make_valid(), make_invalid(), make_valid(), make_invalid(), make_invalid()])
    search = make_search(start_rate=100.0, max_rate=400.0, precision=0.5)
    knee = sweep(lambda rate: next(reports), search, Slo(0.5), settle_s=0.0, on_step=steps.append)
    assert [step.rate for step in steps] == [100.0, 200.0, 200.0, 400.0, 400.0]
    assert (knee.rate, knee.bound_by, knee.bound_rate) == (200.0, Judgement.INVALID, 400.0)


def test_an_interrupted_step_ends_the_sweep() -> None:
    interrupted = msgspec.structs.replace(make_invalid(), measured_s=0.1)
    reports = iter([make_valid(), interrupted])
    knee = sweep(lambda rate: next(reports), make_search(), Slo(0.5), settle_s=0.0, on_step=lambda step: None)
    assert knee.rate == 250.0


@pytest.mark.parametrize(
    ("slo", "judgement"),
    [
        (Slo(None), Judgement.MET),
        (Slo(None, ttft_s=0.6, tpot_s=0.02), Judgement.MET),
        (Slo(None, ttft_s=0.4, tpot_s=0.02), Judgement.MISSED),
        (Slo(None, ttft_s=0.6, tpot_s=0.005), Judgement.MISSED),
        (Slo(0.5, ttft_s=0.6, tpot_s=0.02), Judgement.MISSED),
    ],
)
def test_generated_text_is_judged_by_its_tokens(slo: Slo, judgement: Judgement) -> None:
    recording = make_recording(make_messages_plan())
    for row in range(20):
        generate(recording.samples, row, ttft_s=0.5, gaps_s=[0.01] * 9)
    assert slo.judge(make_report(recording)) is judgement


def test_a_bound_on_what_was_not_measured_is_missed() -> None:
    assert Slo(None, ttft_s=1.0).judge(make_report(make_recording(make_plan()))) is Judgement.MISSED
