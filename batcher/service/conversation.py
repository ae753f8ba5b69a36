"""What a caller wants to be answered, in our own words, whatever grammar it was written in; and who answers it."""

from math import inf
from typing import Protocol

import msgspec

from batcher.errors import ModelNotFound
from batcher.service.auth import Caller
from batcher.service.callers import OnEvent, OnUsage
from batcher.types import Message, Sampling

DEFAULT_MAX_TOKENS = 4096
"""What an answer may have where the grammar lets its caller say nothing of it, if the context has room for as much."""

_DEFAULT_SHARE = 0.25
"""Of its caller's limit: as so much is reserved, some more requests should fit into the minute beside it."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that is wanted."""

    model: str
    """As the caller wrote it; nobody has looked yet whether there is such a model."""
    messages: tuple[Message, ...]
    """At least one."""
    max_tokens: int | None
    """At least 1. None: as many as the context and the caller's limits have room for, up to DEFAULT_MAX_TOKENS."""
    sampling: Sampling
    stop_sequences: tuple[str, ...] = ()
    ignores_stop: bool = False
    """Whether the answer goes on past the model's own stop tokens, up to max_tokens: for measuring."""
    is_streamed: bool = False
    is_usage_streamed: bool = False
    """Whether a stream is to tell the usage, in the grammar that does so only when asked."""

    @property
    def num_bytes(self) -> int:
        """Of UTF-8, in all contents together."""
        return sum(len(message.content.encode()) for message in self.messages)


class Prepared(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A conversation that whoever answers has found answerable."""

    conversation: Conversation
    prompt: list[int] | str
    """Tokens, or the text that a backend reads. Given away with `submit`."""
    num_input_tokens: int
    max_tokens: int
    """At least 1; with the prompt it fits the context."""
    counts_bytes: bool = False
    """Whether its tokens are bytes of text: a backend that knows only text knows no others."""
    deadline_at: float = inf
    """Of its start, on the monotonic clock; counted from when the conversation came: clients do not care what they wait for."""


def default_max_tokens(num_input: int, room: float) -> int:
    """What an answer may have at most where nobody has said it; `room` is what its caller's limits have for prompt and answer
    in a minute, when idle."""
    return int(max(1, min(DEFAULT_MAX_TOKENS, room * _DEFAULT_SHARE, room - num_input)))


class Answerer(Protocol):
    """Who answers: an engine, or `run_batch`. Lives on the event loop of the endpoint."""

    model_id: str
    """The name that callers give."""
    context_len: int | None
    """Most tokens of prompt and answer together; None where there is no such bound."""

    async def prepare(self, conversation: Conversation, *, room: float) -> Prepared:
        """Raises InvalidRequest where the conversation cannot be answered, and Overloaded. Where the caller does not
        say how long the answer may be, see `default_max_tokens`.

        Nothing was asked for yet; cancelled, it leaves nothing.
        """

    async def count(self, conversation: Conversation) -> int:
        """Tokens of the prompt, whether or not they fit the context. Raises as `prepare` does otherwise."""

    def submit(self, caller: Caller, prepared: Prepared, on_event: OnEvent) -> int:
        """Asks for the answer; returns a number that no other answer of this answerer has.

        `on_event` is called on this loop, perhaps before this returns; the last of its events is a Finished or a Failed.
        """

    def cancel(self, number: int, on_usage: OnUsage) -> None:
        """Nobody waits any more: no event from now on. `on_usage` is called once, with what was computed until then, perhaps
        later; not at all if the answer's end had been told."""


def require_model(answerer: Answerer, model: str) -> None:
    """Raises ModelNotFound for a model that is not this answerer's."""
    if model != answerer.model_id:
        raise ModelNotFound(f"there is no model {model[:100]!r} here: this server has {answerer.model_id!r}")
