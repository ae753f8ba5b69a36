"""Anthropic's published grammar, byte by byte: what it reads, what it refuses by name, what it writes."""

import json
from typing import Any

import pytest

from batcher.errors import IdempotencyConflict, InvalidRequest, NotFound, RateLimited, ShuttingDown
from batcher.service.conversation import Conversation
from batcher.service.wire.anthropic import ANTHROPIC
from batcher.types import FinishReason, Message, Sampling, Usage
from tests.service.wire.grammars import HEAD, STANDING, body, document, headers_of

USAGE = Usage(5, 2)
USER = {"role": "user", "content": "hello"}

# What it reads.


def test_a_body_is_a_conversation() -> None:
    decoded = ANTHROPIC.decode(
        body(
            system=[{"type": "text", "text": "be "}, {"type": "text", "text": "brief", "cache_control": {"type": "ephemeral"}}],
            messages=[
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "c", "citations": None}]},
                USER,
            ],
            temperature=1,
            top_p=0.5,
            top_k=3,
            stop_sequences=["x"],
            stream=True,
        )
    )
    assert decoded == Conversation(
        model="m",
        messages=(Message("system", "be brief"), Message("user", "ab"), Message("assistant", "c"), Message("user", "hello")),
        max_tokens=7,
        sampling=Sampling(temperature=1.0, top_p=0.5, top_k=3, seed=decoded.sampling.seed),
        stop_sequences=("x",),
        is_streamed=True,
    )


def test_a_temperature_of_zero_is_zero_and_none_is_the_default() -> None:
    """B41."""
    assert ANTHROPIC.decode(body(temperature=0)).sampling.temperature == 0.0
    assert ANTHROPIC.decode(body(temperature=None)).sampling.temperature == 1.0


IGNORED: list[dict[str, Any]] = [
    {"metadata": {"user_id": "u"}},
    {"service_tier": "auto"},
    {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
    {"tools": []},
    {"tool_choice": {"type": "none"}},
    {"thinking": {"type": "disabled"}},
    {"output_config": {}},
    {"system": ""},
    {"stream": False, "stop_sequences": None},
    {"tools": None, "tool_choice": None, "thinking": None, "service_tier": None, "container": None, "metadata": None},
    {"stream": None, "temperature": None, "top_p": None, "top_k": None, "stop_sequences": [], "mcp_servers": []},
]


@pytest.mark.parametrize("fields", IGNORED, ids=str)
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
    decoded = ANTHROPIC.decode(body(**fields))
    assert decoded.messages == (Message("user", "hello"),)
    assert not decoded.is_streamed


def test_a_top_p_of_zero_is_the_likeliest_token_alone() -> None:
    """It is in the published range, and no nucleus holds so little."""
    sampling = ANTHROPIC.decode(body(top_p=0, top_k=9)).sampling
    assert (sampling.top_p, sampling.top_k) == (1.0, 1)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"name": "f", "input_schema": {}}]}, "body: tools is not supported"),
    ({"tool_choice": {"type": "any"}}, 'tool_choice: only {"type": "none"} is supported'),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 'thinking: only {"type": "disabled"} is supported'),
    ({"output_config": {"effort": "low"}}, "output_config is not supported"),
    ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
    ({"container": "c"}, "container is not supported"),
    ({"speed": "fast"}, 'speed: only "standard" is supported'),
    ({"service_tier": "gold"}, 'service_tier: only "auto" or "standard_only" is supported'),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "content of other types than text"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "content of other types than text"),
    ({"system": [{"type": "document"}]}, "content of other types than text"),
    ({"system": [{"type": "text", "text": "a", "citations": [{}]}]}, "citations are not supported"),
    ({"messages": [USER, {"role": "assistant", "content": "Once upon"}]}, "role assistant"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "user, assistant or system"),
    ({"messages": [USER, {"role": "user", "content": []}]}, "messages[1] is empty"),
    ({"messages": []}, "$.messages"),
    ({"system": [{"type": "text", "text": ""}]}, "content of system is empty"),
    ({"temperature": 1.5}, "$.temperature"),
    ({"top_p": -0.1}, "$.top_p"),
    ({"max_tokens": 0}, "$.max_tokens"),
    ({"max_tokens": None}, "$.max_tokens"),
    ({"stop_sequences": [""]}, "$.stop_sequences[0]"),
    ({"seed": 1}, "unknown field `seed`"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED, ids=[str(fields) for fields, _ in REFUSED])
def test_what_is_not_done_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        ANTHROPIC.decode(body(**fields))
    assert words in refused.value.message


def test_max_tokens_is_required_of_an_answer_and_unknown_to_a_count() -> None:
    asked = {name: value for name, value in document().items() if name != "max_tokens"}
    with pytest.raises(InvalidRequest, match="max_tokens is required"):
        ANTHROPIC.decode(json.dumps(asked).encode())
    counted = ANTHROPIC.decode_count(json.dumps({**asked, "system": "s"}).encode())
    assert counted.messages == (Message("system", "s"), Message("user", "hello"))
    assert counted.max_tokens is None
    with pytest.raises(InvalidRequest, match="unknown field `max_tokens`"):
        ANTHROPIC.decode_count(body())
    assert ANTHROPIC.encode_count(0) == b'{"input_tokens":0}'


# What it writes.


def test_an_answer() -> None:
    assert ANTHROPIC.encode_answer(HEAD, 'a"\n', FinishReason.STOP_SEQUENCE, "x", USAGE) == (
        rb'{"type":"message","id":"msg_req_1","role":"assistant","model":"m","content":[{"type":"text","text":"a\"\n"}],'
        rb'"stop_reason":"stop_sequence","stop_sequence":"x","usage":{"input_tokens":5,"output_tokens":2}}'
    )
    assert b'"content":[],"stop_reason":"end_turn","stop_sequence":null' in ANTHROPIC.encode_answer(
        HEAD, "", FinishReason.END_TURN, None, Usage(5, 0)
    )


@pytest.mark.parametrize("finish", FinishReason)
def test_every_reason_is_spelled_as_published(finish: FinishReason) -> None:
    answer = json.loads(ANTHROPIC.encode_answer(HEAD, "a", finish, None, USAGE))
    assert answer["stop_reason"] in {"end_turn", "max_tokens", "stop_sequence", "refusal"}


def test_a_stream() -> None:
    writer = ANTHROPIC.open_stream(HEAD, ANTHROPIC.decode(body(stream=True)))
    assert writer.start() == (
        b'event: message_start\ndata: {"type":"message_start","message":{"type":"message","id":"msg_req_1",'
        b'"role":"assistant","model":"m","content":[],"stop_reason":null,"stop_sequence":null,'
        b'"usage":{"input_tokens":5,"output_tokens":0}}}\n\n'
    )
    delta = (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"a\\n"}}\n\n'
    )
    assert writer.ping() == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert writer.delta("a\n") == (
        b'event: content_block_start\ndata: {"type":"content_block_start","index":0,'
        b'"content_block":{"type":"text","text":""}}\n\n' + delta
    )
    assert writer.delta("a\n") == delta
    end = (
        b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"stop_sequence","stop_sequence":"x"},'
        b'"usage":{"input_tokens":5,"output_tokens":2}}\n\n'
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    )
    assert writer.stop(FinishReason.STOP_SEQUENCE, "x", USAGE) == (
        b'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n' + end
    )
    silent = ANTHROPIC.open_stream(HEAD, ANTHROPIC.decode(body(stream=True)))
    silent.start()
    assert silent.stop(FinishReason.STOP_SEQUENCE, "x", USAGE) == end


def test_errors() -> None:
    writer = ANTHROPIC.open_stream(HEAD, ANTHROPIC.decode(body(stream=True)))
    assert writer.error(RateLimited("enough", retry_after_s=3)) == (
        b'event: error\ndata: {"type":"error","error":{"type":"rate_limit_error","message":"enough","retry_after_s":3},'
        b'"request_id":"req_1"}\n\n'
    )
    reply = ANTHROPIC.error_reply(NotFound("no such model"), "req_1")
    assert (reply.status, reply.request_id, reply.closes, reply.headers) == (404, "req_1", False, [])
    assert reply.body == (b'{"type":"error","error":{"type":"not_found_error","message":"no such model"},"request_id":"req_1"}')
    assert ANTHROPIC.error_reply(ShuttingDown("bye", retry_after_s=1), "req_1").closes
    assert headers_of(ANTHROPIC, RateLimited("enough", retry_after_s=3)) == {b"retry-after": b"3", b"x-should-retry": b"true"}
    assert b'"type":"invalid_request_error"' in ANTHROPIC.error_reply(IdempotencyConflict("wait"), "req_1").body


def test_the_headers() -> None:
    assert ANTHROPIC.limit_headers(STANDING, now=1_700_000_000.25) == [
        (b"anthropic-ratelimit-requests-limit", b"10"),
        (b"anthropic-ratelimit-requests-remaining", b"0"),
        (b"anthropic-ratelimit-requests-reset", b"2023-11-14T22:13:22Z"),
        (b"anthropic-ratelimit-tokens-limit", b"1000"),
        (b"anthropic-ratelimit-tokens-remaining", b"999"),
        (b"anthropic-ratelimit-tokens-reset", b"2023-11-14T22:13:21Z"),
    ]
    assert ANTHROPIC.request_id_names == (b"request-id",)
