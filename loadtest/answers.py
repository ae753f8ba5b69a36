"""Hears the answers of `POST /v1/messages`, streamed or whole, times them, and doubts them.

A status of 200 says only that an answer began. So an answer is good when it said that it is whole, once, and what it says of
itself is possible: an id, a stop reason of the closed set, no more output tokens than were asked for, and a prompt of some.
An error event, and a stream that just ends, are failures of their own kinds. Costs about 5 microseconds of CPU an event.
"""

from typing import Protocol

import msgspec

from loadtest.events import EventReader, EventTooLong
from loadtest.samples import Ending
from loadtest.talk import MAX_ERROR_CHARS
from loadtest.target import judge_status
from loadtest.tokens import MAX_COUNT, STOP_REASONS, Hearing, Tokens

_MAX_ERROR_BYTES = 8 * MAX_ERROR_CHARS
"""An error that is streamed without end is read over, not kept."""

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, EventTooLong, RecursionError)


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int


class _Event(msgspec.Struct, frozen=True):
    """Any event: what is not its own is at its default."""

    type: str = ""
    id: str = ""
    text: str = ""
    stop_reason: str | None = None
    usage: _Usage | None = None


class _Whole(msgspec.Struct, frozen=True):
    id: str
    content: str
    stop_reason: str
    usage: _Usage


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_whole = msgspec.json.Decoder(_Whole).decode


class Listener(Protocol):
    """Wants the text of a good answer, for the turn that follows it."""

    def take_answer(self, text: str) -> None: ...


class StreamedAnswer:
    """One answer as server-sent events. Its text is kept only where somebody listens to it."""

    __slots__ = (
        "_error", "_hearing", "_id", "_is_begun", "_is_error", "_is_wrong", "_listener", "_reader", "_row", "_stop",
        "_texts", "_tokens",
    )  # fmt: skip

    def __init__(self, tokens: Tokens, row: int, listener: Listener | None) -> None:
        self._tokens = tokens
        self._row = row
        self._listener = listener
        self._reader = EventReader()
        self._hearing = Hearing()
        self._texts: list[str] = []
        self._id = ""
        self._stop: _Event | None = None
        self._error = b""
        """As much as is shown of an error's body, or the error event."""
        self._is_begun = False
        """Some of a 2xx body came."""
        self._is_error = False
        self._is_wrong = False
        """Something came that the grammar does not allow."""

    def feed(self, status: int, data: bytes, at: float) -> None:
        if not 200 <= status < 300:
            if len(self._error) < _MAX_ERROR_BYTES:
                self._error += data
            return
        self._is_begun = True
        try:
            for name, body in self._reader.feed(data):
                self._hear(name, body, at)
        except _UNREADABLE:
            self._is_wrong = True

    def end(self, status: int) -> tuple[Ending, object]:
        if not 200 <= status < 300:
            return judge_status(status), None
        self._hearing.write(self._tokens, self._row)
        if self._is_error:
            return Ending.STREAM_ERROR, self._id or None
        if self._is_wrong:
            return Ending.MISMATCHED, self._id or None
        stop = self._stop
        if stop is None:
            return Ending.STREAM_CUT, self._id or None
        if not self._id or not _keep(self._tokens, self._row, stop.stop_reason, stop.usage):
            return Ending.MISMATCHED, self._id or None
        self._tokens.keep_gaps(self._row, self._hearing.gaps_s)
        if self._listener is not None:
            self._listener.take_answer("".join(self._texts))
        return Ending.OK, self._id

    def cut(self) -> Ending:
        if not self._is_begun:
            return Ending.TRANSPORT
        self._hearing.write(self._tokens, self._row)
        return Ending.STREAM_CUT

    def error_body(self) -> bytes:
        return self._error

    def _hear(self, name: str, body: bytes, at: float) -> None:
        """One event. Those of unknown names are let pass: a server may tell more than is asked."""
        if name == "ping":
            return
        event = _decode_event(body)
        kind = name or event.type
        if kind == "content_delta":
            self._is_wrong |= not self._id or self._stop is not None
            if event.text:
                self._hearing.hear(at)
                if self._listener is not None:
                    self._texts.append(event.text)
        elif kind == "message_start":
            self._is_wrong |= bool(self._id) or not event.id
            self._id = event.id
        elif kind == "message_stop":
            self._is_wrong |= self._stop is not None
            self._stop = event
        elif kind == "error":
            self._is_error = True
            self._error = self._error or body


class WholeAnswer:
    """One answer that comes in one piece: its tokens are counted, and none of its times is known."""

    __slots__ = ("_body", "_listener", "_row", "_tokens")

    def __init__(self, tokens: Tokens, row: int, listener: Listener | None) -> None:
        self._tokens = tokens
        self._row = row
        self._listener = listener
        self._body = b""

    def feed(self, status: int, data: bytes, at: float) -> None:
        self._body += data

    def end(self, status: int) -> tuple[Ending, object]:
        if not 200 <= status < 300:
            return judge_status(status), None
        try:
            answer = _decode_whole(self._body)
        except _UNREADABLE:
            return Ending.MISMATCHED, None
        if not answer.id or not _keep(self._tokens, self._row, answer.stop_reason, answer.usage):
            return Ending.MISMATCHED, answer.id or None
        if self._listener is not None:
            self._listener.take_answer(answer.content)
        return Ending.OK, answer.id

    def cut(self) -> Ending:
        return Ending.TRANSPORT

    def error_body(self) -> bytes:
        return self._body


def _keep(tokens: Tokens, row: int, stop_reason: str | None, usage: _Usage | None) -> bool:
    """Write what the answer says of itself into the row, if that is possible; whether it is."""
    if usage is None or stop_reason not in STOP_REASONS:
        return False
    if not 0 < usage.input_tokens <= MAX_COUNT or not 0 <= usage.output_tokens <= tokens.max_tokens[row]:
        return False
    tokens.input_tokens[row] = usage.input_tokens
    tokens.output_tokens[row] = usage.output_tokens
    tokens.stop_reason[row] = STOP_REASONS[stop_reason]
    return True
