"""What a grammar of conversations has to say: a body to a Conversation, an answer to bytes. Pure.

native     `POST /v1/messages`, SPEC S4
anthropic  the same route, where the request has an `anthropic-version` header
openai     `POST /v1/chat/completions`
"""

from typing import Protocol

import msgspec

from batcher.core.admission.reservation import Standing
from batcher.errors import ServiceError
from batcher.service.conversation import Conversation
from batcher.service.wire.replies import Reply
from batcher.types import FinishReason, Usage


class AnswerHead(msgspec.Struct, frozen=True, gc=False):
    """What is known of an answer before its first word."""

    id: str
    """The request's."""
    model: str
    """As it is called here."""
    created_at: int
    """Seconds since 1970."""
    num_input_tokens: int
    """As the server counted them."""


class EventWriter(Protocol):
    """One stream, from its first event to its last; each method returns server-sent events as bytes, several where the grammar
    wants several. `start` comes first, then `delta`s and `ping`s, then one of `stop` and `error`."""

    def start(self) -> bytes: ...

    def delta(self, text: str) -> bytes:
        """`text` is never empty."""

    def stop(self, finish: FinishReason, stop_sequence: str | None, usage: Usage) -> bytes: ...

    def error(self, error: ServiceError) -> bytes:
        """What went wrong after the 200 was sent."""

    def ping(self) -> bytes: ...


class Dialect(Protocol):
    """A grammar. Implemented by stateless objects, one for each."""

    name: str
    """Tells apart idempotent requests: the same body in another grammar is another request."""
    request_id_names: tuple[bytes, ...]
    """Of the headers that have the request's id in this grammar, beside x-request-id."""

    def decode(self, body: bytes) -> Conversation:
        """Raises InvalidRequest, in words that name the field, for whatever is not exactly such a body."""

    def encode_answer(
        self, head: AnswerHead, content: str, finish: FinishReason, stop_sequence: str | None, usage: Usage
    ) -> bytes:
        """The document of a whole answer."""

    def open_stream(self, head: AnswerHead, conversation: Conversation) -> EventWriter: ...

    def error_reply(self, error: ServiceError, request_id: str) -> Reply:
        """An error before anything was sent, with the headers that say whether and when to try again; those that every reply
        has (limits, the request's id) are the sender's to add."""

    def limit_headers(self, standing: Standing, *, now: float) -> list[tuple[bytes, bytes]]:
        """The caller's limits; `now` is wall-clock time, in seconds since 1970."""
