"""What somebody else's checker gives back, held to its contract (batcher/service/safety/contract.py)."""

import re

from batcher.service.safety.calls import CheckFailed, Failure, Runner
from batcher.service.safety.contract import CheckContext, Checked, Checker, Finding, OutputCheck, Verdict

_RULE = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MAX_MESSAGE_CHARS = 500


def plugged_finding(result: object) -> Finding | None:
    """The finding, fit to be told and logged. Raises CheckFailed if it is none."""
    if result is None:
        return None
    if not isinstance(result, Finding) or not isinstance(result.rule, str) or not isinstance(result.message, str):
        raise CheckFailed(Failure.CONTRACT, TypeError(f"a finding must be a Finding or None, not {type(result).__name__}"))
    rule = result.rule if _RULE.fullmatch(result.rule) else "plugged_in"
    message = result.message[:_MAX_MESSAGE_CHARS].encode(errors="replace").decode()
    return Finding(Verdict(result.verdict), rule, message)


class PluggedAnswer:
    """One answer's way through a plugged-in checker."""

    def __init__(self, checker: Checker, context: CheckContext, runner: Runner) -> None:
        self._checker = checker
        self._context = context
        self._runner = runner
        self._check: OutputCheck | None = None
        self.pending = ""
        """What the check was fed and has not given back."""

    async def pass_on(self, text: str, *, is_last: bool) -> Checked:
        """What the check lets through of `text`, and of what it held before. Raises CheckFailed."""
        self.pending += text
        try:
            check = self._check = self._check or self._checker.check_output(self._context)
            feed, flush = check.feed, check.flush
        except Exception as error:
            raise CheckFailed(Failure.EXCEPTION, error) from None
        checked = self._accept(await self._runner.run(feed, text)) if text else Checked("")
        if not is_last or checked.finding is not None:
            return checked
        try:
            rest = self._accept(await self._runner.run(flush))
            if rest.finding is None and self.pending:
                what = f"{len(self.pending)} characters were not given back at the end"
                raise CheckFailed(Failure.CONTRACT, ValueError(what))
        except CheckFailed:
            self.pending = checked.text + self.pending  # It has not left.
            raise
        return Checked(checked.text + rest.text, rest.finding)

    def _accept(self, result: object) -> Checked:
        if not isinstance(result, Checked) or not isinstance(result.text, str):
            raise CheckFailed(Failure.CONTRACT, TypeError(f"it must give back a Checked, not {type(result).__name__}"))
        if not self.pending.startswith(result.text):
            raise CheckFailed(Failure.CONTRACT, ValueError("the text that it gave back is not what it was fed"))
        self.pending = self.pending[len(result.text) :]
        return Checked(result.text, plugged_finding(result.finding))
