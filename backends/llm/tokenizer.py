"""Text to ids and back, and conversations to prompts in which no caller can place a special token.

The template renders contents and all into one text, as transformers has it, since merges go across the seam between the two and
a template may trim what it is given. What tells a caller's "<|im_end|>" from the template's is that characters of the caller's
are stood in for by lone surrogates, which no text that can be encoded holds. After rendering, the special tokens that are still
whole are the template's: they get their secret names (`vocabulary.py`), the stand-ins are taken back, and all is encoded at
once. Rendering and encoding in parts, between special tokens, was refused: some tokenizers treat the beginning of a text apart.
"""

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from transformers.utils.chat_template_utils import render_jinja_template

from backends.llm.folder_vocabulary import read_folder_vocabulary
from backends.llm.gguf_file import GgufFile
from backends.llm.gguf_vocabulary import read_gguf_vocabulary
from backends.llm.vocabulary import Vocabulary
from batcher.errors import ConfigError, InvalidRequest
from batcher.types import Message

_ROLES = ("system", "user", "assistant")
"""A role is text of the caller's that templates place between special tokens; so only these."""

_END_NAMES = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "</s>", "<|end|>", "<end_of_turn>"}
)
"""Special tokens that end a turn in every model that has them, whether its files declare it or not."""

_FIRST_STAND_IN = 0xDC00


class ModelTokenizer:
    """A Tokenizer (`backends/base.py`). Holds nothing that changes."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises ConfigError for a chat template that cannot be parsed."""
        self._vocabulary = vocabulary
        self.vocab_size = len(vocabulary.pieces)
        self.stop_ids = vocabulary.eos_ids | {token for text, token in vocabulary.ids.items() if text in _END_NAMES}
        specials = sorted(vocabulary.names, key=len, reverse=True)  # Of two that fit the longer is meant.
        either = "|".join(map(re.escape, specials)) or r"(?!)"
        self._special = re.compile(either)
        self._special_start = re.compile(f"(?=(?:{either}))(?s:.)")
        ends = sorted({end for text in specials for end in (text[0], text[-1])})
        self._stand_ins = {end: chr(_FIRST_STAND_IN + index) for index, end in enumerate(ends)}
        self._restore = {stand_in: end for end, stand_in in self._stand_ins.items()}
        self._render_template: Callable[..., Any] = functools.partial(
            render_jinja_template,
            chat_template=vocabulary.chat_template,
            add_generation_prompt=True,
            **vocabulary.template_tokens,  # type: ignore[arg-type]
        )
        self._check_template()

    def encode(self, text: str) -> list[int]:
        """Raises InvalidRequest for text that has no UTF-8 form. Bytes that a vocabulary lacks (SmolLM2's has no token for six
        control characters) leave no trace, so there may be no ids at all."""
        _check_text(text)
        return self._encode(text)

    def render(self, messages: Sequence[Message]) -> list[int]:
        if self._vocabulary.chat_template is None:
            raise InvalidRequest("this model has no chat template: it continues text and takes no messages")
        for message in messages:
            if message.role not in _ROLES:
                raise InvalidRequest(f"role {message.role[:40]!r} is none of {', '.join(_ROLES)}")
            _check_text(message.content)
        text = self._render_guarded(messages)
        named = self._special.sub(lambda found: self._vocabulary.names[found[0]], text)
        return self._encode(_replace(named, self._restore))

    def token_bytes(self, token: int) -> bytes:
        pieces = self._vocabulary.pieces
        return pieces[token] if token < len(pieces) else b""

    def _encode(self, text: str) -> list[int]:
        # The library's plain `encode` holds the interpreter lock throughout: 1.2 s for 2 MB, in which no other thread runs.
        (encoding,) = self._vocabulary.tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return encoding.ids

    def _render_guarded(self, messages: Sequence[Message]) -> str:
        """The rendered text, in which whole special tokens are the template's.

        Of contents only their special tokens are broken up, so that a template which looks into them (Qwen3 cuts out thoughts)
        finds the rest as it is. If contents bring a template to put a special token together from parts, then the text has
        others than with every character stood in for that can begin or end one; and that text is taken.
        """
        contents = [message.content for message in messages]
        broken = [self._break_up(content) for content in contents]
        text = self._render_text(messages, broken)
        harmless = [_replace(content, self._stand_ins) for content in contents]
        if harmless == contents:
            return text
        surely = self._render_text(messages, harmless)
        return text if self._special.findall(text) == self._special.findall(surely) else surely

    def _break_up(self, content: str) -> str:
        """Without its whole special tokens, overlapping ones too: the first character of each is stood in for."""
        if self._special.search(content) is None:
            return content
        return self._special_start.sub(lambda found: self._stand_ins[found[0]], content)

    def _render_text(self, messages: Sequence[Message], contents: list[str]) -> str:
        turns: list[dict[str, Any]] = [
            {"role": message.role, "content": content} for message, content in zip(messages, contents, strict=True)
        ]
        try:
            texts, _ = self._render_template([turns])
        except jinja2.TemplateError as error:
            raise InvalidRequest(f"the model's chat template refuses these messages: {error}") from error
        return str(texts[0])

    def _check_template(self) -> None:
        if self._vocabulary.chat_template is None:
            return
        try:
            self._render_text([Message("user", "Hello")], ["Hello"])
        except InvalidRequest as error:  # Refusing these messages is a template's right.
            if isinstance(error.__cause__, jinja2.TemplateSyntaxError):
                raise ConfigError(f"the model's chat template cannot be parsed: {error.__cause__}") from error

    def __repr__(self) -> str:
        return f"<ModelTokenizer {self.vocab_size} tokens, stops at {sorted(self.stop_ids)}>"


def load_tokenizer(path: Path) -> ModelTokenizer:
    """From a Hugging Face folder or a .gguf file. Raises ConfigError."""
    return ModelTokenizer(read_gguf_vocabulary(GgufFile(path)) if path.is_file() else read_folder_vocabulary(path))


def _replace(text: str, characters: dict[str, str]) -> str:
    for old, new in characters.items():
        text = text.replace(old, new)  # `str.translate` takes ten times as long, and holds the interpreter lock as well.
    return text


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the text holds a lone surrogate at character {error.start}") from error
