"""The stage: what becomes of a request where a check finds something, and where it fails."""

import asyncio
from pathlib import Path

import pytest

from batcher.config import OnFailure, SafetyConfig
from batcher.errors import ConfigError, Overloaded, SafetyRefused, ServerFault
from batcher.service.safety.calls import CheckFailed, Failure
from batcher.service.safety.contract import Checked, Finding, Verdict
from batcher.service.safety.loading import load_checker
from batcher.service.safety.stage import FAILED, MAX_INLINE_CHARS, SafetyStage, Side, error_of
from batcher.service.safety_metrics import safety_metrics
from batcher.service.threads import MAX_WAITING, NUM_THREADS
from batcher.service.turns import Turns
from tests.service.safety.checkers import CONTEXT, FOUND, RULES, AsyncHanging, Hanging, answer, stage_of, written

pytestmark = pytest.mark.anyio


async def test_rules_are_asked_without_a_coroutine_where_they_are_alone(rules: Path) -> None:
    stage = stage_of(rules=rules)
    assert stage.can_check_now(MAX_INLINE_CHARS)
    assert not stage.can_check_now(MAX_INLINE_CHARS + 1)
    finding = stage.check_input_now(CONTEXT, ["a Heron"])
    assert finding == Finding(Verdict.REFUSE, "birds", "no birds here")
    assert stage.check_input_now(CONTEXT, ["a hero"]) is None
    assert stage.check_output_now(CONTEXT, "a heron, here") == Checked("a ", Finding(Verdict.STOP, "birds", "no birds here"))
    assert {found: num for found, num in stage.statistics().findings.items() if num} == {
        (Side.INPUT, Verdict.REFUSE, "birds"): 1,
        (Side.OUTPUT, Verdict.STOP, "birds"): 1,
    }


async def test_long_input_is_looked_through_beside_the_loop_with_the_same_result(rules: Path) -> None:
    stage = stage_of(rules=rules)
    found = stage.check_input_now(CONTEXT, ["heron"])
    for texts in (["a" * (MAX_INLINE_CHARS + 1)], ["a" * 1000] * (MAX_INLINE_CHARS // 1000)):
        assert await stage.check_input(CONTEXT, [*texts, "b"]) is None
        assert await stage.check_input(CONTEXT, [*texts, "heron"]) == found
        assert await stage.check_input(CONTEXT, ["heron", *texts]) == found
    stage.close()


async def test_a_checker_whose_end_fails_loses_nothing_where_that_is_open(rules: Path) -> None:
    """What it had given back before, on the same way out, went with it."""
    stage = stage_of("EndRaising", rules=rules, on_failure=OnFailure.OPEN)
    assert (await answer(stage, "all is a he")).text == "all is a he"
    assert (await answer(stage, "all is a heron")).text == "all is a "
    stage.close()


@pytest.mark.parametrize("checker", ["Plain", "Async"])
async def test_a_plugged_in_checker_sees_what_the_rules_let_through(checker: str, rules: Path) -> None:
    stage = stage_of(checker, rules=rules)
    assert not stage.can_check_now(1)
    assert await stage.check_input(CONTEXT, ["fine"]) is None
    assert await stage.check_input(CONTEXT, ["BAD"]) == Finding(Verdict.REFUSE, "bad-word", "not this word")
    assert await answer(stage, "a B", "all") == Checked("a Ball")
    assert await answer(stage, "a B", "AD end") == Checked("a ", FOUND)
    by_rule = await answer(stage, "a BA", "g and a he", "ron")
    assert (by_rule.text, by_rule.finding and by_rule.finding.rule) == ("a BAg and a ", "birds")
    assert await answer(stage, "a BAD heron") == Checked("a ", FOUND), "it is the earlier of the two"
    assert stage.statistics().findings[Side.OUTPUT, Verdict.STOP, "plugged_in"] == 2
    stage.close()


@pytest.mark.parametrize(
    ("checker", "failure"),
    [
        ("Raising", Failure.EXCEPTION),
        ("AsyncRaising", Failure.EXCEPTION),
        ("Exiting", Failure.EXCEPTION),
        ("CancellingItself", Failure.EXCEPTION),
        ("Hanging", Failure.TIMEOUT),
        ("AsyncHanging", Failure.TIMEOUT),
        ("Talking", Failure.CONTRACT),
    ],
)
@pytest.mark.parametrize("policy", [OnFailure.CLOSED, OnFailure.OPEN])
@pytest.mark.usefixtures("hanging")
async def test_a_failing_checker_follows_the_policy(
    checker: str, failure: Failure, policy: OnFailure, caplog: pytest.LogCaptureFixture
) -> None:
    stage = stage_of(checker, on_failure=policy, timeout_s=0.02 if failure is Failure.TIMEOUT else 5.0)
    expected = FAILED if policy is OnFailure.CLOSED else None
    assert await stage.check_input(CONTEXT, ["text"]) is expected
    assert await answer(stage, "one ", "two") == Checked("" if expected else "one two", expected)
    statistics = stage.statistics()
    assert statistics.failures[Side.INPUT, failure] == 1
    assert statistics.failures[Side.OUTPUT, failure] == 1
    assert sum(statistics.failures.values()) == 2
    assert [record.getMessage() for record in caplog.records] == ["safety_check_failed"] * 2
    stage.close()


@pytest.mark.parametrize(
    ("checker", "failure"),
    [("RaisingAtOnce", Failure.EXCEPTION), ("Rewriting", Failure.CONTRACT), ("Swallowing", Failure.CONTRACT)],
)
async def test_an_answer_that_a_checker_breaks_goes_on_as_it_was_fed_or_not_at_all(checker: str, failure: Failure) -> None:
    closed = stage_of(checker)
    assert await answer(closed, "one ", "two") == Checked("", FAILED)
    assert closed.statistics().failures[Side.OUTPUT, failure] == 1
    opened = stage_of(checker, on_failure=OnFailure.OPEN)
    assert await answer(opened, "one ", "two") == Checked("one two")
    closed.close()
    opened.close()


async def test_a_rule_that_failed_lets_nothing_pass_either(rules: Path) -> None:
    half_a_character = "a \ud83d heron"
    closed = stage_of(rules=written(rules.parent, RULES + '[[rules]]\nname = "regex"\nregex = "b.d"'))
    assert closed.check_input_now(CONTEXT, [half_a_character]) is FAILED
    assert closed.check_output_now(CONTEXT, half_a_character) == Checked("", FAILED)
    guard = closed.open_output(CONTEXT)
    assert await guard.feed("a \ud83d") == Checked("", FAILED)


async def test_what_callers_are_told_says_whether_the_same_text_may_come_again() -> None:
    refused = error_of(FOUND)
    assert isinstance(refused, SafetyRefused)
    assert (refused.status, refused.message, refused.is_retryable) == (400, "not this word", False)
    failed = error_of(FAILED)
    assert isinstance(failed, ServerFault)
    assert failed.is_retryable


async def test_a_checkers_own_words_are_made_fit_to_be_told() -> None:
    stage = stage_of("Ranting")
    finding = await stage.check_input(CONTEXT, ["text"])
    assert finding is not None
    assert finding.rule == "plugged_in"
    assert finding.message.startswith("?long")
    assert len(finding.message) == 500
    stage.close()


@pytest.mark.usefixtures("hanging")
async def test_with_every_thread_taken_further_checks_are_refused_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """As an overload: each was a 500 and an error line, in a burst of long texts with nothing wrong but their number."""
    stage = stage_of("Hanging")
    checks = [asyncio.create_task(stage.check_input(CONTEXT, [""])) for _ in range(NUM_THREADS + MAX_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as refused:
        await stage.check_input(CONTEXT, ["text"])
    assert (refused.value.retry_after_s, refused.value.refused) == (1, "capacity")
    assert stage.statistics().failures[Side.INPUT, Failure.BUSY] == 1
    assert await answer(stage, "text") == Checked("", FAILED)
    assert stage.statistics().findings[Side.INPUT, Verdict.REFUSE, FAILED.rule] == 0
    Hanging.release.set()
    assert await asyncio.gather(*checks) == [None] * len(checks)
    assert caplog.records == []
    assert await stage.check_input(CONTEXT, ["text"]) is None
    stage.close()


@pytest.mark.parametrize("checker", ["Hanging", "AsyncHanging"])
@pytest.mark.usefixtures("hanging")
async def test_a_request_whose_client_leaves_leaves_no_task_behind(checker: str) -> None:
    AsyncHanging.num_cancelled = 0
    stage = stage_of(checker)
    before = asyncio.all_tasks()
    for check in (stage.check_input(CONTEXT, ["text"]), stage.open_output(CONTEXT).feed("text")):
        task = asyncio.ensure_future(check)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert asyncio.all_tasks() == before
    assert AsyncHanging.num_cancelled == (2 if checker == "AsyncHanging" else 0)
    assert sum(stage.statistics().failures.values()) == 0
    Hanging.release.set()
    stage.close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tests.service.safety.checkers:", "is no name like"),
        ("tests.service.safety.nothing:Checker", "No module named"),
        ("tests.service.safety.checkers:Nothing", "has no attribute 'Nothing'"),
        ("tests.service.safety.checkers:Incomplete", "has no method check_output(context)"),
        ("tests.service.safety.checkers:WrongCall", "cannot be called as check_output(context)"),
        ("tests.service.safety.checkers:AsyncOpening", "check_output must be a plain method"),
        ("tests.service.safety.checkers:NotBorn", "OSError: no model here"),
    ],
)
def test_a_checker_that_cannot_work_is_told_at_start(name: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_checker(name)
    assert words in str(refused.value)
    assert name in str(refused.value)


async def test_metrics_know_every_finding_before_there_is_one() -> None:
    """A check that failed, and a plugged-in checker's first finding, each added a line to the page."""
    config = SafetyConfig(checker="examples.safety_checker:CardNumbers")
    stage = SafetyStage(config, models=("m",), tiers=("paid",), turns=Turns())
    before = set(stage.statistics().findings)
    finding = await stage.check_input(CONTEXT, ["pay with 4111 1111 1111 1111"])
    assert finding is not None
    stage.count(Side.OUTPUT, stage.fail(Side.OUTPUT, CheckFailed(Failure.TIMEOUT)))
    assert set(stage.statistics().findings) == before
    assert sum(stage.statistics().findings.values()) == 2
    stage.close()


async def test_metrics_know_every_rule_before_it_finds_anything(rules: Path) -> None:
    stage = stage_of(rules=rules)
    stage.check_input_now(CONTEXT, ["heron"])
    findings, failures = safety_metrics(stage.statistics())
    assert {tuple(sample.labels.values()): sample.value for sample in findings.samples} == {
        ("input", "refuse", "birds"): 1,
        ("output", "stop", "birds"): 0,
        ("input", "refuse", "check_failed"): 0,
        ("output", "refuse", "check_failed"): 0,
    }
    assert len(failures.samples) == len(Side) * len(Failure)


async def test_the_example_finds_card_numbers_and_nothing_else() -> None:
    config = SafetyConfig(checker="examples.safety_checker:CardNumbers")
    stage = SafetyStage(config, models=("smollm2",), tiers=("paid",), turns=Turns())
    assert await stage.check_input(CONTEXT, ["pay with 4111 1111 1111 1111"]) is not None
    assert await stage.check_input(CONTEXT, ["pay with 4111 1111 1111 1112"]) is None
    assert (await answer(stage, "it is 41", "11-1111-1111", "-1111.", " Bye")).text == "it is "
    assert await answer(stage, "it is 41", "11-1111-1111", "-1112.", " Bye") == Checked("it is 4111-1111-1111-1112. Bye")
    stage.close()
