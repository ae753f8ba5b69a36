"""Server-sent events as bytes.

JSON has no line break outside of its strings, and escapes it inside of them: an event's data is one line, whatever it holds.
So it is even to readers that take Unicode's line breaks for one, as Python's `splitlines` does: those are escaped, too.
"""

_BREAKS = tuple((char.encode(), b"\\u%04x" % ord(char)) for char in "\x85\u2028\u2029")


def named_event(name: bytes, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, _one_line(data))


def unnamed_event(data: bytes) -> bytes:
    return b"data: %b\n\n" % _one_line(data)


def comment(text: bytes) -> bytes:
    """What readers of events pass over."""
    return b": %b\n\n" % text


def _one_line(data: bytes) -> bytes:
    if not data.isascii():
        for char, escaped in _BREAKS:
            data = data.replace(char, escaped)
    return data
