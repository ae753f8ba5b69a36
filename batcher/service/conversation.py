"""What a caller of `POST /v1/messages` asks for, in our own words, whatever grammar it was written in; and who answers it."""

from typing import Protocol

import msgspec

from batcher.service.auth import Caller
from batcher.service.callers import OnEvent
from batcher.types import Message, Sampling


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """One answer that is wanted."""

    model: str
    """As the caller wrote it; nobody has looked yet whether there is such a model."""
    messages: tuple[Message, ...]
    """At least one, with content each."""
    max_tokens: int
    """At least 1."""
    sampling: Sampling
    stop_sequences: tuple[str, ...] = ()
    is_streamed: bool = False
    is_usage_streamed: bool = False
    """Whether a stream is to tell the usage, in the grammar that does so only when asked."""

    @property
    def num_bytes(self) -> int:
        """Of UTF-8, in all contents together."""
        return sum(len(message.content.encode()) for message in self.messages)


class Answerer(Protocol):
    """Who answers: an engine, or `run_batch`. Lives on the event loop of the endpoint."""

    model_id: str
    """The name that callers give."""

    async def ask(self, caller: Caller, conversation: Conversation, on_event: OnEvent) -> int:
        """Asks for the answer; returns a number that no other request of the process has.

        `on_event` is called on this loop, perhaps before this returns; the last of its events is a Finished or a Failed.
        Raises InvalidRequest where the conversation cannot be answered, and Overloaded; then, and when it is cancelled, nothing
        was asked for.
        """

    def cancel(self, number: int) -> None:
        """Nobody waits any more: no event from now on. Nothing happens if the answer has ended."""
