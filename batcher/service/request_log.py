"""One line in the log for each request, in the shape of every other line of it, at no cost to speak of for the event loop.

`logging` was refused here: it takes some 8 microseconds for a line. Here the loop hands over a request's line, which nobody
changes any more, and the writer's thread encodes it.
"""

import json

import msgspec

from batcher.service.line_writer import STDERR, LineWriter
from batcher.service.records import RequestLine

GATHER_S = 0.05
"""What a line waits for others at most before they are written together."""
MAX_LINES = 20_000
"""Lines that wait to be written: ten seconds at 2,000 requests a second, and some 20 MB."""

_AFTER_AT = b',"request_id":"'
"""In an encoded line this stands once, after the instant: within a text a quote has a backslash before it."""
_HEAD = b',"level":"info","event":"request"' + _AFTER_AT

_encoder = msgspec.json.Encoder()


class RequestLog(LineWriter[RequestLine]):
    """`write` belongs to one event loop."""

    def __init__(self, fd: int = STDERR, *, gather_s: float = GATHER_S, max_lines: int = MAX_LINES) -> None:
        super().__init__(_encoded, name="request", fd=fd, gather_s=gather_s, max_lines=max_lines)


def _encoded(lines: list[RequestLine]) -> bytes:
    """A line each, with its end."""
    try:
        encoded = _encoder.encode_lines(lines)
    except UnicodeEncodeError:
        # A lone surrogate in one of them: it is shown escaped rather than lost with all the others.
        encoded = b"".join([json.dumps(msgspec.to_builtins(line), separators=(",", ":")).encode() + b"\n" for line in lines])
    return encoded.replace(_AFTER_AT, _HEAD)
