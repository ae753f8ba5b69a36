"""The body of OpenAI's published chat completions grammar, to a Conversation.

All of its fields are known here: those that this service does, those that may be ignored without a lie, and those that it does
not do, which are refused by name unless they ask for nothing. Two more are not published there, but sent by the load tools that
speak this grammar, since the servers that they measure take them: `ignore_eos` and `top_k`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from batcher.errors import InvalidRequest
from batcher.service.conversation import Conversation
from batcher.service.wire.decoding import (
    MAX_INTEGER,
    MAX_SEED,
    MaxTokens,
    NoFields,
    NoItems,
    PublishedTopP,
    StopSequence,
    decode_body,
    draw_seed,
    find_unsupported,
    join_text,
    narrowed,
    refuse_empty,
)
from batcher.types import Message, Sampling

_EXAMPLE = '{"model": "...", "messages": [{"role": "user", "content": "..."}]}'

_Zero = Annotated[float, Meta(ge=0.0, le=0.0)]
_TopK = Annotated[int, Meta(ge=-1, le=MAX_INTEGER)]
"""0 is all, and so is -1, as those servers spell it."""


class _TextPart(msgspec.Struct, tag="text", forbid_unknown_fields=True):
    text: str
    prompt_cache_breakpoint: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class _Turn(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_TextPart] | None = None
    name: str | None = None
    """No chat template has a place for it."""

    # What an answer given back as a turn may carry.
    annotations: NoItems | None = None
    audio: None = None
    function_call: None = None
    parsed: None = None
    refusal: None = None
    tool_calls: NoItems | None = None


class _StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    """It pads events against those who guess text by their size; without, they are as long as they are."""


class _PlainText(msgspec.Struct, tag="text", forbid_unknown_fields=True):
    pass


class _Unsupported(msgspec.Struct, kw_only=True):
    """What is not done here, with the values that ask for nothing."""

    audio: None = None
    frequency_penalty: _Zero | None = None
    function_call: Literal["none", "auto"] | None = None
    functions: NoItems | None = None
    logit_bias: NoFields | None = None
    logprobs: Literal[False] | None = None
    modalities: Annotated[list[Literal["text"]], Meta(max_length=1)] | None = None
    moderation: None = None
    n: Literal[1] | None = None
    prediction: None = None
    presence_penalty: _Zero | None = None
    reasoning_effort: Literal["none"] | None = None
    response_format: _PlainText | None = None
    service_tier: Literal["auto", "default"] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    tools: NoItems | None = None
    top_logprobs: Literal[0] | None = None
    verbosity: Literal["medium"] | None = None
    web_search_options: None = None


_ONLY = {
    "frequency_penalty": "0",
    "function_call": '"none" or "auto"',
    "logprobs": "false",
    "modalities": '["text"]',
    "n": "1",
    "presence_penalty": "0",
    "reasoning_effort": '"none"',
    "response_format": '{"type": "text"}',
    "service_tier": '"auto" or "default"',
    "tool_choice": '"none" or "auto"',
    "top_logprobs": "0",
    "verbosity": '"medium"',
}


class _Body(_Unsupported, forbid_unknown_fields=True, kw_only=True):
    model: str
    messages: Annotated[list[_Turn], Meta(min_length=1)]
    max_completion_tokens: MaxTokens | None = None
    max_tokens: MaxTokens | None = None
    """Its older name."""
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: PublishedTopP | None = None
    stop: StopSequence | Annotated[list[StopSequence], Meta(max_length=4)] | None = None
    seed: Annotated[int, Meta(ge=-MAX_SEED - 1, le=MAX_SEED)] | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None

    # Not of the published grammar.
    ignore_eos: bool | None = None
    """Whether the answer goes on past the model's own end of it."""
    top_k: _TopK | None = None

    # Ignored.
    metadata: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    parallel_tool_calls: bool | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    user: str | None = None


_decoder = msgspec.json.Decoder(_Body)


def decode(body: bytes) -> Conversation:
    """Raises InvalidRequest, in words that name the field, for whatever is not exactly such a body."""
    parsed = decode_body(_decoder, body, example=_EXAMPLE, hint=_hint)
    stop = parsed.stop or ()
    top_p, top_k = narrowed(top_p=parsed.top_p, top_k=None if parsed.top_k == -1 else parsed.top_k)
    return Conversation(
        model=parsed.model,
        messages=tuple([_message(turn, number) for number, turn in enumerate(parsed.messages)]),
        max_tokens=_max_tokens(parsed),
        sampling=Sampling(
            temperature=1.0 if parsed.temperature is None else parsed.temperature,
            top_p=top_p,
            top_k=top_k,
            # Ours are not negative; of the published range each has one of its own, or shares it with one other.
            seed=draw_seed() if parsed.seed is None else parsed.seed & MAX_SEED,
        ),
        stop_sequences=(stop,) if isinstance(stop, str) else tuple(stop),
        ignores_stop=bool(parsed.ignore_eos),
        is_streamed=bool(parsed.stream),
        is_usage_streamed=_wants_usage(parsed),
    )


def _message(turn: _Turn, number: int) -> Message:
    # The newer name of the same: no chat template knows it.
    role = "system" if turn.role == "developer" else turn.role
    content = join_text(turn.content or "")
    # An answer may have been empty, and comes back so; libraries send system prompts that are.
    if not content and role == "user":
        refuse_empty(f"messages[{number}]")
    return Message(role, content)


def _max_tokens(parsed: _Body) -> int | None:
    """Raises InvalidRequest if it has two."""
    newer, older = parsed.max_completion_tokens, parsed.max_tokens
    if newer is not None and older is not None and newer != older:
        raise InvalidRequest(
            "invalid body: max_tokens and max_completion_tokens are the same setting, and differ", param="max_tokens"
        )
    return older if newer is None else newer


def _wants_usage(parsed: _Body) -> bool:
    """Raises InvalidRequest for options of a stream without a stream."""
    if parsed.stream_options is None:
        return False
    if not parsed.stream:
        raise InvalidRequest("invalid body: stream_options is only for stream: true", param="stream_options")
    return bool(parsed.stream_options.include_usage)


def _hint(text: str) -> str | None:
    if text.endswith("].type`"):
        return f"{text}: content of other types than text is not supported here"
    if text.endswith(".role`"):
        return f"{text}: it must be system, developer, user or assistant; tools are not supported here"
    if ".tool_calls" in text or ".function_call" in text:
        return "tools are not supported here, nor turns that carry tool_calls or function_call"
    return find_unsupported(text, _Unsupported.__struct_fields__, _ONLY)


DOCUMENTED: dict[str, type] = {"ChatCompletionRequest": _Body}
"""For the OpenAPI document, by the names that they have there."""
