"""The safety stage of a request's path (SPEC S3.6): rules first, then the plugged-in checker, and what becomes of a request
where either of them fails.

    finding = await stage.check_input(context, texts)        # a finding: raise error_of(finding)
    guard = stage.open_output(context)
    checked = await guard.feed(text)                         # for each piece: checked.text may go out
    checked = await guard.flush()                            # when the answer is complete

An answer ends with its first finding, after `checked.text`. If nothing has been sent, nor is in `checked.text`, a finding whose
verdict is REFUSE is told by `error_of`; every other one ends the answer with FinishReason.REFUSAL. Either way what has left is
billed, and nothing else. Where `can_check_now`, the `..._now` methods do the same without a coroutine.

A failing checker is closed by default: whoever can make it fail could otherwise switch it off. What it held back never leaves
then. One that has too many calls waiting is busy: before an answer that is an overload like any other.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from batcher.config import OnFailure, SafetyConfig
from batcher.errors import Overloaded, SafetyRefused, ServerFault, ServiceError
from batcher.service import log
from batcher.service.records import Refused
from batcher.service.safety.calls import CheckFailed, Failure, Runner
from batcher.service.safety.contract import CheckContext, Checked, Checker, Finding, Verdict
from batcher.service.safety.loading import load_checker
from batcher.service.safety.long_texts import LongTexts
from batcher.service.safety.plugged import PluggedAnswer, plugged_finding
from batcher.service.safety.rulebook import AnswerScan, RuleBook
from batcher.service.safety.rules import load_rules
from batcher.service.threads import Busy
from batcher.service.turns import Turns

MAX_INLINE_CHARS = 20_000
"""Looked through on the event loop at once: 0.1 ms as a rule, 50 ms by the worst pattern that one rule may have. Longer text is
for `long_texts.py`."""

PLUGGED = "plugged_in"
"""The rule of all findings of a plugged-in checker, in metrics: it may name as many rules as it likes."""

FAILED = Finding(Verdict.REFUSE, "check_failed", "the safety check failed, and nothing passes without it")
"""The finding of a check that failed, where that is closed."""

_BUSY_RETRY_AFTER_S = 1
"""What waits is looked through within it, as a rule."""


class Side(StrEnum):
    INPUT = "input"
    OUTPUT = "output"


_PLUGGED_FINDINGS = ((Side.INPUT, Verdict.REFUSE), (Side.OUTPUT, Verdict.REFUSE), (Side.OUTPUT, Verdict.STOP))


class SafetyStatistics(msgspec.Struct, frozen=True):
    """Counted since the start; all that can occur is there from the beginning: nobody makes the page of metrics grow."""

    findings: dict[tuple[Side, Verdict, str], int]
    """By side, verdict and rule: names of the file's rules, `plugged_in` and `check_failed`."""
    failures: dict[tuple[Side, Failure], int]


def error_of(finding: Finding) -> ServiceError:
    """What the caller is told where no answer has begun."""
    return ServerFault(FAILED.message) if finding is FAILED else SafetyRefused(finding.message)


class SafetyStage:
    """One for the whole service; lives on its event loop. Its birth raises ConfigError for what cannot work."""

    def __init__(self, config: SafetyConfig, *, models: tuple[str, ...], tiers: tuple[str, ...], turns: Turns) -> None:
        self._is_open = config.on_failure is OnFailure.OPEN
        rules = load_rules(config.rules, models=models, tiers=tiers) if config.rules is not None else ()
        self._book = RuleBook(rules)
        self._checker: Checker | None = load_checker(config.checker) if config.checker is not None else None
        self.long_texts = LongTexts(turns)
        self._plugged_runner = Runner(config.timeout_s)
        self.is_inline = self._checker is None
        """Whether the `..._now` methods do all there is to do."""
        self._findings = {
            (side, verdict, rule.name): 0
            for rule in rules
            for side, verdict, is_checked in (
                (Side.INPUT, Verdict.REFUSE, rule.is_of_input),
                (Side.OUTPUT, rule.verdict, rule.is_of_output),
            )
            if is_checked
        }
        if self._checker is not None:
            self._findings |= dict.fromkeys(((side, verdict, PLUGGED) for side, verdict in _PLUGGED_FINDINGS), 0)
        if not self._is_open:
            self._findings |= dict.fromkeys(((side, FAILED.verdict, FAILED.rule) for side in Side), 0)
        self._failures = {(side, failure): 0 for side in Side for failure in Failure}

    async def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        """`texts` are the contents of the request's messages. Raises Overloaded if too many checks wait: for rules whatever the
        policy, as no text of a client's must keep another's from being looked at; for a checker where it is closed."""
        if sum(map(len, texts)) <= MAX_INLINE_CHARS:
            found = self.check_input_now(context, texts)
        else:
            try:
                found = await self._find_long_input(context, texts)
            except Busy:
                self._failures[Side.INPUT, Failure.BUSY] += 1
                raise _too_many_wait() from None
            except Exception as error:
                found = self.fail(Side.INPUT, CheckFailed(Failure.EXCEPTION, error))
            self.count(Side.INPUT, found)
        if found is None and self._checker is not None:
            try:
                found = plugged_finding(await self._plugged_runner.run(self._checker.check_input, context, texts))
            except CheckFailed as failed:
                return self.count(Side.INPUT, self._fail_input(failed))
            found = found and Finding(Verdict.REFUSE, found.rule, found.message)
            self.count(Side.INPUT, found, PLUGGED)
        return found

    def can_check_now(self, num_chars: int) -> bool:
        """Whether so much text is soon looked through by `check_input_now` or `check_output_now`."""
        return self.is_inline and num_chars <= MAX_INLINE_CHARS

    def check_input_now(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        """By the rules."""
        try:
            found = self._book.check_input(context, texts)
        except Exception as error:
            found = self.fail(Side.INPUT, CheckFailed(Failure.EXCEPTION, error))
        return found if found is None else self.count(Side.INPUT, found)

    def check_output_now(self, context: CheckContext, text: str) -> Checked:
        """An answer that is there at once: what of it may go out by the rules."""
        try:
            checked = self._book.check_whole(context, text)
        except Exception as error:
            failed = self.fail(Side.OUTPUT, CheckFailed(Failure.EXCEPTION, error))
            checked = Checked("" if failed else text, failed)
        if checked.finding is not None:
            self.count(Side.OUTPUT, checked.finding)
        return checked

    def open_output(self, context: CheckContext) -> "AnswerGuard":
        """For one answer."""
        plugged = PluggedAnswer(self._checker, context, self._plugged_runner) if self._checker is not None else None
        return AnswerGuard(self, self._book.check_output(context), plugged, tenant=context.tenant)

    def count(self, side: Side, finding: Finding | None, rule: str | None = None) -> Finding | None:
        """Returns the finding. `rule` is its name in metrics, where that is not its own."""
        if finding is not None:
            key = (side, finding.verdict, rule or finding.rule)
            self._findings[key] = self._findings.get(key, 0) + 1
        return finding

    def fail(self, side: Side, failed: CheckFailed) -> Finding | None:
        """What a failure means: nothing where that is open."""
        self._failures[side, failed.failure] += 1
        if failed.failure is not Failure.BUSY:  # That is load and no fault, and in an overload there would be no end of lines.
            log.error(
                "safety_check_failed", exc_info=failed.__cause__, side=side, failure=failed.failure, is_open=self._is_open
            )
        return None if self._is_open else FAILED

    def _fail_input(self, failed: CheckFailed) -> Finding | None:
        """Where nothing is computed yet. Raises Overloaded: a check that was not begun has not failed, and may soon be made."""
        found = self.fail(Side.INPUT, failed)
        if found is not None and failed.failure is Failure.BUSY:
            raise _too_many_wait() from None
        return found

    async def _find_long_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        rules = self._book.input_rules(context)
        match = None if rules is None else await self.long_texts.first_in(rules, texts, tenant=context.tenant)
        return None if rules is None or match is None else rules.refusal(match)

    def statistics(self) -> SafetyStatistics:
        return SafetyStatistics(dict(self._findings), dict(self._failures))

    def close(self) -> None:
        self.long_texts.close()
        self._plugged_runner.close()


def _too_many_wait() -> Overloaded:
    return Overloaded("too many safety checks wait", retry_after_s=_BUSY_RETRY_AFTER_S, refused=Refused.CAPACITY)


class AnswerGuard:
    """One answer's checks. Nothing is called after a finding; dropping it half way is fine."""

    def __init__(self, stage: SafetyStage, scan: AnswerScan | None, plugged: PluggedAnswer | None, *, tenant: str) -> None:
        self._stage = stage
        self._tenant = tenant
        self._scan = scan
        self._plugged = plugged

    async def feed(self, text: str) -> Checked:
        """What may go out now. `text` is not empty."""
        return await self._pass_on(await self._scan_text(text, is_last=False), is_last=False)

    async def flush(self) -> Checked:
        """The rest."""
        return await self._pass_on(await self._scan_text("", is_last=True), is_last=True)

    async def _scan_text(self, text: str, *, is_last: bool) -> Checked:
        scan = self._scan
        if scan is None:
            return Checked(text)
        held = scan.held
        try:
            if is_last:
                checked = scan.flush()
            elif len(text) <= MAX_INLINE_CHARS:
                checked = scan.feed(text)
            else:
                checked = await self._stage.long_texts.feed(scan, text, tenant=self._tenant)
        except Exception as error:
            failed = self._stage.fail(Side.OUTPUT, CheckFailed(Failure.EXCEPTION, error))
            self._scan = None
            checked = Checked("" if failed else held + text, failed)
        self._stage.count(Side.OUTPUT, checked.finding)
        return checked

    async def _pass_on(self, scanned: Checked, *, is_last: bool) -> Checked:
        """What the rules let through, to the plugged-in checker. It is the last for it, too, if the rules found something."""
        if self._plugged is None or scanned.finding is FAILED:
            return scanned
        try:
            checked = await self._plugged.pass_on(scanned.text, is_last=is_last or scanned.finding is not None)
        except CheckFailed as failed:
            failure = self._stage.fail(Side.OUTPUT, failed)
            rest, self._plugged = self._plugged.pending, None
            self._stage.count(Side.OUTPUT, failure)
            return Checked("", failure) if failure is not None else Checked(rest, scanned.finding)
        self._stage.count(Side.OUTPUT, checked.finding, PLUGGED)
        return Checked(checked.text, checked.finding or scanned.finding)
