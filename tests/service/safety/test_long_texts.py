"""Long texts are found what short ones are found, wherever the pieces end in which they are looked through."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batcher.config import OnFailure
from batcher.errors import Overloaded
from batcher.service.safety import long_texts
from batcher.service.safety.calls import Failure
from batcher.service.safety.contract import Checked
from batcher.service.safety.long_texts import PIECE_CHARS, LongTexts
from batcher.service.safety.rulebook import RuleBook
from batcher.service.safety.stage import FAILED, MAX_INLINE_CHARS, Side
from batcher.service.threads import MAX_WAITING
from batcher.service.turns import Turns
from tests.service.safety.checkers import CONTEXT, RULES, Hanging, answer, book, stage_of, written
from tests.service.safety.test_phrases import PHRASES, TEXTS

pytestmark = pytest.mark.anyio


@pytest.fixture
async def texts(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LongTexts]:
    monkeypatch.setattr(long_texts, "PIECE_CHARS", 3)
    texts = LongTexts(Turns())
    yield texts
    texts.close()


def rules_of(phrases: list[tuple[str, bool]], regexes: list[str]) -> RuleBook:
    return book(
        *({"phrases": (phrase,), "ignore_case": ignores_case} for phrase, ignores_case in phrases),
        *({"regex": regex, "max_length": 8} for regex in regexes),
    )


REGEXES = st.lists(st.sampled_from(["a.?b", "b+c", r"\bA", "é😀", "(?i:ab+a)"]), max_size=2)


@given(PHRASES, REGEXES, TEXTS, TEXTS)
async def test_a_long_text_is_found_what_it_is_found_at_once(
    phrases: list[tuple[str, bool]], regexes: list[str], text: str, more: str
) -> None:
    texts = LongTexts(Turns())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(long_texts, "PIECE_CHARS", 3)
        rules = rules_of(phrases, regexes)
        input_rules = rules.input_rules(CONTEXT)
        assert input_rules is not None
        assert await texts.first_in(input_rules, [text], tenant="t") == input_rules.first_in(text)
        together = rules.check_input(CONTEXT, [text, more])
        match = await texts.first_in(input_rules, [text, more], tenant="t")
        assert (None if match is None else input_rules.refusal(match)) == together
        at_once, in_pieces = rules.check_output(CONTEXT), rules.check_output(CONTEXT)
        assert at_once is not None
        assert in_pieces is not None
        checked = Checked("")
        for piece in filter(None, (text, more)):
            checked = await texts.feed(in_pieces, piece, tenant="t")
            assert checked == at_once.feed(piece)
            if checked.finding is not None:
                break
        if checked.finding is None:
            assert in_pieces.flush() == at_once.flush()
    texts.close()


async def test_others_have_their_turns_between_the_pieces(texts: LongTexts) -> None:
    num_rounds = 0

    async def count() -> None:
        nonlocal num_rounds
        while True:
            num_rounds += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    rules = rules_of([("secret", True)], []).input_rules(CONTEXT)
    assert rules is not None
    assert await texts.first_in(rules, ["x" * 30], tenant="t") is None
    counting.cancel()
    assert num_rounds >= 9


async def test_what_a_pattern_finds_is_not_lost_where_pieces_meet(texts: LongTexts) -> None:
    """Longer than its rule says, it was found in an answer that came at once, and not in one that was cut into pieces."""
    rules = book({"regex": "BEGIN[a-z ]*END", "max_length": 8})
    scan = rules.check_output(CONTEXT)
    assert scan is not None
    text = "key: BEGIN " + "x" * 100 + " END."
    checked = await texts.feed(scan, text, tenant="t")
    assert (checked.text, checked.finding and checked.finding.rule) == ("key: ", "rule-0")


async def test_many_short_texts_do_not_hold_up_the_loop_together() -> None:
    """Fifty messages of 20,000 characters, each short enough by itself, held it up for seconds."""
    turns = Turns()
    texts = LongTexts(turns)
    rules = book({"phrases": ("heron",)}, {"regex": "b.d"}).input_rules(CONTEXT)
    assert rules is not None
    looking = asyncio.ensure_future(texts.first_in(rules, ["a" * PIECE_CHARS] * 10 + ["a"] * PIECE_CHARS, tenant="t"))
    num_rounds = 0
    while not looking.done():
        num_rounds += 1
        await asyncio.sleep(0)
    assert await looking is None
    assert num_rounds >= 11
    texts.close()


@pytest.mark.parametrize("policy", [OnFailure.CLOSED, OnFailure.OPEN])
@pytest.mark.usefixtures("hanging")
async def test_long_texts_beyond_those_that_may_wait_are_refused_and_never_let_past_the_rules(
    policy: OnFailure, rules: Path
) -> None:
    """With the policy open, a crowd of long texts switched the rules off for whoever came then."""
    written(rules.parent, RULES + '[[rules]]\nname = "regex"\nregex = "b.d"')
    stage = stage_of(rules=rules, on_failure=policy)
    long = "a" * MAX_INLINE_CHARS + " bad"
    blocking = asyncio.ensure_future(stage.long_texts._thread.call(Hanging.release.wait))
    checks = [asyncio.create_task(stage.check_input(CONTEXT, [long])) for _ in range(MAX_WAITING // 2)]
    other = asyncio.create_task(stage.check_input(msgspec.structs.replace(CONTEXT, tenant="other"), [long]))
    for _ in range(4 * len(checks) + 4):
        await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="too many safety checks wait"):
        await stage.check_input(CONTEXT, [long])
    output = asyncio.create_task(answer(stage, long))
    await asyncio.sleep(0)
    Hanging.release.set()
    await blocking
    assert [finding and finding.rule for finding in await asyncio.gather(*checks, other)] == ["regex"] * (len(checks) + 1)
    assert (await output).text == "a" * MAX_INLINE_CHARS + " ", "an answer is never too much: it is made already"
    found = await stage.check_input(CONTEXT, [long])
    assert found is not None
    assert found.rule == "regex"
    assert stage.statistics().failures[Side.INPUT, Failure.BUSY] == 1
    stage.close()


async def test_a_rule_that_breaks_on_a_long_text_lets_nothing_pass(rules: Path) -> None:
    half_a_character = "\ud83d" + "a" * MAX_INLINE_CHARS
    closed = stage_of("Plain", rules=written(rules.parent, RULES + '[[rules]]\nname = "regex"\nregex = "b.d"'))
    assert await closed.check_input(CONTEXT, [half_a_character]) is FAILED
    guard = closed.open_output(CONTEXT)
    assert await guard.feed("fine " + half_a_character) == Checked("", FAILED)
    opened = stage_of(rules=rules, on_failure=OnFailure.OPEN)
    assert await answer(opened, "one ", half_a_character, " two") == Checked(f"one {half_a_character} two")
    closed.close()
    opened.close()
