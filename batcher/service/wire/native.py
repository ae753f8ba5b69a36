"""The native grammar of `POST /v1/messages` (SPEC S4): a body to a Conversation, an answer to a document or to events.

stream:       message_start {id, model} · content_delta {text} · message_stop {stop_reason, usage}    or error, at any time
not streamed: {id, content, stop_reason, usage}
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from batcher.core.admission.reservation import Standing
from batcher.errors import ServiceError
from batcher.service.conversation import Conversation
from batcher.service.wire.decoding import (
    MAX_SEED,
    MAX_STOP_SEQUENCES,
    MaxTokens,
    StopSequence,
    TopK,
    TopP,
    decode_body,
    draw_seed,
    join_text,
    refuse_empty,
)
from batcher.service.wire.dialect import AnswerHead
from batcher.service.wire.events import named_event
from batcher.service.wire.replies import Reply, error_reply, ratelimit_headers
from batcher.types import FinishReason, Message, Sampling, Usage

_EXAMPLE = '{"model": "...", "messages": [{"role": "user", "content": "..."}], "max_tokens": 100}'


class TextBlock(msgspec.Struct, tag="text", forbid_unknown_fields=True):
    text: str


class _Turn(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str | list[TextBlock]


class _Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    messages: Annotated[list[_Turn], Meta(min_length=1)]
    max_tokens: MaxTokens
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] = 1.0
    top_p: TopP = 1.0
    top_k: TopK = 0
    stop_sequences: Annotated[list[StopSequence], Meta(max_length=MAX_STOP_SEQUENCES)] = []
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] | None = None
    stream: bool = False


class _Answer(msgspec.Struct):
    id: str
    content: str
    stop_reason: FinishReason
    usage: Usage


class _Start(msgspec.Struct, tag="message_start"):
    id: str
    model: str


class _Delta(msgspec.Struct, tag="content_delta"):
    text: str


class _Stop(msgspec.Struct, tag="message_stop"):
    stop_reason: FinishReason
    usage: Usage


class _ErrorDetail(msgspec.Struct):
    type: str
    message: str
    retry_after_s: int | None
    """The same as the header."""


class _ErrorBody(msgspec.Struct, tag="error"):
    """Of every route that has no vendor's grammar (DESIGN D6)."""

    error: _ErrorDetail
    request_id: str


_decoder = msgspec.json.Decoder(_Body)
_encoder = msgspec.json.Encoder()

_PING = named_event(b"ping", b'{"type":"ping"}')
"""Says that the stream lives, to proxies that cut what is silent for a minute."""


def _error_body(error: ServiceError, request_id: str) -> bytes:
    return _encoder.encode(_ErrorBody(_ErrorDetail(error.type, error.message, error.retry_after_s), request_id))


def _hint(text: str) -> str | None:
    if text.endswith("missing required field `max_tokens`"):
        return "max_tokens is required: it is the most tokens that the answer may have, and capacity is reserved with it"
    if text.endswith("unknown field `system`"):
        return text + ': a system prompt is a message, the first one: {"role": "system", "content": "..."}'
    if text.endswith(".role`"):
        return text + ": it must be system, user or assistant"
    return None


class _Writer:
    """An EventWriter."""

    def __init__(self, head: AnswerHead) -> None:
        self._head = head

    def start(self) -> bytes:
        return named_event(b"message_start", _encoder.encode(_Start(self._head.id, self._head.model)))

    def delta(self, text: str) -> bytes:
        return named_event(b"content_delta", _encoder.encode(_Delta(text)))

    def stop(self, finish: FinishReason, stop_sequence: str | None, usage: Usage) -> bytes:
        return named_event(b"message_stop", _encoder.encode(_Stop(finish, usage)))

    def error(self, error: ServiceError) -> bytes:
        """The body that every error has, as an event."""
        return named_event(b"error", _error_body(error, self._head.id))

    def ping(self) -> bytes:
        return _PING


def _message(turn: _Turn, number: int) -> Message:
    return Message(turn.role, join_text(turn.content) or refuse_empty(f"message {number}"))


class _Native:
    """A Dialect."""

    name = "native"
    request_id_names: tuple[bytes, ...] = ()

    def decode(self, body: bytes) -> Conversation:
        parsed = decode_body(_decoder, body, example=_EXAMPLE, hint=_hint)
        return Conversation(
            model=parsed.model,
            messages=tuple([_message(turn, number) for number, turn in enumerate(parsed.messages)]),
            max_tokens=parsed.max_tokens,
            sampling=Sampling(
                temperature=parsed.temperature,
                top_p=parsed.top_p,
                top_k=parsed.top_k,
                seed=draw_seed() if parsed.seed is None else parsed.seed,
            ),
            stop_sequences=tuple(parsed.stop_sequences),
            is_streamed=parsed.stream,
        )

    def encode_answer(
        self, head: AnswerHead, content: str, finish: FinishReason, stop_sequence: str | None, usage: Usage
    ) -> bytes:
        return _encoder.encode(_Answer(head.id, content, finish, usage))

    def open_stream(self, head: AnswerHead, conversation: Conversation) -> _Writer:
        return _Writer(head)

    def error_reply(self, error: ServiceError, request_id: str) -> Reply:
        return error_reply(error, _error_body(error, request_id), request_id)

    def limit_headers(self, standing: Standing, *, now: float) -> list[tuple[bytes, bytes]]:
        """`x-ratelimit-limit-requests`, `-remaining-`, `-reset-` (in whole seconds), and the same of tokens."""
        return ratelimit_headers(standing, b"%d")


NATIVE = _Native()

DOCUMENTED: dict[str, type] = {"MessageRequest": _Body, "MessageAnswer": _Answer, "Error": _ErrorBody}
"""For the OpenAPI document, by the names that they have there."""
