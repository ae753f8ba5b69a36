"""Phrases in answers that come in pieces: nothing of one leaks, and everything else leaves."""

import itertools
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.service.safety.contract import Checked
from batcher.service.safety.phrases import PhraseAutomaton, fold
from tests.service.safety.checkers import CONTEXT, book

ALPHABET = "aAbcé😀\N{ZERO WIDTH JOINER}ıİςΣſ \n\xa0"
"""Few letters, so that phrases overlap; some whose case or whose bytes are odd; some whitespace."""
RUNS = [" " * 15, " \n" * 8, "\t" * 17, " " * 33]
TEXTS = st.text(ALPHABET, max_size=40) | st.lists(st.sampled_from([*ALPHABET, *RUNS]), max_size=20).map("".join)
PHRASES = st.lists(
    st.tuples(st.text(ALPHABET, min_size=1, max_size=6).filter(lambda phrase: not phrase.isspace()), st.booleans()),
    min_size=1,
    max_size=6,
)


def stream(scan, pieces: list[str]) -> tuple[str, str | None]:  # type: ignore[no-untyped-def]
    """What left, and the rule that ended it."""
    released = ""
    for feed in [*[lambda piece=piece: scan.feed(piece) for piece in pieces if piece], scan.flush]:
        checked: Checked = feed()
        released += checked.text
        if checked.finding is not None:
            return released, checked.finding.rule
    return released, None


def symbols_of(text: str) -> list[tuple[int, str]]:
    """(where it begins, the symbol): every sixteen characters of a run of whitespace are a space, the others are themselves."""
    symbols: list[tuple[int, str]] = []
    run = 0
    for number, char in enumerate(text):
        if not char.isspace():
            symbols.append((number, char))
        elif run % 16 == 0:
            symbols.append((number, " " if run == 0 else "next to no space"))
        run = run + 1 if char.isspace() else 0
    return symbols


def ends_with(symbols: list[tuple[int, str]], beginning: list[str], *, ignores_case: bool) -> bool:
    """Whether they do, one space being like another but for those within one run, which only begin a phrase."""
    if not beginning or len(beginning) > len(symbols):
        return not beginning
    last = [symbol for _, symbol in symbols[len(symbols) - len(beginning) :]]
    last[0] = " " if len(last[0]) > 1 else last[0]
    return [fold(char) if ignores_case and len(char) == 1 else char for char in last] == [
        fold(char) if ignores_case else char for char in beginning
    ]


def spelled(phrase: str) -> list[str]:
    return list(re.sub(r"\s+", " ", phrase))


def first_match(text: str, phrases: list[tuple[str, bool]]) -> int | None:
    """Where the phrase begins that is complete first; the longest of several."""
    symbols = symbols_of(text)
    for end in range(1, len(symbols) + 1):
        starts = [
            symbols[end - len(spelled(phrase))][0]
            for phrase, ignores_case in phrases
            if ends_with(symbols[:end], spelled(phrase), ignores_case=ignores_case)
        ]
        if starts:
            return min(starts)
    return None


@given(PHRASES, TEXTS, st.lists(st.integers(0, 40)))
def test_an_answer_ends_before_the_first_phrase_however_it_is_split(
    phrases: list[tuple[str, bool]], text: str, cuts: list[int]
) -> None:
    rules = book(*({"phrases": (phrase,), "ignore_case": ignores_case} for phrase, ignores_case in phrases))
    scan = rules.check_output(CONTEXT)
    assert scan is not None
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    released, rule = stream(scan, [text[start:end] for start, end in itertools.pairwise(edges)])
    expected = first_match(text, phrases)
    assert released == text[:expected]
    assert (rule is None) == (expected is None)
    whole = rules.check_whole(CONTEXT, text)
    assert (whole.text, whole.finding and whole.finding.rule) == (released, rule)
    assert (rules.check_input(CONTEXT, ["", text]) is None) == (rule is None)


@given(PHRASES, TEXTS)
def test_no_more_is_held_back_than_could_become_a_phrase(phrases: list[tuple[str, bool]], text: str) -> None:
    rules = book(*({"phrases": (phrase,), "ignore_case": ignores_case} for phrase, ignores_case in phrases))
    scan = rules.check_output(CONTEXT)
    assert scan is not None
    seen = released = ""
    for char in text:
        seen += char
        checked = scan.feed(char)
        released += checked.text
        if checked.finding is not None:
            return
        symbols = symbols_of(seen)
        could_become = [
            symbols[len(symbols) - size][0] if size else len(seen)
            for phrase, ignores_case in phrases
            for size in range(len(spelled(phrase)))
            if ends_with(symbols, spelled(phrase)[:size], ignores_case=ignores_case)
        ]
        assert len(released) == min(could_become)


@pytest.mark.parametrize("between", ["\n", "  ", "\xa0", "\r\n", " \t \n ", " " * 16, "\u2028"])
def test_a_phrase_is_found_however_it_is_spaced(between: str) -> None:
    rules = book({"phrases": ("project bluebird",)})
    text = f"about Project{between}Bluebird and more"
    assert rules.check_input(CONTEXT, [text]) is not None
    assert rules.check_whole(CONTEXT, text).text == "about "
    for size in (1, 2, 7):
        scan = rules.check_output(CONTEXT)
        assert stream(scan, [text[start : start + size] for start in range(0, len(text), size)])[0] == "about "


def test_no_more_than_sixteen_are_one_space_and_a_stream_holds_no_more_back() -> None:
    rules = book({"phrases": ("project bluebird", "\tdraft")})
    scan = rules.check_output(CONTEXT)
    assert scan is not None
    assert scan.feed("project" + " " * 16) == Checked("")
    assert scan.feed(" ") == Checked("project" + " " * 16)
    assert scan.feed("bluebird") == Checked(" bluebird")
    assert scan.feed(" " * 100_000).text == " " * (100_000 - 16)
    assert scan.feed("draft").finding is not None
    assert rules.check_input(CONTEXT, ["project" + " " * 17 + "bluebird"]) is None
    assert rules.check_input(CONTEXT, [" " * 17 + "draft", "fine"]) is not None


def test_phrases_that_differ_by_whitespace_alone_are_one() -> None:
    rules = book({"phrases": ("a  b",)}, {"phrases": ("a\nb",)})
    finding = rules.check_input(CONTEXT, ["a b"])
    assert finding is not None
    assert finding.rule == rules._rules[0].name


def test_a_phrase_over_three_pieces_leaves_nothing_of_itself() -> None:
    scan = book({"phrases": ("project heron",)}).check_output(CONTEXT)
    assert scan is not None
    assert scan.feed("about Pro") == Checked("about ")
    assert scan.feed("ject h") == Checked("")
    last = scan.feed("ERON and more")
    assert last.text == ""
    assert last.finding is not None


def test_what_turns_out_to_be_no_phrase_leaves_at_once() -> None:
    scan = book({"phrases": ("project heron",)}).check_output(CONTEXT)
    assert scan is not None
    assert scan.feed("the project her") == Checked("the ")
    assert scan.feed("d") == Checked("project herd")
    assert scan.feed("s pro") == Checked("s ")
    assert scan.flush() == Checked("pro")


def test_case_is_taken_away_one_character_at_a_time() -> None:
    for number in range(sys.maxunicode + 1):
        assert len(fold(chr(number))) == 1
    for text in ("ΑΣ", "ΑΣΑ", "İI", "ſS", "Straße", "ẞ"):
        assert fold(text) == "".join(fold(char) for char in text)


def test_thousands_of_phrases_are_one_search() -> None:
    phrases = tuple(f"forbidden phrase number {number} of many" for number in range(4000))
    rules = book({"phrases": phrases})
    assert rules.check_input(CONTEXT, ["forbidden phrase number 4000 of many, and nothing else" * 100]) is None
    assert rules.check_input(CONTEXT, ["a" * 100_000 + "Forbidden Phrase number 3999 of many"]) is not None


def test_a_long_piece_is_not_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of 100 kB in one piece took 11 ms on the event loop, and fifty come with one batch: all others stood still for
    half a second."""
    rules = book({"phrases": ("plutonium", "heron")}, {"phrases": ("EXACT",), "ignore_case": False})
    steps = []
    step = PhraseAutomaton.step

    def counted(self: PhraseAutomaton, node: int, char: str) -> int:
        steps.append(char)
        return step(self, node, char)

    monkeypatch.setattr(PhraseAutomaton, "step", counted)
    scan = rules.check_output(CONTEXT)
    assert scan is not None
    text = "exact plutoniu " * 10_000
    assert scan.feed(text).text == text
    assert scan.feed("her" + text + "her").text == "her" + text
    checked = scan.feed("on " + text)
    assert (checked.text, checked.finding is not None) == ("", True)
    assert len(steps) < 200
