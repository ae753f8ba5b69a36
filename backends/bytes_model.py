"""A tokenizer of bytes: one token for each byte of UTF-8, and a few ids above them for turns.

It is what the simulated model speaks, and what batch mode counts by when a backend has no tokenizer of its own. Every text has
exactly one spelling in it, and its length is plain to see: what a learner, a test and a load test need.
"""

from collections.abc import Sequence

from batcher.errors import InvalidRequest
from batcher.types import Message

NUM_BYTES = 256
END = 256
"""Ends a turn, the model's own among them."""
ROLES = {"system": 257, "user": 258, "assistant": 259}
"""The id that begins a turn of each role."""
VOCAB_SIZE = 260


class BytesTokenizer:
    """A Tokenizer. A conversation is, for each turn, the id of its role, its bytes and END; then the assistant's id."""

    vocab_size = VOCAB_SIZE
    stop_ids = frozenset((END,))

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def render(self, messages: Sequence[Message]) -> list[int]:
        tokens: list[int] = []
        for message in messages:
            if message.role not in ROLES:
                raise InvalidRequest(f"messages: the role must be one of {', '.join(ROLES)}, not {message.role[:20]!r}")
            tokens.append(ROLES[message.role])
            tokens += message.content.encode()
            tokens.append(END)
        tokens.append(ROLES["assistant"])
        return tokens

    def token_bytes(self, token: int) -> bytes:
        return _BYTES[token] if token < NUM_BYTES else b""


_BYTES = tuple(bytes((byte,)) for byte in range(NUM_BYTES))
