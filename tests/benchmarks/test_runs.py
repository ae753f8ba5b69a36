"""Figures of a run, from instants that are written out."""

import pytest

from benchmarks.runs import Run, make_prompts, rotated, spread, spread_of_ratios

RUN = Run(10.0, [[11.0, 11.5, 12.0], [12.0, 14.0], [11.5]])


def test_figures_of_a_run() -> None:
    assert RUN.num_tokens == 6
    assert RUN.duration_s == 4.0
    assert RUN.tokens_per_s == 1.5
    assert RUN.ttft_p50_s == 1.5
    assert RUN.tpot_p50_s == pytest.approx((0.5 + 2.0) / 2)


def test_answers_of_one_token_have_no_time_per_token() -> None:
    assert Run(0.0, [[1.0], [2.0]]).tpot_p50_s == 0.0


def test_everybody_is_first_once() -> None:
    names = ["a", "b", "c"]
    assert [rotated(names, index)[0] for index in range(4)] == ["a", "b", "c", "a"]
    assert sorted(rotated(names, 2)) == names


def test_prompts_are_fresh_for_each_seed_and_the_same_for_one() -> None:
    prompts = make_prompts(3, 5, vocab_size=1000, seed=1, prefix=[7, 8])
    assert prompts == make_prompts(3, 5, vocab_size=1000, seed=1, prefix=[7, 8])
    assert all(prompt[:2] == [7, 8] and len(prompt) == 7 for prompt in prompts)
    assert prompts[0] != prompts[1]
    assert prompts != make_prompts(3, 5, vocab_size=1000, seed=2, prefix=[7, 8])


def test_a_spread_is_the_median_and_its_range() -> None:
    assert spread([3.0, 1.0, 2.0], digits=1) == "2.0 (1.0-3.0)"
    assert spread([0.001, 0.002], scale=1000.0, digits=1) == "1.5 (1.0-2.0)"
    assert spread([]) == "-"


def test_ratios_are_taken_within_rounds() -> None:
    """The machine was four times slower in the second round, for both: the ratio did not change."""
    assert spread_of_ratios([200.0, 50.0], [100.0, 25.0]) == "2.00 (2.00-2.00)"
