"""Texts of a wanted length: unique, repeatable, and apart from the first word on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.prompts import Prompts, TokenUnit

PROMPTS = {unit: Prompts(seed=1, unit=unit) for unit in TokenUnit}


@given(st.integers(0, 2**24 - 1), st.integers(1, 100_000))
def test_a_text_is_as_long_as_it_should_be(number: int, num: int) -> None:
    assert len(PROMPTS[TokenUnit.WORD].text(number, num).split(" ")) == num
    text = PROMPTS[TokenUnit.BYTE].text(number, num)
    assert len(text.encode()) == num


@given(st.integers(0, 2**24 - 1), st.integers(0, 2**24 - 1), st.sampled_from(TokenUnit))
def test_two_texts_differ_within_the_first_block(first: int, second: int, unit: TokenUnit) -> None:
    texts = [PROMPTS[unit].text(number, 16) for number in (first, second)]
    assert (texts[0] == texts[1]) is (first == second)


@pytest.mark.parametrize("unit", TokenUnit)
def test_a_seed_says_the_same_again_and_another_something_else(unit: TokenUnit) -> None:
    first, again, other = (Prompts(seed=seed, unit=unit).text(5, 40) for seed in (1, 1, 2))
    assert first == again
    assert first[:40] != other[:40]


@pytest.mark.parametrize("unit", TokenUnit)
def test_a_longer_text_of_one_number_begins_with_the_shorter(unit: TokenUnit) -> None:
    prompts = PROMPTS[unit]
    assert prompts.text(5, 100_000).startswith(prompts.text(5, 30))
