"""What an answer is charged before it is known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batcher.config import TokenEstimate
from batcher.core.admission.estimates import Exact, Expected, MaxTokens, create_estimator


def test_there_is_one_for_each_policy() -> None:
    kinds = {policy: type(create_estimator(policy)) for policy in TokenEstimate}
    assert kinds == {
        TokenEstimate.MAX_TOKENS: MaxTokens,
        TokenEstimate.EXPECTED: Expected,
        TokenEstimate.EXACT: Exact,
    }


def test_two_of_them_learn_nothing() -> None:
    for estimator, estimate in ((MaxTokens(), 500), (Exact(), 0)):
        for _ in range(100):
            estimator.learn("ann", "m", 40)
        assert estimator.estimate("ann", "m", 500) == estimate


def test_until_answers_were_seen_all_that_is_allowed_for_is_expected() -> None:
    expected = Expected()
    for _ in range(4):
        assert expected.estimate("ann", "m", 500) == 500
        expected.learn("ann", "m", 40)
    assert expected.estimate("ann", "m", 500) == 500

    expected.learn("ann", "m", 40)

    assert expected.estimate("ann", "m", 500) == 40
    assert expected.estimate("ann", "m", 30) == 30


def test_each_key_and_model_has_a_length_of_its_own() -> None:
    expected = Expected()
    for _ in range(5):
        expected.learn("ann", "m", 40)

    assert expected.estimate("bob", "m", 500) == 500
    assert expected.estimate("ann", "other", 500) == 500


def test_answers_that_differ_have_a_margin() -> None:
    """Of 100 and 300 in turn, the mean is 200 and the mean distance from it 100."""
    expected = Expected()
    for index in range(500):
        expected.learn("ann", "m", 100 + 200 * (index % 2))

    assert 380 <= expected.estimate("ann", "m", 1000) <= 420


def test_it_follows_answers_that_become_longer() -> None:
    expected = Expected()
    for _ in range(500):
        expected.learn("ann", "m", 10)
    for _ in range(100):
        expected.learn("ann", "m", 400)

    assert 395 <= expected.estimate("ann", "m", 1000) <= 420


def test_answers_of_no_tokens_are_answers() -> None:
    """CASES B41: a first token that ends the answer. They are seen, and the estimate is the least there is."""
    expected = Expected()
    for _ in range(5):
        expected.learn("ann", "m", 0)

    assert expected.estimate("ann", "m", 500) == 1


def test_who_was_not_asked_for_the_longest_is_forgotten() -> None:
    expected = Expected(max_pairs=2)
    for key in ("ann", "bob"):
        for _ in range(5):
            expected.learn(key, "m", 40)
    expected.estimate("ann", "m", 500)

    expected.learn("cy", "m", 40)

    assert expected.estimate("ann", "m", 500) == 40
    assert expected.estimate("bob", "m", 500) == 500
    assert repr(expected) == "Expected(2 pairs)"
    assert expected.statistics().num_pairs == 2


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    answers=st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 10**6)), max_size=60),
    max_output=st.integers(1, 10**6),
)
def test_it_is_never_more_than_is_allowed_for_nor_less_than_one(answers: list[tuple[str, int]], max_output: int) -> None:
    expected = Expected(max_pairs=3)
    for key, tokens in answers:
        expected.learn(key, "m", tokens)
        expected.check()
        assert 1 <= expected.estimate(key, "m", max_output) <= max_output


@pytest.mark.parametrize("policy", list(TokenEstimate))
def test_an_answer_of_at_most_one_token(policy: TokenEstimate) -> None:
    assert create_estimator(policy).estimate("ann", "m", 1) in (0, 1)
