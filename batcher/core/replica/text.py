"""From a sequence's bytes to text that may be shown: whole characters only, and nothing that may turn out to be a stop string.

Tokens are not characters: a token may end in the middle of one, and a stop string may begin in one token and end three later.
So text is held back while it could still become a stop string, and given out as soon as it cannot. Looking for stop strings in
each whole text again was refused: it costs the length of the answer for each token. Here each stop string has a state, the
number of its characters that the text ends with, and a table of where to fall back when the next one does not fit (Knuth,
Morris and Pratt, 1977), so a character costs the same however long the answer is.
"""

import codecs


class StopString:
    """One stop string's automaton. `num_matched` characters of it are the end of the text so far."""

    __slots__ = ("_fallbacks", "num_matched", "text")

    def __init__(self, text: str) -> None:
        assert text
        self.text = text
        self.num_matched = 0
        self._fallbacks = _fallbacks(text)

    def advance(self, character: str) -> bool:
        """Whether the text, with this character, ends with the whole stop string. Not to be called again after that."""
        num_matched = self.num_matched
        while num_matched and self.text[num_matched] != character:
            num_matched = self._fallbacks[num_matched]
        if self.text[num_matched] == character:
            num_matched += 1
        self.num_matched = num_matched
        return num_matched == len(self.text)


def _fallbacks(text: str) -> list[int]:
    """For each length of a matched head: the length of its longest proper end that is a head of `text` again."""
    fallbacks = [0] * len(text)
    num_matched = 0
    for length in range(2, len(text)):
        while num_matched and text[num_matched] != text[length - 1]:
            num_matched = fallbacks[num_matched]
        if text[num_matched] == text[length - 1]:
            num_matched += 1
        fallbacks[length] = num_matched
    return fallbacks


class TextStream:
    """One sequence's text.

    `_held` is decoded and not given out: the longest end of the text that is the head of a stop string. Once `stopped_by` is
    set nothing more is decoded.
    """

    def __init__(self, stop_sequences: tuple[str, ...] = ()) -> None:
        # Truly invalid bytes become U+FFFD each; a character that is cut waits for its rest.
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._stops = tuple(StopString(text) for text in stop_sequences)
        self._held = ""
        self.stopped_by: str | None = None
        """The stop string that ended the text. Of several that end with the same character the longest: its head came first."""

    @property
    def stopped(self) -> bool:
        return self.stopped_by is not None

    def feed(self, data: bytes) -> str:
        """Text that can be shown now: it is whole characters, and no stop string begins in it."""
        text = self._decode(data)
        return self._scan(text) if self._stops and text else text

    def flush(self) -> str:
        """What is left when the sequence has ended; a character that was cut becomes U+FFFD."""
        if self.stopped:
            return ""
        text = self._decode(b"", True)
        if not self._stops:
            return text
        shown = self._scan(text)
        held, self._held = self._held, ""
        return shown if self.stopped else shown + held

    def _scan(self, text: str) -> str:
        if self.stopped:
            return ""
        text, num_old = self._held + text, len(self._held)
        self._held = ""
        for index in range(num_old, len(text)):
            ended = [stop.text for stop in self._stops if stop.advance(text[index])]
            if ended:
                self.stopped_by = max(ended, key=len)
                return text[: index + 1 - len(self.stopped_by)]
        num_held = max(stop.num_matched for stop in self._stops)
        shown = len(text) - num_held
        self._held = text[shown:]
        return text[:shown]
