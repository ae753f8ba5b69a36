"""The native grammar of `POST /v1/messages` (SPEC S4): a body to a Conversation, an answer to a document or to events.

    stream:       message_start {id, model} · content_delta {text} · message_stop {stop_reason, usage}    or error, at any time
    not streamed: {id, content, stop_reason, usage}

Other vendors' grammars are modules of their own beside this one, with the same functions.
"""

import random
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from batcher.errors import InvalidRequest, ServiceError
from batcher.service.conversation import Conversation
from batcher.service.wire.decoding import explain
from batcher.service.wire.replies import encode_error
from batcher.types import FinishReason, Message, Sampling, Usage

_MAX_STOP_SEQUENCES = 16
"""Each is looked for at every character of the answer."""
_MAX_STOP_CHARS = 256
"""As much text may be held back from a stream while it could still become the stop sequence."""
_MAX_SEED = 2**63 - 1
_MAX_TOKENS = 2**53
"""The largest whole number that every JSON reader agrees on; what the model's context allows is far less."""

_EXAMPLE = '{"model": "...", "messages": [{"role": "user", "content": "..."}], "max_tokens": 100}'


class TextBlock(msgspec.Struct, tag="text", forbid_unknown_fields=True):
    text: str


class _Turn(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str | list[TextBlock]


class _Body(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    model: str
    messages: Annotated[list[_Turn], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1, le=_MAX_TOKENS)]
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] = 1.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Meta(ge=0, le=_MAX_TOKENS)] = 0
    stop_sequences: Annotated[
        list[Annotated[str, Meta(min_length=1, max_length=_MAX_STOP_CHARS)]], Meta(max_length=_MAX_STOP_SEQUENCES)
    ] = []
    seed: Annotated[int, Meta(ge=0, le=_MAX_SEED)] | None = None
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


_decoder = msgspec.json.Decoder(_Body)
_encoder = msgspec.json.Encoder()


def decode(body: bytes) -> Conversation:
    """Raises InvalidRequest, in words that name the field, for whatever is not exactly such a body.

    Text that has no UTF-8 form (lone surrogates, overlong bytes) is refused here, before it can meet a tokenizer. Without a
    seed the caller gets one of its own: only then is the answer another one each time.
    """
    try:
        parsed = _decoder.decode(body)
    except msgspec.ValidationError as error:
        text = explain(error)
        if text.endswith("missing required field `max_tokens`"):
            text = "max_tokens is required: it is the most tokens that the answer may have, and capacity is reserved with it"
        elif text.endswith("unknown field `system`"):
            text += ': a system prompt is a message, the first one: {"role": "system", "content": "..."}'
        elif text.endswith(".role`"):
            text += ": it must be system, user or assistant"
        raise InvalidRequest(f"invalid body: {text}") from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"the body must be a JSON object like {_EXAMPLE}: {explain(error)}") from None
    except RecursionError:
        raise InvalidRequest(f"the body is nested too deeply: it must be a JSON object like {_EXAMPLE}") from None
    return Conversation(
        model=parsed.model,
        messages=tuple(_message(turn, number) for number, turn in enumerate(parsed.messages)),
        max_tokens=parsed.max_tokens,
        sampling=Sampling(
            temperature=parsed.temperature,
            top_p=parsed.top_p,
            top_k=parsed.top_k,
            seed=random.getrandbits(63) if parsed.seed is None else parsed.seed,
        ),
        stop_sequences=tuple(parsed.stop_sequences),
        is_streamed=parsed.stream,
    )


def _message(turn: _Turn, number: int) -> Message:
    content = turn.content if isinstance(turn.content, str) else "".join(block.text for block in turn.content)
    if not content:
        raise InvalidRequest(f"invalid body: the content of message {number} is empty")
    return Message(turn.role, content)


def encode_answer(answer_id: str, content: str, finish: FinishReason, usage: Usage) -> bytes:
    return _encoder.encode(_Answer(answer_id, content, finish, usage))


def start_event(answer_id: str, model: str) -> bytes:
    return _event(b"message_start", _encoder.encode(_Start(answer_id, model)))


def delta_event(text: str) -> bytes:
    return _event(b"content_delta", _encoder.encode(_Delta(text)))


def stop_event(finish: FinishReason, usage: Usage) -> bytes:
    return _event(b"message_stop", _encoder.encode(_Stop(finish, usage)))


def error_event(error: ServiceError, request_id: str) -> bytes:
    """For what goes wrong after the 200 was sent: the body that every error has, as an event."""
    return _event(b"error", encode_error(error, request_id))


def _event(name: bytes, data: bytes) -> bytes:
    """One server-sent event. JSON has no line break outside of its strings, and escapes it inside of them."""
    return b"event: %b\ndata: %b\n\n" % (name, data)


PING_EVENT = _event(b"ping", b'{"type":"ping"}')
"""Says that the stream lives, to proxies that cut what is silent for a minute."""
