"""A model's vocabulary with secret names for its special tokens; `folder_vocabulary.py` and `gguf_vocabulary.py` read one.

A special token is written as text ("<|im_end|>"), and a caller can write that text, too. The library's switch for it, to split
special tokens in a whole text or not at all, cannot tell a template's from a caller's. So here each special token gets a new
name that is drawn when the vocabulary is read and that nobody can guess. What callers write is then ordinary text whatever it
looks like, the template's own are renamed by `tokenizer.py`, and a whole prompt is still encoded as one text, with the merges
that transformers makes.
"""

import secrets
from typing import NamedTuple

import tokenizers


class Vocabulary(NamedTuple):
    tokenizer: tokenizers.Tokenizer
    """Knows special tokens by their secret names only."""
    names: dict[str, str]
    """Special token as templates write it -> its secret name."""
    ids: dict[str, int]
    """Special token as templates write it -> its id."""
    pieces: list[bytes]
    """Id -> the bytes it stands for; none for special tokens and for ids without a token."""
    eos_ids: frozenset[int]
    """The ids that the source itself declares as ends."""
    chat_template: str | None
    template_tokens: dict[str, str]
    """`bos_token` and its like, for the template."""


class Namer:
    """Draws secret names: unguessable, none the beginning of another, and left alone by every normaliser."""

    def __init__(self) -> None:
        self._secret = secrets.token_hex(16)

    def name(self, token: int) -> str:
        return f"{self._secret}x{token}x"


def make_pieces(
    tokenizer: tokenizers.Tokenizer, *, specials: set[int], whole: dict[int, str], is_byte_level: bool
) -> list[bytes]:
    """`Vocabulary.pieces`. `whole` are tokens added to the vocabulary as plain text; of the others bytes are written as GPT-2's
    characters if `is_byte_level`, and otherwise as SentencePiece has them: "▁" for a space, "<0x0A>" for a byte."""
    by_id = {token: text for text, token in tokenizer.get_vocab(with_added_tokens=True).items()}
    pieces = [b""] * (max(by_id) + 1)
    for token, text in by_id.items():
        if token not in specials:
            pieces[token] = whole[token].encode() if token in whole else _byte_level(text) if is_byte_level else _spaced(text)
    return pieces


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's: printable bytes stand for themselves, the others for the characters from 256 on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _byte_level(text: str) -> bytes:
    if all(character in _BYTE_OF for character in text):
        return bytes(map(_BYTE_OF.__getitem__, text))
    return text.encode()


def _spaced(text: str) -> bytes:
    if len(text) == len("<0x00>") and text.startswith("<0x") and text.endswith(">"):
        return bytes.fromhex(text[3:5])
    return text.replace("▁", " ").encode()
