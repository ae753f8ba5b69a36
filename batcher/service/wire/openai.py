"""OpenAI's published chat completions grammar, complete enough for that vendor's own client libraries and for load tools.

stream:       chat.completion.chunk with the role · one for each delta · one with finish_reason · (usage) · [DONE]
not streamed: a chat.completion
"""

from typing import Literal

import msgspec

from batcher.core.admission.reservation import Standing
from batcher.errors import ModelNotFound, NotAuthenticated, PromptTooLong, RateLimited, SafetyRefused, ServiceError
from batcher.service.conversation import Conversation
from batcher.service.wire import openai_body
from batcher.service.wire.dialect import AnswerHead
from batcher.service.wire.events import comment, unnamed_event
from batcher.service.wire.replies import Reply, error_reply, ratelimit_headers
from batcher.types import FinishReason, Usage

_FINISH_REASONS: dict[FinishReason, str] = {
    FinishReason.END_TURN: "stop",
    FinishReason.STOP_SEQUENCE: "stop",
    FinishReason.MAX_TOKENS: "length",
    FinishReason.REFUSAL: "content_filter",
}

_CODES: dict[type[ServiceError], str] = {
    NotAuthenticated: "invalid_api_key",
    ModelNotFound: "model_not_found",
    PromptTooLong: "context_length_exceeded",
    RateLimited: "rate_limit_exceeded",
    SafetyRefused: "content_filter",
}
"""Of errors that the grammar has a code for."""


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class _Message(msgspec.Struct):
    content: str
    role: Literal["assistant"] = "assistant"
    refusal: None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str
    index: int = 0
    logprobs: None = None


class _Completion(msgspec.Struct, tag_field="object", tag="chat.completion"):
    id: str
    created: int
    model: str
    choices: list[_Choice]
    usage: _Usage


class _Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class _ChunkChoice(msgspec.Struct):
    delta: _Delta
    finish_reason: str | None = None
    index: int = 0
    logprobs: None = None


class _Chunk(msgspec.Struct, tag_field="object", tag="chat.completion.chunk", omit_defaults=True):
    id: str
    created: int
    model: str
    choices: list[_ChunkChoice]
    usage: _Usage | msgspec.UnsetType | None = msgspec.UNSET
    """Unset unless the caller wants it; then null in all chunks but the last."""


class _ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    """The field of the request that is wrong, where it is one."""
    code: str | None
    retry_after_s: int | msgspec.UnsetType = msgspec.UNSET
    """Ours: the same as the header, where there is one."""


class _ErrorBody(msgspec.Struct):
    error: _ErrorDetail


_encoder = msgspec.json.Encoder()

_DONE = unnamed_event(b"[DONE]")
_PING = comment(b"ping")


def _completion_id(request_id: str) -> str:
    return f"chatcmpl-{request_id}"


def _usage(usage: Usage) -> _Usage:
    return _Usage(usage.input_tokens, usage.output_tokens, usage.input_tokens + usage.output_tokens)


def _error_body(error: ServiceError) -> bytes:
    code = next((code for class_, code in _CODES.items() if isinstance(error, class_)), None)
    retry_after_s = msgspec.UNSET if error.retry_after_s is None else error.retry_after_s
    return _encoder.encode(_ErrorBody(_ErrorDetail(error.message, error.type, error.param, code, retry_after_s)))


class _Writer:
    """An EventWriter."""

    def __init__(self, head: AnswerHead, *, tells_usage: bool) -> None:
        self._head = head
        self._tells_usage = tells_usage

    def start(self) -> bytes:
        return self._choice(_ChunkChoice(_Delta("assistant", "")))

    def delta(self, text: str) -> bytes:
        return self._choice(_ChunkChoice(_Delta(content=text)))

    def stop(self, finish: FinishReason, stop_sequence: str | None, usage: Usage) -> bytes:
        end = self._choice(_ChunkChoice(_Delta(), _FINISH_REASONS[finish]))
        return end + (self._chunk([], _usage(usage)) if self._tells_usage else b"") + _DONE

    def error(self, error: ServiceError) -> bytes:
        """No end mark after it: nobody may take what came for a whole answer."""
        return unnamed_event(_error_body(error))

    def ping(self) -> bytes:
        return _PING

    def _choice(self, choice: _ChunkChoice) -> bytes:
        return self._chunk([choice], None if self._tells_usage else msgspec.UNSET)

    def _chunk(self, choices: list[_ChunkChoice], usage: _Usage | msgspec.UnsetType | None) -> bytes:
        head = self._head
        return unnamed_event(_encoder.encode(_Chunk(_completion_id(head.id), head.created_at, head.model, choices, usage)))


class _OpenAI:
    """A Dialect."""

    name = "openai"
    request_id_names: tuple[bytes, ...] = ()

    def decode(self, body: bytes) -> Conversation:
        return openai_body.decode(body)

    def encode_answer(
        self, head: AnswerHead, content: str, finish: FinishReason, stop_sequence: str | None, usage: Usage
    ) -> bytes:
        choice = _Choice(_Message(content), _FINISH_REASONS[finish])
        return _encoder.encode(_Completion(_completion_id(head.id), head.created_at, head.model, [choice], _usage(usage)))

    def open_stream(self, head: AnswerHead, conversation: Conversation) -> _Writer:
        return _Writer(head, tells_usage=conversation.is_usage_streamed)

    def error_reply(self, error: ServiceError, request_id: str) -> Reply:
        return error_reply(error, _error_body(error), request_id)

    def limit_headers(self, standing: Standing, *, now: float) -> list[tuple[bytes, bytes]]:
        """`x-ratelimit-limit-requests`, `-remaining-`, `-reset-` (a duration, like 7s), and the same of tokens."""
        return ratelimit_headers(standing, b"%ds")


OPENAI = _OpenAI()

DOCUMENTED: dict[str, type] = {"ChatCompletion": _Completion, "ChatCompletionChunk": _Chunk, "OpenAIError": _ErrorBody}
"""For the OpenAPI document, by the names that they have there."""
