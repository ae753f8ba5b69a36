"""What a JSON decoder says about a body, in words for whoever sent it."""

import msgspec

_MAX_CHARS = 200
"""The decoder's words may quote a field's name, which may be as long as a body."""


def explain(error: msgspec.DecodeError) -> str:
    text = str(error)
    # The decoder's words for a lone surrogate escape, too.
    return "it ends early, or a \\u escape is half a character" if text == "Input data was truncated" else text[:_MAX_CHARS]
