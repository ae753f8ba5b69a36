"""A vocabulary as a GGUF file has it: tokens, their types, merges or scores, and a name for the way text is cut into words.

Only the ways that are known exactly are here. A file that names another one is refused, since a wrong cut gives ids that decode
to the right text and that the model was never trained on.
"""

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from tokenizers.models import BPE

from backends.llm.gguf_file import GgufFile
from backends.llm.vocabulary import Namer, Vocabulary, make_pieces
from batcher.errors import ConfigError

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Token types: the first two are special, the third are matched whole wherever they stand."""

_ROLES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
"""The word in a file's keys -> the word in a template's variables."""

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Llama 3 and Qwen 2 cut text into words; they differ in how many digits stay together."""


def read_gguf_vocabulary(file: GgufFile) -> Vocabulary:
    """Raises ConfigError for what is not whole or not supported."""
    prefix = "tokenizer.ggml."
    values = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    try:
        return _read(values, file.metadata.get("tokenizer.chat_template"))
    except (LookupError, ValueError, TypeError) as error:
        raise ConfigError(f"{file.path}: the vocabulary is not whole: {error!r}") from error
    except ConfigError as error:
        raise ConfigError(f"{file.path}: {error}") from error


def _read(values: Mapping[str, Any], chat_template: str | None) -> Vocabulary:
    tokens: list[str] = values["tokens"]
    types: list[int] = values["token_type"]
    namer = Namer()
    specials = {token for token, token_type in enumerate(types) if token_type in (_UNKNOWN, _CONTROL)}
    whole = {token: tokens[token] for token, token_type in enumerate(types) if token_type == _USER_DEFINED}
    names = {tokens[token]: namer.name(token) for token in sorted(specials)}
    vocab = {names.get(text, text): token for token, text in enumerate(tokens)}
    if (kind := values.get("model")) not in ("gpt2", "llama"):
        raise ConfigError(f"tokenizer model {kind!r} is not supported; these are: gpt2 (byte-level BPE), llama (SentencePiece)")
    tokenizer = _build_byte_level(vocab, values) if kind == "gpt2" else _build_sentencepiece(vocab, values)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in whole.values()])
    tokenizer.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names.values()])
    return Vocabulary(
        tokenizer,
        names,
        ids={tokens[token]: token for token in sorted(specials)},
        pieces=make_pieces(tokenizer, specials=specials, whole=whole, is_byte_level=kind == "gpt2"),
        eos_ids=frozenset(values[key] for key in ("eos_token_id", "eot_token_id", "eom_token_id") if key in values),
        chat_template=chat_template,
        template_tokens={
            f"{role}_token": tokens[values[f"{word}_token_id"]] for word, role in _ROLES.items() if f"{word}_token_id" in values
        },
    )


def _build(vocab: dict[str, int], merges: list[tuple[str, str]], **options: Any) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(BPE(vocab=vocab, merges=merges, **options))
    except Exception as error:  # The library raises bare Exception for merges that are not in the vocabulary.
        raise ConfigError(f"the vocabulary cannot be used: {error}") from error


def _build_byte_level(vocab: dict[str, int], values: Mapping[str, Any]) -> tokenizers.Tokenizer:
    kind = values.get("pre")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in values["merges"])]
    tokenizer = _build(vocab, pairs, ignore_merges=kind == "llama-bpe")
    tokenizer.pre_tokenizer = _splitter(kind)
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def _splitter(kind: str | None) -> pre_tokenizers.PreTokenizer:
    """How text is cut before merging; the file has a name for it only."""
    if kind == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "smollm":
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    if kind in ("llama-bpe", "qwen2"):
        words = Regex(_WORDS.format(digits="{1,3}" if kind == "llama-bpe" else ""))
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Split(words, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    raise ConfigError(f"pre-tokenizer {kind!r} is not supported; these are: smollm, llama-bpe, qwen2, gpt-2")


def _build_sentencepiece(vocab: dict[str, int], values: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """SentencePiece merges whichever neighbours make the token with the best score, so every way to halve a token is a merge,
    and what no token covers falls back to bytes."""
    scores: list[float] = values["scores"]
    merges = [
        (-scores[token], vocab[text[:cut]], vocab[text[cut:]], text[:cut], text[cut:])
        for text, token in vocab.items()
        for cut in range(1, len(text))
        if text[:cut] in vocab and text[cut:] in vocab
    ]
    merges.sort()
    tokenizer = _build(vocab, [(left, right) for *_, left, right in merges], byte_fallback=True, fuse_unk=True)
    spaces = normalizers.Replace(" ", "▁")
    has_prefix = values.get("add_space_prefix", True)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if has_prefix else spaces
    return tokenizer
