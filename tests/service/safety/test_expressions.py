"""Regular expressions over answers in pieces, and texts that would stop an engine that backtracks."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.errors import ConfigError
from batcher.service.safety.contract import Checked
from batcher.service.safety.expressions import MAX_PATTERN_CHARS, MAX_PROGRAM_SIZE
from batcher.service.safety.rules import Rule
from tests.service.safety.checkers import CONTEXT, book
from tests.service.safety.test_phrases import stream

PATTERNS = ["ab+c", "a.c", "[bc]{2,5}a", r"\bab", r"b\b", "a$", "^ab", "(?:ab|bcd)", "é[ab]", "ca?😀"]


@given(st.sampled_from(PATTERNS), st.booleans(), st.text("abcABC é😀d", max_size=30), st.lists(st.integers(0, 30)))
def test_nothing_of_a_match_leaks_however_the_text_is_split(
    pattern: str, ignores_case: bool, text: str, cuts: list[int]
) -> None:
    scan = book({"regex": pattern, "ignore_case": ignores_case, "max_length": 30}).check_output(CONTEXT)
    assert scan is not None
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    released, rule = stream(scan, [text[start:end] for start, end in itertools.pairwise(edges)])
    match = re.search(pattern, text, re.ASCII | (re.IGNORECASE if ignores_case else re.NOFLAG))
    assert (rule is None) == (match is None)
    assert released == text[: None if match is None else match.start()]


def test_an_expression_with_a_definite_beginning_holds_back_only_where_it_stands() -> None:
    scan = book({"regex": r"password\s*[:=]\s*\S{4,}"}).check_output(CONTEXT)
    assert scan is not None
    assert scan.feed("The pass") == Checked("The ")
    assert scan.feed("port and his") == Checked("passport and his")
    assert scan.feed(" PassWord ") == Checked(" ")
    assert scan.feed("is") == Checked("")
    assert scan.feed("x" * 200) == Checked("PassWord is" + "x" * 200)


def test_an_expression_that_may_begin_with_anything_holds_back_its_length() -> None:
    scan = book({"regex": r"..?foo", "max_length": 5}).check_output(CONTEXT)
    assert scan is not None
    assert scan.feed("0123456789") == Checked("01234")
    found = scan.feed("0foo")
    assert (found.text, found.finding is not None) == ("5678", True)


def test_a_longer_match_than_was_said_is_not_found_when_its_beginning_has_left() -> None:
    scan = book({"regex": r"foo.*bar", "max_length": 10}).check_output(CONTEXT)
    assert scan is not None
    assert scan.feed("foo" + "x" * 20) == Checked("foo" + "x" * 20)
    assert scan.feed("bar") == Checked("bar")
    assert scan.feed("foo bar").finding is not None


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|a)*b", r"(a*)*c", r"(?:a?){50}a{50}b"])
def test_a_pattern_that_would_backtrack_for_years_takes_no_time(pattern: str) -> None:
    """With an engine that backtracks, 50 characters of this never end, and the test's own time is over."""
    rules = book({"regex": pattern})
    text = "a" * 100_000 + "!"
    assert rules.check_input(CONTEXT, [text]) is None
    scan = rules.check_output(CONTEXT)
    assert scan is not None
    assert stream(scan, [text[start : start + 1000] for start in range(0, len(text), 1000)]) == (text, None)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("(", "bounded time: missing )"),
        ("a)|(b", "bounded time: unexpected )"),
        (r"(a)\1", "bounded time: invalid escape"),
        ("foo(?=bar)", "bounded time: invalid perl operator"),
        ("(?P<word>foo)", "named group"),
        ("x*", "matches empty text"),
        (r"\b", "matches empty text"),
        pytest.param("(a|b)?" * 100_000, f"has 600000 characters; at most {MAX_PATTERN_CHARS} are allowed", id="long"),
        ("[a-z]{999}[0-9]{999}", f"at most {MAX_PROGRAM_SIZE}"),
        ("\ud83d", "bounded time"),
    ],
)
def test_what_cannot_run_in_bounded_time_stops_the_start(pattern: str, words: str) -> None:
    with pytest.raises(ConfigError, match=r"safety rule 'secrets': ") as refused:
        Rule(name="secrets", regex=pattern)
    assert words in str(refused.value)


def test_a_pattern_may_have_as_many_characters_as_are_allowed_and_no_more() -> None:
    pattern = ("a" + "(?:)" * MAX_PATTERN_CHARS)[: MAX_PATTERN_CHARS - 3] + "bcd"
    assert Rule(name="rare", regex=pattern).regex == pattern
    with pytest.raises(ConfigError, match=f"has {MAX_PATTERN_CHARS + 1} characters"):
        Rule(name="rare", regex=f"{pattern}b")
