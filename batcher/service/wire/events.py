"""Server-sent events as bytes.

JSON has no line break outside of its strings, and escapes it inside of them: an event's data is one line, whatever it holds.
"""


def named_event(name: bytes, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, data)


def unnamed_event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


def comment(text: bytes) -> bytes:
    """What readers of events pass over."""
    return b": %b\n\n" % text
