"""Literal phrases in text that comes in pieces: Aho and Corasick's automaton (1975), over text whose runs of whitespace are one
space each (spaces.py).

Its state is the longest end of the text so far that is the beginning of a phrase, which is exactly what a stream must hold
back, and no more. Looking for each phrase in a growing buffer was refused: it holds back a fixed length, or costs the whole
buffer again for every piece.

A character costs it a tenth of a microsecond, RE2 a thousandth; so it walks only where it must. Of a long piece these are the
beginning, where a phrase of the piece before may end, what lies behind the first phrase that RE2 finds, and, if it finds none,
the end.
"""

from collections import deque
from collections.abc import Iterable

import msgspec
import re2

from batcher.service.safety.spaces import SpacedText


class Match(msgspec.Struct, frozen=True, gc=False, order=True):
    """Where something was found; the least of several is the one that was complete first. Positions count characters from the
    beginning of the text."""

    end: int
    start: int
    rule: int
    """Its index in the file."""


def fold(text: str) -> str:
    """Case taken away one character at a time, so that positions stay and pieces fold as their whole does.

    `str.lower` alone does neither: it makes two characters of `İ`, and looks at its neighbours for a sigma.
    """
    if text.isascii():
        return text.lower()
    if "İ" in text:
        return "İ".join(map(fold, text.split("İ")))
    return text.lower().replace("ς", "σ").replace("ſ", "s")


class PhraseAutomaton:
    """The phrases of some rules; read-only after birth, shared by all answers. Node 0 is the beginning of every phrase."""

    def __init__(self, phrases: Iterable[tuple[str, int]], any_phrase: re2._Regexp) -> None:
        """`phrases` are (phrase, its runs of whitespace one space each; index of its rule); of equal phrases the first counts.
        `any_phrase` finds them all."""
        self._any_phrase = any_phrase
        self.children: list[dict[str, int]] = [{}]
        self.depths = [0]
        self.shorter = [0]
        """Of each node: the longest other node whose text is an end of this node's text."""
        self.found: list[tuple[int, int] | None] = [None]
        """Of each node: (length, rule) of the longest phrase that ends there."""
        for phrase, rule in phrases:
            self._add(phrase, rule)
        self._link()
        self.longest = max(self.depths)

    def _add(self, phrase: str, rule: int) -> None:
        node = 0
        for char in phrase:
            child = self.children[node].get(char)
            if child is None:
                child = len(self.children)
                self.children[node][char] = child
                self.children.append({})
                self.depths.append(self.depths[node] + 1)
                self.shorter.append(0)
                self.found.append(None)
            node = child
        if self.found[node] is None:
            self.found[node] = (len(phrase), rule)

    def _link(self) -> None:
        """Breadth first: a shorter node is complete before any that refers to it."""
        waiting = deque(self.children[0].values())
        while waiting:
            node = waiting.popleft()
            if self.found[node] is None:
                self.found[node] = self.found[self.shorter[node]]
            for char, child in self.children[node].items():
                self.shorter[child] = self.step(self.shorter[node], char)
                waiting.append(child)

    def step(self, node: int, char: str) -> int:
        while (child := self.children[node].get(char)) is None and node:
            node = self.shorter[node]
        return child or 0

    def find_start(self, text: str) -> int | None:
        """Where the first phrase begins in a text; None where there is none."""
        if not self._any_phrase.search(text.encode()):  # In bytes it takes half the time.
            return None
        start: int = self._any_phrase.search(text).start()
        return start


class PhraseScanner:
    """One answer's way through an automaton."""

    def __init__(self, automaton: PhraseAutomaton, *, ignores_case: bool) -> None:
        self._automaton = automaton
        self._ignores_case = ignores_case
        self._spaced = SpacedText(automaton.longest)
        self._node = 0

    def feed(self, text: str, *, is_last: bool) -> Match | None:
        """The first phrase that is complete; nothing may be fed after it."""
        if self._ignores_case:
            text = fold(text)
        symbols = self._spaced.feed(text)
        longest = self._automaton.longest
        # What is shorter is walked through at once.
        return self._walk(symbols, 0) if len(symbols) <= 2 * longest else self._leap(symbols, longest)

    def _leap(self, symbols: str, longest: int) -> Match | None:
        match = self._walk(symbols, 0, longest)
        if match is not None:
            return match
        # A phrase that is not complete yet begins in the piece itself, and all that counts of what is no phrase is its end.
        start = self._automaton.find_start(symbols)
        self._node = 0
        return self._walk(symbols, len(symbols) - longest if start is None else start)

    def _walk(self, symbols: str, start: int, stop: int | None = None) -> Match | None:
        """Through those of a piece's symbols that are from `start` on and before `stop`."""
        automaton, node = self._automaton, self._node
        for number, char in enumerate(symbols[start:stop], start):
            node = automaton.step(node, char)
            found = automaton.found[node]
            if found is not None:
                last = self._spaced.num_symbols - len(symbols) + number
                begin_of = self._spaced.begin_of
                # Of a space that ends a phrase its first character does.
                return Match(begin_of(last) + 1, begin_of(last + 1 - found[0]), found[1])
        self._node = node
        return None

    @property
    def num_free(self) -> int:
        """Characters from the beginning that can be part of no phrase any more."""
        return self._spaced.begin_of(self._spaced.num_symbols - self._automaton.depths[self._node])
