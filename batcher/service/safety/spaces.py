"""Whitespace in phrases and in text: any run of it is one space, so that a phrase is found however it is spaced or broken.

    text      p r o j e c t \\n _ _ b l u e        \\xa0 and every other character that `str.isspace` knows are whitespace, too
    symbols   p r o j e c t _     b l u e

Patterns with a repeated class in each place of a space were refused: thousands of phrases are one search only as long as they
are literal. So it is the text that is folded, and positions are told in it as it was. A run is bounded, since a stream holds it
back while a phrase may go on behind it: every 16 characters are a space of their own, and no phrase goes across from one of
them to the next.
"""

import re
from collections import deque

MAX_RUN = 16
"""Whitespace characters that are one space: a line break, the indentation of a list or a quotation, and some to spare."""

BREAK = "\U0010ffff"
"""The symbol between two spaces of one run. No phrase may have it: it is for no text, by Unicode."""

_RUN = re.compile(r"\s+")
_NO_SPACE = re.compile(r"[^\S ]")
"""Whitespace of other kinds,"""
NO_SPACES = tuple(char for char in map(chr, range(0x3001)) if char.isspace() and char != " ")
"""and each of them."""
_SHORT = 256
"""Characters. In longer text to replace each kind of whitespace, which is rarely there, is up to fifty times as fast."""
_WIDE = re.compile("   *")
"""Two literals first: a search for them takes a tenth of the time that it takes for ` {2,}`."""
_WIDE_BYTES = re.compile(b"   *")


def spaced_once(phrase: str) -> str:
    """As symbols, however long its runs are."""
    return _RUN.sub(" ", phrase)


def spaced_loosely(text: str) -> bytes:
    """Symbols, in UTF-8, that have every phrase that the text has, and perhaps more: quick, to rule out that there is any."""
    if len(text) <= _SHORT:
        return f" {' '.join(text.split())} ".encode()
    return _WIDE_BYTES.sub(b" ", only_spaces(text).encode())


def only_spaces(text: str) -> str:
    """Each character of whitespace is a space, so that positions stay."""
    if len(text) <= _SHORT:
        return _NO_SPACE.sub(" ", text)
    for char in NO_SPACES:
        text = text.replace(char, " ")
    return text


class SpacedText:
    """Text that comes in pieces, as symbols.

    `_run` is how many characters the last symbol stands for if that is a space, else 0. `_odd` has (number of a symbol,
    characters that it stands for beside one), perhaps several for one symbol, in the order of the text.
    """

    def __init__(self, num_kept: int) -> None:
        """`begin_of` the last `num_kept` symbols before a piece, and of those behind, is known."""
        self._num_kept = num_kept
        self._num_chars = 0
        self._run = 0
        self._odd: deque[tuple[int, int]] = deque()
        self.num_symbols = 0

    def feed(self, text: str) -> str:
        """The symbols that are new."""
        while self._odd and self._odd[0][0] < self.num_symbols - self._num_kept:
            self._odd.popleft()
        self._num_chars += len(text)
        text = only_spaces(text)
        parts: list[str] = []
        begin = 0
        if self._run:
            begin = len(text) - len(text.lstrip(" "))
            self._add_run(begin, parts)
        for run in _WIDE.finditer(text, begin):
            self._add_plain(text[begin : run.start()], parts)
            self._add_run(run.end() - run.start(), parts)
            begin = run.end()
        self._add_plain(text[begin:], parts)
        return "".join(parts)

    def _add_plain(self, text: str, parts: list[str]) -> None:
        if text:
            self.num_symbols += len(text)
            self._run = 1 if text[-1] == " " else 0
            parts.append(text)

    def _add_run(self, num_chars: int, parts: list[str]) -> None:
        """More of a run, or another."""
        if self._run:
            count = min(num_chars, MAX_RUN - self._run)
            self._odd.append((self.num_symbols - 1, count))
        else:
            count = min(num_chars, MAX_RUN)
            self._odd.append((self.num_symbols, count - 1))
            self.num_symbols += 1
            parts.append(" ")
        self._run += count
        num_left = num_chars - count
        if num_left:
            # No phrase ends behind the first space of a run, nor begins before the last: what is between is one break.
            self._run = (num_left - 1) % MAX_RUN + 1
            self._odd += ((self.num_symbols, num_left - self._run - 1), (self.num_symbols + 1, self._run - 1))
            self.num_symbols += 2
            parts.append(BREAK + " ")

    def begin_of(self, symbol: int) -> int:
        """Characters of the text before the symbol of this number; before all symbols to come, for the next number."""
        begin = self._num_chars - (self.num_symbols - symbol)
        for number, num_more in reversed(self._odd):
            if number < symbol:
                break
            begin -= num_more
        return begin
