"""The bodies of Anthropic's published Messages grammar, to a Conversation.

All of its fields are known here: those that this service does, those that may be ignored without a lie (what only touches
billing, caches or the sender's own bookkeeping), and those that it does not do, which are refused by name.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from batcher.errors import InvalidRequest
from batcher.service.conversation import Conversation
from batcher.service.wire.decoding import (
    MAX_STOP_SEQUENCES,
    MaxTokens,
    NoFields,
    NoItems,
    PublishedTopP,
    StopSequence,
    TopK,
    decode_body,
    draw_seed,
    find_unsupported,
    join_text,
    narrowed,
    refuse_empty,
)
from batcher.types import Message, Sampling

_EXAMPLE = '{"model": "...", "max_tokens": 100, "messages": [{"role": "user", "content": "..."}]}'
_COUNT_EXAMPLE = '{"model": "...", "messages": [{"role": "user", "content": "..."}]}'


class _TextBlock(msgspec.Struct, tag="text", forbid_unknown_fields=True):
    text: str
    cache_control: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    citations: NoItems | None = None


class _Turn(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[_TextBlock]


class _NoThinking(msgspec.Struct, tag="disabled", forbid_unknown_fields=True):
    pass


class _NoTool(msgspec.Struct, tag="none", forbid_unknown_fields=True):
    pass


class _Unsupported(msgspec.Struct, kw_only=True):
    """What is not done here, with the values that ask for nothing."""

    container: None = None
    context_management: NoFields | None = None
    diagnostics: None = None
    inference_geo: None = None
    mcp_servers: NoItems | None = None
    output_config: NoFields | None = None
    output_format: None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard"] | None = None
    thinking: _NoThinking | None = None
    tool_choice: _NoTool | None = None
    tools: NoItems | None = None


_ONLY = {
    "service_tier": '"auto" or "standard_only"',
    "speed": '"standard"',
    "thinking": '{"type": "disabled"}',
    "tool_choice": '{"type": "none"}',
}


class _Prompt(_Unsupported, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`."""

    model: str
    messages: Annotated[list[_Turn], Meta(min_length=1)]
    system: str | list[_TextBlock] = ""
    cache_control: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class _Body(_Prompt, forbid_unknown_fields=True, kw_only=True):
    max_tokens: MaxTokens
    temperature: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    top_p: PublishedTopP | None = None
    top_k: TopK | None = None
    stop_sequences: Annotated[list[StopSequence], Meta(max_length=MAX_STOP_SEQUENCES)] | None = None
    stream: bool | None = None
    metadata: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


_decoder = msgspec.json.Decoder(_Body)
_count_decoder = msgspec.json.Decoder(_Prompt)


def decode(body: bytes) -> Conversation:
    """Raises InvalidRequest, in words that name the field, for whatever is not exactly such a body."""
    parsed = decode_body(_decoder, body, example=_EXAMPLE, hint=_hint)
    top_p, top_k = narrowed(top_p=parsed.top_p, top_k=parsed.top_k)
    return Conversation(
        model=parsed.model,
        messages=_messages(parsed),
        max_tokens=parsed.max_tokens,
        sampling=Sampling(
            temperature=1.0 if parsed.temperature is None else parsed.temperature,
            top_p=top_p,
            top_k=top_k,
            seed=draw_seed(),
        ),
        stop_sequences=tuple(parsed.stop_sequences or ()),
        is_streamed=bool(parsed.stream),
    )


def decode_count(body: bytes) -> Conversation:
    """What `POST /v1/messages/count_tokens` asks about; nobody wants an answer. Raises InvalidRequest."""
    parsed = decode_body(_count_decoder, body, example=_COUNT_EXAMPLE, hint=_hint)
    return Conversation(model=parsed.model, messages=_messages(parsed), max_tokens=None, sampling=Sampling())


def _messages(parsed: _Prompt) -> tuple[Message, ...]:
    """Raises InvalidRequest."""
    if parsed.messages[-1].role == "assistant":
        # A chat template ends every turn and then begins the answer: there is no going on with the words of the last one.
        raise InvalidRequest(
            "messages ends with one of the role assistant, as a beginning of the answer: this is not supported here, the last "
            "message must be the user's"
        )
    messages = [
        Message(turn.role, join_text(turn.content) or refuse_empty(f"messages[{number}]"))
        for number, turn in enumerate(parsed.messages)
    ]
    if parsed.system:
        messages.insert(0, Message("system", join_text(parsed.system) or refuse_empty("system")))
    return tuple(messages)


def _hint(text: str) -> str | None:
    if text.endswith("missing required field `max_tokens`"):
        return "max_tokens is required: it is the most tokens that the answer may have, and capacity is reserved with it"
    if text.endswith("].type`"):
        return f"{text}: content of other types than text is not supported here"
    if text.endswith(".role`"):
        return f"{text}: it must be user, assistant or system"
    if text.endswith(".citations`") or ".citations[" in text:
        return "citations are not supported here"
    return find_unsupported(text, _Unsupported.__struct_fields__, _ONLY)


DOCUMENTED: dict[str, type] = {"AnthropicRequest": _Body, "AnthropicCountRequest": _Prompt}
"""For the OpenAPI document, by the names that they have there."""
