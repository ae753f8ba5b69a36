"""What the service and the backend `generate` say to each other through `run_batch`, which carries strings alone.

An input is either a marked document with a conversation in it, or plain text as `POST /v1/run` sends it; the mark begins with a
character that no text of a person begins with. The output of a document is a document again, of plain text plain text.
"""

import msgspec

from backends.base import ModelInfo
from batcher.types import BLOCK_SIZE, FinishReason, Message, Sampling, Usage

_MARK = "\0generate\n"


class GenerateInput(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One answer to generate. Whoever makes it has checked that it fits the model's context."""

    messages: tuple[Message, ...]
    max_tokens: int
    sampling: Sampling
    stop_sequences: tuple[str, ...] = ()
    ignores_stop: bool = False
    """Goes on past the model's own stop tokens, up to max_tokens."""


class GenerateOutput(msgspec.Struct, frozen=True):
    text: str
    finish: FinishReason
    usage: Usage
    stop_sequence: str | None = None
    """The one that ended it, if one did."""


_encoder = msgspec.json.Encoder()
_input_decoder = msgspec.json.Decoder(GenerateInput)
_output_decoder = msgspec.json.Decoder(GenerateOutput)


def encode_input(wanted: GenerateInput) -> str:
    return _MARK + _encoder.encode(wanted).decode()


def decode_input(text: str) -> GenerateInput | None:
    """None for plain text. Raises ValueError for a mark with no such document behind it."""
    return _input_decoder.decode(text[len(_MARK) :]) if text.startswith(_MARK) else None


def encode_output(answer: GenerateOutput) -> str:
    return _encoder.encode(answer).decode()


def decode_output(text: str) -> GenerateOutput:
    """Raises ValueError."""
    return _output_decoder.decode(text)


def context_len(info: ModelInfo) -> int:
    """Most tokens of prompt and answer together: what the model can attend to, or what its device has memory for."""
    return min(info.context_len, info.kv_bytes // (info.kv_bytes_per_token * BLOCK_SIZE) * BLOCK_SIZE)
