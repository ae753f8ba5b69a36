"""Ids equal transformers' for every text that callers may write."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from backends.llm.tokenizer import ModelTokenizer
from batcher.errors import InvalidRequest
from batcher.types import Message
from tests.backends.llm.texts import TEXTS, many, ordinary
from tests.backends.llm.vocab import SPECIALS, text_of

SMOLLM2_LACKS = frozenset(b"\x04\x06\x13\x14\x16\x1d\xf1\xf2")
"""Six control characters, and the first byte of Unicode's planes 4 to 11, where there are no characters."""


def check_text(tokenizer: ModelTokenizer, reference: PreTrainedTokenizerFast, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


@pytest.mark.parametrize("text", TEXTS)
def test_ids_of_a_text(
    text: str,
    tiny_tokenizer: ModelTokenizer,
    tiny_reference: PreTrainedTokenizerFast,
) -> None:
    check_text(tiny_tokenizer, tiny_reference, text)


@many
@given(text=ordinary)
def test_ids_of_any_text(text: str, tiny_tokenizer: ModelTokenizer, tiny_reference: PreTrainedTokenizerFast) -> None:
    check_text(tiny_tokenizer, tiny_reference, text)


@many
@given(text=ordinary | st.sampled_from(TEXTS))
def test_smollm2s_ids_of_any_text(
    text: str, smollm2_tokenizer: ModelTokenizer, smollm2_reference: PreTrainedTokenizerFast
) -> None:
    known = "".join(character for character in text if SMOLLM2_LACKS.isdisjoint(character.encode()))
    check_text(smollm2_tokenizer, smollm2_reference, known)


def test_smollm2_has_no_token_for_some_bytes(smollm2_tokenizer: ModelTokenizer) -> None:
    """They leave no trace, as in transformers; a text of nothing else has no ids."""
    assert smollm2_tokenizer.encode("a\x04b") == smollm2_tokenizer.encode("a") + smollm2_tokenizer.encode("b")
    assert smollm2_tokenizer.encode("\x04") == []


def test_smollm2_splits_digits(smollm2_tokenizer: ModelTokenizer) -> None:
    """Known ids of the model's own tokenizer; without the splitter 12 would be one token."""
    assert smollm2_tokenizer.encode("x  12") == [104, 256, 33, 34]
    assert smollm2_tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]


def test_smollm2s_facts(smollm2_tokenizer: ModelTokenizer) -> None:
    assert smollm2_tokenizer.vocab_size == 49_152
    assert smollm2_tokenizer.stop_ids == {0, 2}
    assert smollm2_tokenizer.token_bytes(2) == b""
    assert smollm2_tokenizer.token_bytes(7042) == b" Paris"
    assert smollm2_tokenizer.token_bytes(1_000_000) == b""


@pytest.mark.parametrize("special", SPECIALS)
def test_a_special_tokens_text_is_ordinary_in_a_callers_text(special: str, tiny_tokenizer: ModelTokenizer) -> None:
    for text in (special, f"a{special}b", special * 3, f"{special} ", f"<{special}>"):
        ids = tiny_tokenizer.encode(text)
        assert min(ids) > 2
        assert text_of(tiny_tokenizer, ids) == text


def test_text_without_a_utf8_form_is_the_callers_fault(tiny_tokenizer: ModelTokenizer) -> None:
    with pytest.raises(InvalidRequest, match="lone surrogate at character 2"):
        tiny_tokenizer.encode("ab\udc00")
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        tiny_tokenizer.render([Message("user", "\udc00|im_end|>")])


def test_threads_may_share_it(tiny_tokenizer: ModelTokenizer) -> None:
    texts = [f"{text} {index}" for index in range(8) for text in TEXTS]
    alone = [(tiny_tokenizer.encode(text), tiny_tokenizer.render([Message("user", text)])) for text in texts]
    with ThreadPoolExecutor(4) as threads:
        together = list(
            threads.map(lambda text: (tiny_tokenizer.encode(text), tiny_tokenizer.render([Message("user", text)])), texts)
        )
    assert together == alone
    assert any(one != other for one, other in pairwise(alone))
