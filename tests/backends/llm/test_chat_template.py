"""A conversation's prompt equals transformers', whatever its template does, and what the template refuses is refused."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from backends.llm.tokenizer import ModelTokenizer
from batcher.errors import ConfigError, InvalidRequest
from batcher.types import Message
from tests.backends.llm.texts import TEXTS, many, ordinary
from tests.backends.llm.vocab import THINKING, rendered_by, text_of, with_template

TRIMMING = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] | trim + '<|im_end|>\n'}}"
    "{% endfor %}<|im_start|>assistant\n"
)
ALTERNATING = (
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}{{ message['content'] }}{% endfor %}"
)

messages = st.lists(st.builds(Message, st.sampled_from(["system", "user", "assistant"]), ordinary), min_size=1, max_size=4)


def test_smollm2s_prompt_of_a_greeting(smollm2_tokenizer: ModelTokenizer) -> None:
    """The template adds a system prompt of its own."""
    ids = smollm2_tokenizer.render([Message("user", "Hello")])
    assert ids[:3] == [1, 9690, 198]
    assert [token for token in ids if token <= 2] == [1, 2, 1, 2, 1]
    assert ids[-4:] == [1, 520, 9531, 198]
    assert text_of(smollm2_tokenizer, ids) == (
        "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\nuser\nHello\nassistant\n"
    )


@many
@given(messages=messages)
def test_a_prompt_is_transformers_prompt(
    messages: list[Message], tiny_tokenizer: ModelTokenizer, tiny_reference: PreTrainedTokenizerFast
) -> None:
    assert tiny_tokenizer.render(messages) == rendered_by(tiny_reference, messages)


@many
@given(messages=messages)
def test_smollm2s_prompt_is_transformers_prompt(
    messages: list[Message], smollm2_tokenizer: ModelTokenizer, smollm2_reference: PreTrainedTokenizerFast
) -> None:
    assert smollm2_tokenizer.render(messages) == rendered_by(smollm2_reference, messages)


@pytest.mark.parametrize("template", [TRIMMING, THINKING], ids=["trimming", "thinking"])
def test_templates_that_change_contents_do_so_as_in_transformers(template: str, tmp_path: Path) -> None:
    tokenizer, reference = with_template(template, tmp_path)
    for text in (*TEXTS, "<think>\nhm\n</think>\n\nhello", "</think>", " < ", "> quoted <"):
        conversation = [Message("user", text), Message("assistant", text), Message("user", f"\n{text}")]
        assert tokenizer.render(conversation) == rendered_by(reference, conversation)


def test_an_order_that_the_template_refuses_is_the_callers_fault(tmp_path: Path) -> None:
    tokenizer, _ = with_template(ALTERNATING, tmp_path)
    assert tokenizer.render([Message("user", "the"), Message("assistant", "user")])
    with pytest.raises(InvalidRequest, match="must alternate"):
        tokenizer.render([Message("user", "the"), Message("user", "user")])


def test_without_a_template_there_is_no_conversation(tmp_path: Path) -> None:
    tokenizer, _ = with_template(None, tmp_path)
    assert tokenizer.encode("hello")
    with pytest.raises(InvalidRequest, match="no chat template"):
        tokenizer.render([Message("user", "hello")])


def test_a_template_that_cannot_be_parsed_is_refused_at_load(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="chat template cannot be parsed"):
        with_template("{% for message in %}", tmp_path)


def test_a_template_may_want_what_it_likes(tmp_path: Path) -> None:
    template = "{% if messages[0]['role'] != 'system' %}{{ raise_exception('no system prompt') }}{% endif %}the"
    tokenizer, _ = with_template(template, tmp_path)
    assert text_of(tokenizer, tokenizer.render([Message("system", "hello")])) == "the"
    with pytest.raises(InvalidRequest, match="no system prompt"):
        tokenizer.render([Message("user", "hello")])
