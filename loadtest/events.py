"""Reads server-sent events as their bytes arrive, however reads have cut them.

An event is nothing until its blank line has come, so the instant of an event is that of the read which completed it. The
rules are those of the HTML standard's event stream (section 9.2): lines end in LF, CR LF or CR; a line that begins with a
colon is a comment; data of several lines is joined by LF; an event without its blank line at the end is dropped. `id` and
`retry` are read over: a measurement that reconnected by itself would hide what it measures.
"""

MAX_EVENT_BYTES = 1024 * 1024
"""A longer event is a fault of the server, and would be copied again at each read."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class EventTooLong(ValueError):
    """An event of more than `MAX_EVENT_BYTES`."""


class EventReader:
    """The events of one stream. Owned by whoever reads the stream; `feed` it each read in turn."""

    __slots__ = ("_ends_in_cr", "_is_fresh", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        """What has come of an event that is not whole."""
        self._ends_in_cr = False
        """The last read ended in CR, so an LF at the start of the next belongs to it."""
        self._is_fresh = True

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """The events that this read completed: (name, data), the name "" where the stream gave none.

        Events without data are left out, as the standard wants it. Raises `EventTooLong`.
        """
        if self._ends_in_cr and data:
            data = data.removeprefix(b"\n")
            self._ends_in_cr = False
        if b"\r" in data:
            self._ends_in_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        whole = self._rest + data
        if self._is_fresh and len(whole) >= len(_BYTE_ORDER_MARK):
            whole = whole.removeprefix(_BYTE_ORDER_MARK)
            self._is_fresh = False
        *blocks, self._rest = whole.split(b"\n\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLong(f"more than {MAX_EVENT_BYTES:,} bytes without a blank line")
        return [event for block in blocks if (event := _read_block(block)) is not None]


def _read_block(block: bytes) -> tuple[str, bytes] | None:
    name, data = "", None
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data = value if data is None else data + b"\n" + value
        elif field == b"event":
            name = value.decode(errors="replace")
    return None if data is None else (name, data)
