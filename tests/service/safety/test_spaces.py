"""Whitespace of every kind is a space, in short text and in long."""

import sys

from hypothesis import given

from batcher.service.safety.contract import CheckContext
from batcher.service.safety.spaces import NO_SPACES, only_spaces, spaced_loosely
from tests.service.safety.checkers import book
from tests.service.safety.test_phrases import PHRASES, TEXTS, first_match

CONTEXT = CheckContext("tenant", "paid", "smollm2")
LONG = "-" * 300
"""Beyond what is looked at character by character."""


def test_every_kind_of_whitespace_is_known() -> None:
    assert {" ", *NO_SPACES} == {char for char in map(chr, range(sys.maxunicode + 1)) if char.isspace()}


@given(TEXTS)
def test_each_character_of_whitespace_is_one_space(text: str) -> None:
    expected = "".join(" " if char.isspace() else char for char in text)
    assert only_spaces(text) == expected
    assert only_spaces(LONG + text) == LONG + expected


def test_a_run_of_any_kind_is_one_space_where_phrases_are_ruled_out() -> None:
    assert spaced_loosely("a\n\n  b\xa0\u3000c d").strip() == b"a b c d"
    assert spaced_loosely(LONG + "a\n\n  b\xa0\u3000c d") == LONG.encode() + b"a b c d"


@given(PHRASES, TEXTS)
def test_a_phrase_is_found_in_long_text_where_it_is_in_short(phrases: list[tuple[str, bool]], text: str) -> None:
    rules = book(*({"phrases": (phrase,), "ignore_case": ignores_case} for phrase, ignores_case in phrases))
    start = first_match(LONG + text, phrases)
    checked = rules.check_whole(CONTEXT, LONG + text)
    assert checked.text == (LONG + text)[:start]
    assert (checked.finding is None) == (start is None)
