"""Texts of a wanted length, each unique in its run, without knowing the server's tokenizer.

A load test that needed each server's tokenizer could test only its own. Common short English words are one token each,
with the space before them, in every byte-pair vocabulary of the last years (all of these in SmolLM2's), so a text of n
such words is nearly surely n tokens; a chat template adds its own, and the server's usage is the truth that is reported.
A tokenizer of bytes has one token a byte, so there the unit is the byte.

Each text begins with words that spell the seed and its number, so that no two share even one block of a prefix cache.
"""

from array import array
from enum import StrEnum

from batcher.sim.workload import stream

_VOCABULARY = """
the of and to in is it for on was that with as are be this from at by have or had not but what all were when we there can an
your which their said if do will each about how up out them then she many some so these would other into has more her two
like him see time could no make than first been its who now people my made over did down only way find use may water long
little very after words called just where most know get through back much before go good new write our used me man too any
day same right look think also around another came come work three word must because
"""
_WORDS = _VOCABULARY.split()

_ALPHABET = _WORDS[:64]
"""The digits of the numbers that texts begin with."""
_NUM_SALT, _NUM_NUMBER = 3, 4
"""Digits of the seed and of the text's number: 2 ** 18 seeds, and 2 ** 24 texts before a number comes again."""
_NUM_FILLER = 1 << 15
"""Words of the text from which all others are cut; longer ones go around it."""


class TokenUnit(StrEnum):
    """What is taken for one token."""

    WORD = "word"
    BYTE = "byte"


class Prompts:
    """The texts of one run: the same for the same seed."""

    def __init__(self, *, seed: int, unit: TokenUnit) -> None:
        rng = stream(seed, "prompts")
        self._unit = unit
        self._salt = [rng.choice(_ALPHABET) for _ in range(_NUM_SALT)]
        words = rng.choices(_WORDS, k=_NUM_FILLER)
        self._filler = " " + " ".join(words)
        starts = array("I", [0])
        for word in words:
            starts.append(starts[-1] + 1 + len(word))
        self._starts = starts
        """Where each word's space stands in the filler, and then its end."""

    def text(self, number: int, num_tokens: int) -> str:
        """Text `number` of the run, this long. Equal numbers of different lengths begin alike."""
        if self._unit is TokenUnit.BYTE:
            return self._bytes(number, num_tokens)
        head = [*self._salt, *_spell(number)]
        if num_tokens <= len(head):
            return " ".join(head[len(head) - num_tokens :])
        return " ".join(head) + self._words(number * 37 % _NUM_FILLER, num_tokens - len(head))

    def _words(self, start: int, num: int) -> str:
        """So many words with the space before each, from word `start` of the filler on, around its end."""
        parts = []
        while num > 0:
            last = min(start + num, _NUM_FILLER)
            parts.append(self._filler[self._starts[start] : self._starts[last]])
            num -= last - start
            start = 0
        return "".join(parts)

    def _bytes(self, number: int, num: int) -> str:
        head = f"{number:06x}-{'-'.join(self._salt)}"
        if num <= len(head):
            return head[:num]
        start, missing = number * 37 % len(self._filler), num - len(head)
        num_around = (start + missing) // len(self._filler) + 1
        return head + (self._filler * num_around)[start : start + missing]


def _spell(number: int) -> list[str]:
    """The number's lowest digits in base 64, the highest first."""
    return [_ALPHABET[number >> 6 * place & 63] for place in reversed(range(_NUM_NUMBER))]
