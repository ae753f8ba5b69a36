"""What a caller wants to be answered, in our own words, whatever grammar it was written in; and who answers it."""

from math import inf
from typing import Protocol

import msgspec

from batcher.errors import NotFound
from batcher.service.auth import Caller
from batcher.service.callers import OnEvent, OnUsage
from batcher.types import Message, Sampling

DEFAULT_MAX_TOKENS = 4096
"""What an answer may have where the grammar lets its caller say nothing of it, if the context has room for as much."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that is wanted."""

    model: str
    """As the caller wrote it; nobody has looked yet whether there is such a model."""
    messages: tuple[Message, ...]
    """At least one, with content each."""
    max_tokens: int | None
    """At least 1. None: as many as the context has room for, up to DEFAULT_MAX_TOKENS."""
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


class Answerer(Protocol):
    """Who answers: an engine, or `run_batch`. Lives on the event loop of the endpoint."""

    model_id: str
    """The name that callers give."""
    context_len: int | None
    """Most tokens of prompt and answer together; None where there is no such bound."""

    async def prepare(self, conversation: Conversation) -> Prepared:
        """Raises InvalidRequest where the conversation cannot be answered, and Overloaded.

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
    """Raises NotFound for a model that is not this answerer's."""
    if model != answerer.model_id:
        raise NotFound(f"there is no model {model[:100]!r} here: this server has {answerer.model_id!r}")
