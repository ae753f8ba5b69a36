"""A checker of one's own beside the rules of a file, or without any: no payment card numbers, in or out.

    batcher serve --safety-checker examples.safety_checker:CardNumbers

A list of phrases cannot say what a card number is: 13 to 19 digits, perhaps in groups, the last one a check digit (Luhn's).
The contract is explained in batcher/service/safety/contract.py.
"""

import re
from collections.abc import Sequence

from batcher.service.safety.contract import CheckContext, Checked, Finding, Verdict

_DIGITS = re.compile(r"\d(?:[ -]?\d){12,18}(?![ -]?\d)")
_END = re.compile(r"\d(?:[ -]?\d){0,18}[ -]?\Z")
"""What could go on as a card number."""

_FINDING = Finding(Verdict.STOP, "card-number", "card numbers are not allowed here")


class CardNumbers:
    """The checker: it keeps nothing from one request to the next."""

    def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        return _FINDING if any(_find(text) is not None for text in texts) else None

    def check_output(self, context: CheckContext) -> "_Answer":
        return _Answer()


class _Answer:
    """One answer."""

    def __init__(self) -> None:
        self._held = ""

    def feed(self, text: str) -> Checked:
        self._held += text
        end = _END.search(self._held)
        return self._release(end.start() if end is not None else len(self._held))

    def flush(self) -> Checked:
        return self._release(len(self._held))

    def _release(self, end: int) -> Checked:
        """What is held before `end`, where no number goes on."""
        found = _find(self._held[:end])
        free, self._held = self._held[: end if found is None else found], self._held[end:]
        return Checked(free, None if found is None else _FINDING)


def _find(text: str) -> int | None:
    """Where the first card number begins."""
    return next((match.start() for match in _DIGITS.finditer(text) if _has_check_digit(match[0])), None)


def _has_check_digit(number: str) -> bool:
    digits = [int(char) for char in reversed(number) if char.isdecimal()]
    doubled = sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2])
    return (sum(digits[::2]) + doubled) % 10 == 0
