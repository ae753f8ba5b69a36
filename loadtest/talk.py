"""What the client needs of an endpoint: the bytes of a request, and somebody who hears the answer.

The client knows connections and time; an endpoint knows its own grammar. An `Exchange` is one request and its answer: it is
fed the body as it arrives, with the instant of each read, so that streams can be timed and whole answers need no second
path.
"""

from typing import Protocol

from loadtest.samples import Ending, Samples
from loadtest.target import Questions, SplitUrl, Wire

MAX_ERROR_CHARS = 200
"""Of a server's error text: enough for its sentence, and not a page of HTML."""


class Exchange(Protocol):
    """One request and its answer. Fed by the connection that carries it; instants are seconds from the start of the run."""

    def feed(self, status: int, data: bytes, at: float) -> None:
        """A piece of the answer's body came."""
        ...

    def end(self, status: int) -> tuple[Ending, object]:
        """The answer is whole: how the request ended, and the answer's id (None where it has none, or is no success)."""
        ...

    def cut(self) -> Ending:
        """The connection died, or carried no HTTP, before the answer was whole."""
        ...

    def error_body(self) -> bytes:
        """What the server said of its error, where it ended in one of `SERVER_ERRORS`."""
        ...


class Talk(Protocol):
    """All exchanges of a run."""

    @property
    def address(self) -> SplitUrl: ...

    def begin(self, row: int) -> tuple[bytes, Exchange]:
        """The request of this row as it goes out, and who hears its answer."""
        ...


class WholeExchange:
    """An answer that is judged when it is whole."""

    __slots__ = ("_body", "_is_poison", "_question", "_wire")

    def __init__(self, wire: Wire, question: str, is_poison: bool) -> None:
        self._wire = wire
        self._question = question
        self._is_poison = is_poison
        self._body = b""

    def feed(self, status: int, data: bytes, at: float) -> None:
        self._body = self._body + data if self._body else data

    def end(self, status: int) -> tuple[Ending, object]:
        return self._wire.judge(status, self._body, self._question, self._is_poison)

    def cut(self) -> Ending:
        return Ending.TRANSPORT

    def error_body(self) -> bytes:
        return self._body


def quote_error(status: int, body: bytes) -> str:
    """The status and the beginning of the text, on one line: whatever a terminal would obey is a space."""
    said = body[: 8 * MAX_ERROR_CHARS].decode(errors="replace")
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in said).split())
    if len(words) > MAX_ERROR_CHARS:
        words = words[: MAX_ERROR_CHARS - 1] + "…"
    return f"HTTP {status}: {words}" if words else f"HTTP {status} without a text"


class RunTalk:
    """Questions by a template, and answers that must belong to them."""

    def __init__(self, wire: Wire, questions: Questions, samples: Samples) -> None:
        self._wire = wire
        self._questions = questions
        self._samples = samples

    @property
    def address(self) -> SplitUrl:
        return self._wire.address

    def begin(self, row: int) -> tuple[bytes, Exchange]:
        samples = self._samples
        is_poison = bool(samples.is_poison[row])
        question = self._questions.text(row, is_poison)
        return self._wire.request(samples.sender[row], question), WholeExchange(self._wire, question, is_poison)
