"""Whatever comes is a conversation or a refusal, and whatever is said stays inside its event: in every grammar."""

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batcher.core.admission.reservation import Standing
from batcher.errors import InvalidRequest, ServerFault
from batcher.service.conversation import Conversation
from batcher.service.wire.anthropic import ANTHROPIC
from batcher.types import FinishReason, Usage
from tests.service.wire.grammars import GRAMMARS, HEAD, NO_BODIES, body, document

pytestmark = pytest.mark.parametrize("name", GRAMMARS)


@pytest.mark.parametrize("data", NO_BODIES.values(), ids=NO_BODIES)
def test_what_is_no_json_or_no_text_is_told_so(name: str, data: bytes) -> None:
    """B74. The words are short, however long what they are about."""
    with pytest.raises(InvalidRequest) as refused:
        GRAMMARS[name].decode(data)
    assert 0 < len(refused.value.message) < 600
    json.dumps(refused.value.message).encode()


def test_of_an_empty_body_that_is_said(name: str) -> None:
    with pytest.raises(InvalidRequest, match="the body is empty: it must be a JSON object like"):
        GRAMMARS[name].decode(b"")


def test_text_that_is_text_comes_as_it_was(name: str) -> None:
    text = "\0\x7f \u2028 \U0001f469‍\U0001f680 \ufeff</script>"
    assert GRAMMARS[name].decode(body(messages=[{"role": "user", "content": text}])).messages[0].content == text
    pair = body().replace(b"hello", rb"\ud83d\ude00")
    assert GRAMMARS[name].decode(pair).messages[0].content == "\U0001f600"


def test_of_a_field_given_twice_the_last_counts_and_both_are_checked(name: str) -> None:
    twice = body().replace(b'"max_tokens": 7', b'"max_tokens": 7, "max_tokens": 8')
    assert GRAMMARS[name].decode(twice).max_tokens == 8
    with pytest.raises(InvalidRequest):
        GRAMMARS[name].decode(body().replace(b'"max_tokens": 7', b'"max_tokens": 0, "max_tokens": 8'))


ANTHROPIC_FIELDS = ["system", "top_k", "stop_sequences", "thinking", "tool_choice", "cache_control", "service_tier"]
OPENAI_FIELDS = ["max_completion_tokens", "stop", "stream_options", "n", "logprobs", "response_format", "user", "seed"]
FIELDS = ["model", "messages", "max_tokens", "temperature", "top_p", "stream", "metadata", "tools", "x"]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None, exclude_categories=[]))
KEYS = st.sampled_from(["role", "content", "type", "text", "include_usage", "name", "x"])
VALUES = st.recursive(
    LEAVES | st.sampled_from(["user", "assistant", "text", "auto", "disabled"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system", "developer", "tool"]), "content": VALUES}, optional={"x": VALUES}
)
DOCUMENTS = st.dictionaries(st.sampled_from(FIELDS + ANTHROPIC_FIELDS + OPENAI_FIELDS), VALUES, max_size=5).flatmap(
    lambda fields: st.builds(
        lambda turns: {**document(), **({"messages": turns} if turns else {}), **fields}, st.lists(TURNS, max_size=3)
    )
)


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=60) | DOCUMENTS.map(lambda drawn: json.dumps(drawn).encode()))
def test_any_bytes_are_a_conversation_or_a_refusal(name: str, data: bytes) -> None:
    decoders = [GRAMMARS[name].decode, *([ANTHROPIC.decode_count] if name == "anthropic" else [])]
    for decode in decoders:
        try:
            conversation = decode(data)
        except InvalidRequest as refused:
            assert 0 < len(refused.message) < 600  # noqa: PT017
        else:
            _check(conversation)


def _check(conversation: Conversation) -> None:
    assert conversation.messages
    assert all(message.content for message in conversation.messages if message.role == "user")
    assert conversation.num_bytes >= 0  # There is a UTF-8 form.
    assert {message.role for message in conversation.messages} <= {"system", "user", "assistant"}
    assert conversation.max_tokens is None or conversation.max_tokens >= 1
    assert 0.0 <= conversation.sampling.temperature <= 2.0
    assert 0.0 < conversation.sampling.top_p <= 1.0
    assert 0 <= conversation.sampling.seed < 2**63
    assert "" not in conversation.stop_sequences


TEXT = st.text(min_size=1) | st.text(alphabet='\r\n\x0b\x0c\x85\u2028\u2029: dat,event[DONE]"\\{}', min_size=1)


@settings(max_examples=100, deadline=None)
@given(text=TEXT, stop=st.none() | TEXT, finish=st.sampled_from(FinishReason))
def test_nothing_that_is_said_can_leave_its_event(name: str, text: str, stop: str | None, finish: FinishReason) -> None:
    """B76, in streams: an event is its name, one line of data and an empty one; readers of lines know CR, LF and both."""
    dialect = GRAMMARS[name]
    writer = dialect.open_stream(HEAD, dialect.decode(body(stream=True)))
    error = ServerFault(text)
    sent = [writer.start(), writer.delta(text), writer.ping(), writer.stop(finish, stop, Usage(5, 2)), writer.error(error)]
    texts = []
    for event in b"".join(sent).split(b"\n\n")[:-1]:
        assert re.fullmatch(rb"(event: [a-z_]+\n)?data: [^\r\n]+|: ping", event)
        if b"data: {" in event:
            texts.append(_text_in(json.loads(event[event.index(b"data: ") + 6 :])))
    assert "".join(texts) == text
    for whole in (dialect.encode_answer(HEAD, text, finish, stop, Usage(5, 2)), dialect.error_reply(error, "req_1").body):
        json.loads(whole)


def _text_in(data: dict[str, object]) -> str:
    match data:
        case {"type": "content_delta", "text": str(text)} | {"delta": {"type": "text_delta", "text": str(text)}}:
            return text
        case {"choices": [{"delta": {"content": str(text)}}]}:
            return text
        case _:
            return ""


def test_headers_tell_only_of_limits_that_there_are(name: str) -> None:
    """B41: nothing remaining is told as 0, no limit not at all."""
    assert GRAMMARS[name].limit_headers(Standing(), now=0.0) == []
    only = GRAMMARS[name].limit_headers(Standing(tokens_limit=5, tokens_remaining=0, tokens_reset_s=59.1), now=0.0)
    assert len(only) == 3
    assert [value for _, value in only][:2] == [b"5", b"0"]
    assert all(re.fullmatch(rb"[a-z-]+", key) for key, _ in only)
