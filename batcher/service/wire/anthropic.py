"""Anthropic's published Messages grammar, for a request with an `anthropic-version` header: complete enough for that vendor's
own client libraries, streamed and not.

    stream:       message_start · content_block_start · content_block_delta (each) · content_block_stop
                  · message_delta {stop_reason, usage} · message_stop                       or error, at any time
    not streamed: a message

An answer without a word has no content block in either.
"""

from datetime import UTC, datetime
from functools import lru_cache
from math import ceil
from typing import Literal

import msgspec

from batcher.core.admission.reservation import Standing
from batcher.errors import ServiceError
from batcher.service.conversation import Conversation
from batcher.service.wire import anthropic_body
from batcher.service.wire.dialect import AnswerHead
from batcher.service.wire.events import named_event
from batcher.service.wire.replies import Reply, error_reply, limits_of
from batcher.types import FinishReason, Usage


class _Text(msgspec.Struct, tag="text"):
    text: str


class _Message(msgspec.Struct, tag="message"):
    id: str
    role: Literal["assistant"]
    model: str
    content: list[_Text]
    stop_reason: FinishReason | None
    """Spelled as ours are."""
    stop_sequence: str | None
    usage: Usage


class _MessageStart(msgspec.Struct, tag="message_start"):
    message: _Message


class _TextDelta(msgspec.Struct, tag="text_delta"):
    text: str


class _BlockDelta(msgspec.Struct, tag="content_block_delta"):
    index: int
    delta: _TextDelta


class _Stop(msgspec.Struct):
    stop_reason: FinishReason
    stop_sequence: str | None


class _MessageDelta(msgspec.Struct, tag="message_delta"):
    delta: _Stop
    usage: Usage


class _ErrorDetail(msgspec.Struct, omit_defaults=True):
    type: str
    message: str
    retry_after_s: int | None = None
    """Ours: the same as the header."""


class _ErrorBody(msgspec.Struct, tag="error"):
    error: _ErrorDetail
    request_id: str


class _Count(msgspec.Struct):
    input_tokens: int


_encoder = msgspec.json.Encoder()

_BLOCK_START = named_event(
    b"content_block_start", b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}'
)
_BLOCK_STOP = named_event(b"content_block_stop", b'{"type":"content_block_stop","index":0}')
_MESSAGE_STOP = named_event(b"message_stop", b'{"type":"message_stop"}')
_PING = named_event(b"ping", b'{"type":"ping"}')


def _message_id(request_id: str) -> str:
    return f"msg_{request_id}"


def _error_body(error: ServiceError, request_id: str) -> bytes:
    # The grammar has no word for trouble with an Idempotency-Key, and its clients go by the status.
    type_ = "invalid_request_error" if error.type == "idempotency_error" else error.type
    return _encoder.encode(_ErrorBody(_ErrorDetail(type_, error.message, error.retry_after_s), request_id))


class _Writer:
    """An EventWriter. `_is_open` once the answer's one content block has begun."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head
        self._is_open = False

    def start(self) -> bytes:
        """It tells nothing of how the answer ends (B70)."""
        head = self._head
        usage = Usage(head.num_input_tokens, 0)
        message = _Message(_message_id(head.id), "assistant", head.model, [], None, None, usage)
        return named_event(b"message_start", _encoder.encode(_MessageStart(message)))

    def delta(self, text: str) -> bytes:
        delta = named_event(b"content_block_delta", _encoder.encode(_BlockDelta(0, _TextDelta(text))))
        if self._is_open:
            return delta
        self._is_open = True
        return _BLOCK_START + delta

    def stop(self, finish: FinishReason, stop_sequence: str | None, usage: Usage) -> bytes:
        end = named_event(b"message_delta", _encoder.encode(_MessageDelta(_Stop(finish, stop_sequence), usage)))
        return (_BLOCK_STOP if self._is_open else b"") + end + _MESSAGE_STOP

    def error(self, error: ServiceError) -> bytes:
        return named_event(b"error", _error_body(error, self._head.id))

    def ping(self) -> bytes:
        return _PING


class _Anthropic:
    """A Dialect, with a route of its own for counting tokens."""

    name = "anthropic"
    request_id_names: tuple[bytes, ...] = (b"request-id",)

    def decode(self, body: bytes) -> Conversation:
        return anthropic_body.decode(body)

    def decode_count(self, body: bytes) -> Conversation:
        """The body of `POST /v1/messages/count_tokens`. Raises InvalidRequest."""
        return anthropic_body.decode_count(body)

    def encode_count(self, num_tokens: int) -> bytes:
        return _encoder.encode(_Count(num_tokens))

    def encode_answer(
        self, head: AnswerHead, content: str, finish: FinishReason, stop_sequence: str | None, usage: Usage
    ) -> bytes:
        blocks = [_Text(content)] if content else []
        return _encoder.encode(_Message(_message_id(head.id), "assistant", head.model, blocks, finish, stop_sequence, usage))

    def open_stream(self, head: AnswerHead, conversation: Conversation) -> _Writer:
        return _Writer(head)

    def error_reply(self, error: ServiceError, request_id: str) -> Reply:
        return error_reply(error, _error_body(error, request_id), request_id)

    def limit_headers(self, standing: Standing, *, now: float) -> list[tuple[bytes, bytes]]:
        """`anthropic-ratelimit-requests-limit`, `-remaining` and `-reset` (the instant, RFC 3339), and the same of tokens."""
        headers = []
        for kind, limit, remaining, reset_s in limits_of(standing):
            prefix = b"anthropic-ratelimit-" + kind
            headers += [
                (prefix + b"-limit", b"%d" % limit),
                (prefix + b"-remaining", b"%d" % remaining),
                (prefix + b"-reset", _spell_instant(ceil(now + reset_s))),
            ]
        return headers


@lru_cache(maxsize=256)
def _spell_instant(at: int) -> bytes:
    """RFC 3339. Rounded up it is surely true by then."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ").encode("ascii")


ANTHROPIC = _Anthropic()

DOCUMENTED: dict[str, type] = {
    "AnthropicMessage": _Message,
    "AnthropicTokenCount": _Count,
    "AnthropicError": _ErrorBody,
}
"""For the OpenAPI document, by the names that they have there."""
