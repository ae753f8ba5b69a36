"""What a worker's process and its parent say to each other: MessagePack frames behind a length of 4 bytes.

    parent                       child
    Load  ───────────────────▶
          ◀───────────────────   Ready, or Failed and the child ends
    Run   ───────────────────▶
          ◀───────────────────   Done or Raised                         as often as there are batches, one at a time
    Close ───────────────────▶   the backend's own close(), and the child ends

Either side may vanish at any moment; end of file is how the other learns it. Pickle was refused: it can carry anything, so
the two sides would come to depend on it, and it runs what it reads.
"""

import traceback
from typing import Any

import msgspec

from backends.base import BackendSpec

MAX_FRAME_BYTES = 1 << 28
"""256 MiB: 50 inputs of the largest size that a sensible body limit lets in, with room; and an end to a broken peer."""
MAX_ERROR_CHARS = 2_000
"""How much of an exception's message crosses over: enough to see what went wrong, too little to flood a log."""
MAX_TRACEBACK_CHARS = 4_000
"""Of where it was raised, likewise; the end of it, where the cause stands."""
HEADER_BYTES = 4


class Load(msgspec.Struct, tag="load"):
    spec: BackendSpec
    index: int
    start: int


class Run(msgspec.Struct, tag="run"):
    inputs: list[str]


class Close(msgspec.Struct, tag="close"):
    pass


class Ready(msgspec.Struct, tag="ready"):
    pass


class Failed(msgspec.Struct, tag="failed"):
    """The backend could not be made or loaded; `is_config` where a ConfigError says that no later try can do better."""

    kind: str
    message: str
    is_config: bool
    traceback: str


class Done(msgspec.Struct, tag="done"):
    outputs: Any
    run_s: float


class Raised(msgspec.Struct, tag="raised"):
    kind: str
    message: str
    run_s: float
    traceback: str = ""


FromParent = Load | Run | Close
FromChild = Ready | Failed | Done | Raised

_encoder = msgspec.msgpack.Encoder()
decode_from_parent = msgspec.msgpack.Decoder(FromParent).decode
decode_from_child = msgspec.msgpack.Decoder(FromChild).decode


class CannotCarry(ValueError):
    """These values have no form as a frame: text that is no valid Unicode, a type that MessagePack lacks, or too much."""


def encode(message: FromParent | FromChild) -> bytes:
    """The whole frame, header included. Raises CannotCarry, whose words quote none of the values."""
    try:
        body = _encoder.encode(message)
    except UnicodeEncodeError:
        raise CannotCarry("a text holds a lone surrogate, which has no UTF-8 form") from None
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise CannotCarry(str(error)) from None
    if len(body) > MAX_FRAME_BYTES:
        raise CannotCarry(f"{len(body)} bytes in one batch, more than {MAX_FRAME_BYTES}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


def describe(error: BaseException) -> tuple[str, str]:
    """An exception's type and message, bounded and safe to encode."""
    try:
        message = str(error)
    except Exception:
        message = "(its message could not be made)"
    return type(error).__name__, _encodable(message)[:MAX_ERROR_CHARS]


def describe_traceback(error: BaseException) -> str:
    """Where it was raised and what it says, bounded and safe to encode."""
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:
        text = "(its traceback could not be made)"
    return _encodable(text)[-MAX_TRACEBACK_CHARS:]


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


class FrameReader:
    """Cuts a stream of bytes into frames; keeps what is incomplete, at most one frame and what was read with it."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies of the frames that `data` completes. Raises ValueError for a length out of bounds."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= HEADER_BYTES:
            end = HEADER_BYTES + int.from_bytes(self._buffer[:HEADER_BYTES], "big")
            if end > HEADER_BYTES + MAX_FRAME_BYTES:
                raise ValueError(f"a frame of {end} bytes")
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[HEADER_BYTES:end]))
            del self._buffer[:end]
        return frames
