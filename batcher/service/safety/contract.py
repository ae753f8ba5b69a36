"""What a safety checker is: two methods, for rules from a file and for anybody's own `MODULE:ATTR` alike.

    class Checker:
        def check_input(self, context, texts): ...      # a Finding, or None if nothing is wrong
        def check_output(self, context): ...            # an OutputCheck: one for each answer

    class OutputCheck:
        def feed(self, text): ...                       # a Checked: what may go out now, and a Finding if there is one
        def flush(self): ...                            # a Checked: the answer is complete

`check_input`, `feed` and `flush` may be coroutine functions: those are awaited on the event loop and must not block it. Plain
ones run on a thread of a small pool, several at once for different requests but never two for one answer. All have
`safety_timeout` to return, and what raises or is late follows `safety_failure`.

The text that leaves is given back and not merely approved, since a phrase may be split over two pieces of an answer: a check
keeps to itself what could still become something that it forbids. What it has given back, joined, is the beginning of what it
was fed, and after a flush without a finding all of it. A check that changes the text breaks the contract: usage is billed by
tokens, and stop sequences were found before.
"""

from collections.abc import Awaitable, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec


class Verdict(StrEnum):
    """What a finding in an answer means. A finding in the input is always refused: there is no answer yet that could stop."""

    REFUSE = "refuse"
    """An error (400) if nothing of the answer has been sent; otherwise as the next."""
    STOP = "stop"
    """The answer ends before what was found, with the stop reason `refusal`."""


class CheckContext(msgspec.Struct, frozen=True, gc=False):
    """Whose text it is."""

    tenant: str
    """The key's owner."""
    tier: str
    """The name of a configured tier."""
    model: str
    """As it is called here."""


class Finding(msgspec.Struct, frozen=True, gc=False):
    """Something that must not pass."""

    verdict: Verdict
    rule: str
    """The name of the rule; never shown to the caller."""
    message: str
    """What the caller is told."""


class Checked(msgspec.Struct, frozen=True, gc=False):
    """What may go out now. With a finding, it is the last of the answer."""

    text: str
    finding: Finding | None = None


class OutputCheck(Protocol):
    """Sees one answer, piece by piece. Nothing is called after a finding, nor after `flush`, which may never come."""

    def feed(self, text: str) -> Checked | Awaitable[Checked]:
        """`text` is never empty."""
        ...

    def flush(self) -> Checked | Awaitable[Checked]:
        """No more text comes: gives back the rest."""
        ...


class Checker(Protocol):
    """One for the whole service."""

    def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | Awaitable[Finding | None] | None:
        """`texts` are the messages of one request, in order."""
        ...

    def check_output(self, context: CheckContext) -> OutputCheck:
        """A plain method that only makes the object: it is called on the event loop."""
        ...
