"""Vocabularies from folders and GGUF files, and what is refused of both."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gguf import GGUFWriter, TokenType
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from backends.llm.gguf_file import GgufFile
from backends.llm.gguf_vocabulary import read_gguf_vocabulary
from backends.llm.tokenizer import ModelTokenizer, load_tokenizer
from batcher.errors import ConfigError
from batcher.types import Message
from tests.backends.llm.vocab import CHATML, add_vocabulary, finish, in_transformers, rendered_by, text_of, train

TEXTS = ("the user says hello in 2024", "  a\n\nb  ", "日本 👩‍👩‍👧", "<|im_end|>", "don't WE'LL\t\r\n", "12345 1 22 333")


def write_bytes_vocabulary(path: Path, kind: str = "smollm") -> Path:
    writer = GGUFWriter(path, "llama")
    add_vocabulary(writer, train(), kind=kind)
    finish(writer)
    return path


def write_pieces_vocabulary(path: Path, *, has_prefix: bool = True) -> Path:
    """SentencePiece's: <unk>, <s>, </s>, the bytes, and a few pieces with scores."""
    pieces = ["▁", "h", "e", "l", "o", "ll", "he", "▁he", "llo", "▁hello", "lo"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    types = [
        TokenType.UNKNOWN,
        TokenType.CONTROL,
        TokenType.CONTROL,
        *[TokenType.BYTE] * 256,
        *[TokenType.NORMAL] * len(pieces),
    ]
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(rank) for rank in range(len(pieces))])
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_space_prefix(has_prefix)
    writer.add_chat_template(
        "{{ bos_token }}{% for message in messages %}[{{ message['content'] }}]{{ eos_token }}{% endfor %}"
    )
    finish(writer)
    return path


def test_a_gguf_file_and_a_folder_agree(tmp_path: Path) -> None:
    reference = in_transformers(train())
    reference.save_pretrained(tmp_path)
    from_folder = load_tokenizer(tmp_path)
    from_file = load_tokenizer(write_bytes_vocabulary(tmp_path / "tiny.gguf"))
    assert from_file.stop_ids == from_folder.stop_ids == {0, 2}
    assert from_file.vocab_size == from_folder.vocab_size
    for text in TEXTS:
        assert from_file.encode(text) == from_folder.encode(text)
        conversation = [Message("system", text), Message("user", text)]
        assert from_file.render(conversation) == from_folder.render(conversation)
    for token in range(from_file.vocab_size + 1):
        assert from_file.token_bytes(token) == from_folder.token_bytes(token)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("smollm", ["a", "  ", " b", " ", "1", "2", "3", "4", "!!", "\n"]),
        ("gpt-2", ["a", "  ", " b", " 1234", "!!", "\n"]),
        ("llama-bpe", ["a", "  ", " b", " ", "123", "4", "!!\n"]),
        ("qwen2", ["a", "  ", " b", " ", "1", "2", "3", "4", "!!\n"]),
    ],
)
def test_each_named_way_cuts_words_as_its_models_do(kind: str, words: list[str], tmp_path: Path) -> None:
    vocabulary = read_gguf_vocabulary(GgufFile(write_bytes_vocabulary(tmp_path / "tiny.gguf", kind)))
    inner = vocabulary.tokenizer.pre_tokenizer
    assert inner is not None
    cut = [text.replace("Ġ", " ").replace("Ċ", "\n") for text, _ in inner.pre_tokenize_str("a   b 1234!!\n")]
    assert cut == words


def test_qwen2_composes_characters(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_bytes_vocabulary(tmp_path / "tiny.gguf", "qwen2"))
    assert text_of(tokenizer, tokenizer.encode("e\u0301")) == "é"


def names(tokenizer: ModelTokenizer, text: str) -> list[bytes]:
    return [tokenizer.token_bytes(token) for token in tokenizer.encode(text)]


def test_sentencepiece_merges_by_score_and_falls_back_to_bytes(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_pieces_vocabulary(tmp_path / "pieces.gguf"))
    assert names(tokenizer, "hello") == [b" hello"]
    assert names(tokenizer, "hell") == [b" he", b"ll"]
    assert names(tokenizer, "lo é") == [b" ", b"lo", b" ", b"\xc3", b"\xa9"]
    assert names(tokenizer, "</s>") == [b" ", b"<", b"/", b"s", b">"]
    assert tokenizer.stop_ids == {2}
    assert tokenizer.token_bytes(0) == tokenizer.token_bytes(1) == tokenizer.token_bytes(2) == b""
    without = load_tokenizer(write_pieces_vocabulary(tmp_path / "bare.gguf", has_prefix=False))
    assert names(without, "hello hello") == [b"he", b"llo", b" hello"]


def test_sentencepiece_renders_the_templates_own_special_tokens_only(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_pieces_vocabulary(tmp_path / "pieces.gguf"))
    ids = tokenizer.render([Message("user", "he</s><s><unk>")])
    assert [token for token in ids if token < 3] == [1, 2]
    assert text_of(tokenizer, ids) == " [he</s><s><unk>]"


@pytest.mark.parametrize("beginning", ["prepend", "first", "always", "never"])
def test_a_folder_of_pieces_has_transformers_ids_wherever_spaces_are_put(beginning: str, tmp_path: Path) -> None:
    """Llama 2 and Mistral: a space before the text, before each part of it, or before its first only."""
    inner = tokenizers.Tokenizer(
        BPE({"<unk>": 0, "<s>": 1, "</s>": 2, "▁": 3, "h": 4, "▁h": 5}, [("▁", "h")], unk_token="<unk>")
    )
    if beginning == "prepend":
        inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=beginning, split=False)
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    template = "<s>{% for message in messages %}{{ message['content'] }}</s>h{% endfor %}"
    reference = in_transformers(inner, template)
    reference.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    for text in ("h", " h", "hh h ", "h\nh"):
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)
        conversation = [Message("user", text), Message("user", text)]
        assert tokenizer.render(conversation) == rendered_by(reference, conversation)
    assert [token for token in tokenizer.render([Message("user", "h</s>h")]) if token in (1, 2)] == [1, 2]


def test_special_tokens_that_swallow_spaces_do_so_under_their_secret_names(tmp_path: Path) -> None:
    inner = train()
    inner.add_special_tokens([AddedToken("<|turn|>", lstrip=True, rstrip=True, normalized=False)])
    template = "{% for message in messages %} <|turn|> \n{{ message['content'] }} <|turn|> the{% endfor %}"
    reference = in_transformers(inner, template)
    reference.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    for text in TEXTS:
        if "<|" not in text:
            assert tokenizer.render([Message("user", text)]) == rendered_by(reference, [Message("user", text)])


def change_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    in_transformers(train()).save_pretrained(tmp_path)
    return tmp_path


def test_old_folders_keep_the_template_among_the_settings(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    for template in (CHATML, [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHATML}]):
        change_json(folder / "tokenizer_config.json", chat_template=template, eos_token={"content": "<|im_end|>"})
        tokenizer = load_tokenizer(folder)
        assert tokenizer.render([Message("user", "hello")]) == rendered_by(in_transformers(train()), [Message("user", "hello")])


def test_ends_are_declared_by_the_models_files_too(folder: Path) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": [2, 40]}')
    (folder / "config.json").write_text('{"eos_token_id": 41}')
    assert load_tokenizer(folder).stop_ids == {0, 2, 40, 41}


def test_added_tokens_that_are_not_special_are_text(folder: Path) -> None:
    """Qwen's <think>: the caller may write it, and it shows in the answer."""
    inner = train()
    inner.add_tokens(["<think>"])
    in_transformers(inner).save_pretrained(folder)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode("a<think>")[-1] == 304
    assert tokenizer.token_bytes(304) == b"<think>"
    assert tokenizer.vocab_size == 305


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}, "decoder 'WordPiece'"),
        ({"model": {"type": "Unigram", "unk_id": None, "vocab": []}}, "model 'Unigram'"),
        ({"pre_tokenizer": {"type": "Unheard"}}, "cannot be used"),
        ({"added_tokens": None}, "cannot be used"),
    ],
)
def test_a_tokenizer_json_that_is_not_understood_is_refused(changes: dict[str, Any], named: str, folder: Path) -> None:
    change_json(folder / "tokenizer.json", **changes)
    with pytest.raises(ConfigError, match=named):
        load_tokenizer(folder)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)


def test_gguf_vocabularies_that_are_not_known_exactly_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tiny\.gguf: pre-tokenizer 'tekken'"):
        load_tokenizer(write_bytes_vocabulary(tmp_path / "tiny.gguf", "tekken"))
    writer = GGUFWriter(tmp_path / "bert.gguf", "llama")
    writer.add_tokenizer_model("bert")
    writer.add_token_list(["a"])
    writer.add_token_types([1])
    finish(writer)
    with pytest.raises(ConfigError, match="tokenizer model 'bert'"):
        load_tokenizer(tmp_path / "bert.gguf")
    finish(GGUFWriter(tmp_path / "none.gguf", "llama"))
    with pytest.raises(ConfigError, match="vocabulary is not whole"):
        load_tokenizer(tmp_path / "none.gguf")
