"""Regular expressions whose time is bounded, whatever the text: RE2, which never backtracks.

A deadline for a backtracking engine was refused: a caller who finds a pattern's weakness makes every check run to its
deadline, and all that is left is to let such texts pass or to refuse them. RE2's time grows with the text alone, and at worst
with the text times the pattern's size, which is bounded here. What it cannot do so (looking around, referring back) it refuses,
at start.
"""

import re
from contextlib import suppress

import msgspec
import re2

from batcher.errors import ConfigError
from batcher.service.safety.phrases import Match

MAX_PROGRAM_SIZE = 500
"""Instructions of one compiled pattern. The worst pattern of this size costs 2.5 microseconds for each character of text; a
usual one a nanosecond."""
MAX_PATTERN_CHARS = 10 * MAX_PROGRAM_SIZE
"""Of one pattern, looked at first: a program's size is known only when it is compiled, which takes a quarter of a minute for
600,000 characters. Ten for each instruction: what is long to write, `\\x{10FFFF}`, has as many and makes four."""
MAX_ALL_PROGRAMS_SIZE = 10_000
"""Of all patterns together."""
_PHRASES_MEMORY = 64 * 2**20
"""Bytes for RE2's cache of states, where thousands of phrases are one pattern; its default is 8 MiB."""
_RANGE_BYTES = 16
"""How much of a match's beginning is compared to tell whether one may begin here."""

_ANYTHING = (b"", b"\xff")
_UNANCHORED = re2._Anchor.UNANCHORED
_NO_SPAN = re2._NULL_SPAN

_LOOKS_BESIDE = re.compile(r"\\[AbBz]|(?<!\[)\^|\$")
"""What asks for a character beside the match. A false alarm only holds back more."""
_MINDS_CASE = re.compile(r"\(\?\w*-")
"""Turns a flag off again: within `(?i:...)`, perhaps that one."""
_NAMED_GROUP = re.compile(r"\(\?P?<")


class Expression(msgspec.Struct, frozen=True):
    """One rule's."""

    pattern: str
    """As `check_expression` returned it."""
    rule: int
    """The rule's index."""
    max_length: int
    """Characters of the longest match whose beginning is held back."""
    ignores_case: bool


class _Compiled(msgspec.Struct, frozen=True):
    pattern: re2._Regexp
    rule: int
    max_length: int
    ignores_case: bool
    first: bytes
    """No beginning of a match sorts before as many bytes of this,"""
    last: bytes
    """or after this."""
    looks_beside: bool

    def can_begin(self, text: bytes) -> bool:
        """Whether `text`, at most _RANGE_BYTES, can be the beginning of a match."""
        first, last = self.first[: len(text)], self.last
        if not self.ignores_case:
            return first <= text <= last
        # What begins a match does so in lower case and in upper case, too: the range of `key` alone, from KEY to key, would
        # hold back nearly every small letter.
        return first <= text.upper() and text.lower() <= last and first <= text <= last


class Detector:
    """Whether a text has a match, and no more. Half of what RE2's `search` takes for a short text is its wrapper, which makes a
    generator of all matches first; so this asks what the wrapper asks."""

    __slots__ = ("_match",)

    def __init__(self, pattern: re2._Regexp) -> None:
        self._match = pattern._regexp.Match

    def finds(self, text: bytes) -> bool:
        return bool(self._match(_UNANCHORED, text, 0, len(text))[0] != _NO_SPAN)


def _options() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    return options


def compile_any(patterns: list[str]) -> re2._Regexp:
    """One that finds whatever any of them finds."""
    return re2.compile("|".join(f"(?:{pattern})" for pattern in patterns), _options())


def compile_phrases(phrases: list[str]) -> re2._Regexp:
    options = _options()
    options.max_mem = _PHRASES_MEMORY
    return re2.compile("|".join(map(re2.escape, phrases)), options)


def check_all_expressions(patterns: list[str]) -> None:
    """Raises ConfigError if they are too much together."""
    try:
        size = compile_any(patterns).programsize
    except re2.error:
        size = MAX_ALL_PROGRAMS_SIZE + 1  # Too large to be compiled, too.
    if size > MAX_ALL_PROGRAMS_SIZE:
        raise ConfigError(f"the regexes of the safety rules make more than {MAX_ALL_PROGRAMS_SIZE} instructions together")


def check_expression(pattern: str, *, ignores_case: bool, rule: str) -> str:
    """The pattern as RE2 is to read it. Raises ConfigError, in words about the rule, for what cannot be or would match
    everything."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ConfigError(
            f"safety rule {rule!r}: the regex has {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are allowed"
        )
    if _NAMED_GROUP.search(pattern):
        raise ConfigError(f"safety rule {rule!r}: a named group has no use in a regex here: write (?:...)")
    whole = f"(?i:{pattern})" if ignores_case else pattern
    try:
        # By itself first: brackets that do not match must not match those around it.
        re2.compile(pattern, _options())
        compiled = re2.compile(whole, _options())
        matches_nothing = any(match.start() == match.end() for text in ("", "a b\n") for match in compiled.finditer(text))
    except (re2.error, UnicodeEncodeError) as error:
        told = error.args[0] if isinstance(error, re2.error) else error
        told = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
        raise ConfigError(f"safety rule {rule!r}: the regex is none that can be run in bounded time: {told}") from error
    size = max(compiled.programsize, compiled.reverseprogramsize)
    if size > MAX_PROGRAM_SIZE:
        raise ConfigError(f"safety rule {rule!r}: the regex makes {size} instructions; at most {MAX_PROGRAM_SIZE} are allowed")
    if matches_nothing:
        raise ConfigError(f"safety rule {rule!r}: the regex matches empty text, which is everywhere")
    return whole


class ExpressionSet:
    """The regular expressions of some rules; read-only after birth, shared by all answers."""

    def __init__(self, expressions: list[Expression]) -> None:
        self.any = compile_any([expression.pattern for expression in expressions])
        self._has_any = Detector(self.any).finds
        self.all = [_compile(expression) for expression in expressions]
        self.max_length = max(expression.max_length for expression in expressions)

    def first_in(self, text: str) -> Match | None:
        """In a text that is whole."""
        return self.first_of(text, 0, is_last=True) if self._has_any(text.encode()) else None

    def first_of(self, text: str, start: int, *, is_last: bool) -> Match | None:
        """From `start` on; what lies before is looked at, but no part of a match. Without the end of the text, what might not
        match with more text behind it does not count yet."""
        found = []
        for each in self.all:
            match = each.pattern.search(text, start)
            if match is not None and (is_last or not each.looks_beside or match.end() < len(text)):
                found.append(Match(match.end(), match.start(), each.rule))
        return min(found, default=None)


def _compile(expression: Expression) -> _Compiled:
    pattern = expression.pattern
    compiled = re2.compile(pattern, _options())
    looks_beside = bool(_LOOKS_BESIDE.search(pattern))
    first, last = _ANYTHING
    if not looks_beside:  # What RE2 tells holds at the beginning of a text, where \b and ^ are other than in its middle.
        # Where RE2 cannot tell, every text may begin a match.
        with suppress(re2.error):
            first, last = compiled.possiblematchrange(_RANGE_BYTES)
    ignores_case = expression.ignores_case and not _MINDS_CASE.search(pattern)
    return _Compiled(compiled, expression.rule, expression.max_length, ignores_case, first, last, looks_beside)


class ExpressionScanner:
    """One answer's way through an ExpressionSet.

    context   held                      what may still become part of a match
    [.]       [................]
    ^_start   ^_free
    """

    def __init__(self, expressions: ExpressionSet) -> None:
        self._set = expressions
        self._text = ""
        """The held text, and one character before it: `\\b` looks there."""
        self._num_context = 0
        self._start = 0
        """Where `_text` begins in the answer."""

    def feed(self, text: str, *, is_last: bool) -> Match | None:
        """The first match that is complete; nothing may be fed after it."""
        self._text += text
        if self._set.any.search(self._text, self._num_context):
            found = self._set.first_of(self._text, self._num_context, is_last=is_last)
            if found is not None:
                return Match(self._start + found.end, self._start + found.start, found.rule)
        self._release(self._num_context + self._count_free())
        return None

    def _count_free(self) -> int:
        """Characters of what is held, from its beginning, that can be part of no match of `max_length` any more. Each is looked
        at once: what could not begin a match then will not later."""
        held = self._text[self._num_context :]
        longest = self._set.max_length
        for start in range(max(0, len(held) - longest), len(held)):
            rest = held[start:]
            beginning = rest[:_RANGE_BYTES].encode()[:_RANGE_BYTES]
            if any(len(rest) <= each.max_length and each.can_begin(beginning) for each in self._set.all):
                return start
        return len(held)

    def _release(self, count: int) -> None:
        """The first `count` characters of `_text` are free; the last of them stays as context."""
        if count > self._num_context:
            self._text = self._text[count - 1 :]
            self._start += count - 1
            self._num_context = 1

    @property
    def num_free(self) -> int:
        return self._start + self._num_context
