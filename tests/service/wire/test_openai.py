"""OpenAI's published grammar, byte by byte: what it reads, what it refuses by name, what it writes."""

import json
from typing import Any

import pytest

from batcher.errors import (
    InvalidRequest,
    ModelNotFound,
    NotAuthenticated,
    NotFound,
    Overloaded,
    PromptTooLong,
    RateLimited,
    SafetyRefused,
    ServiceError,
)
from batcher.service.conversation import Conversation
from batcher.service.wire.openai import OPENAI
from batcher.types import FinishReason, Message, Sampling, Usage
from tests.service.wire.grammars import HEAD, STANDING, body, headers_of

USAGE = Usage(5, 2)
USER = {"role": "user", "content": "hello"}

# What it reads.


def test_a_body_is_a_conversation() -> None:
    decoded = OPENAI.decode(
        body(
            messages=[
                {"role": "developer", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ada"},
                {"role": "assistant", "content": "c", "refusal": None, "tool_calls": []},
                USER,
            ],
            temperature=2,
            top_p=0.5,
            stop=["x", "y"],
            seed=9,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert decoded == Conversation(
        model="m",
        messages=(Message("system", "be brief"), Message("user", "ab"), Message("assistant", "c"), Message("user", "hello")),
        max_tokens=7,
        sampling=Sampling(temperature=2.0, top_p=0.5, seed=9),
        stop_sequences=("x", "y"),
        is_streamed=True,
        is_usage_streamed=True,
    )


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({}, 7),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": None, "max_completion_tokens": 3}, 3),
        ({"max_tokens": None}, None),
    ],
)
def test_max_tokens_has_two_names_or_none(fields: dict[str, Any], max_tokens: int | None) -> None:
    assert OPENAI.decode(body(**fields)).max_tokens == max_tokens


@pytest.mark.parametrize(("stop", "expected"), [(None, ()), ("x", ("x",)), ([], ()), (["x"] * 4, ("x",) * 4)])
def test_stop_is_one_or_several(stop: object, expected: tuple[str, ...]) -> None:
    assert OPENAI.decode(body(stop=stop)).stop_sequences == expected


@pytest.mark.parametrize(("seed", "expected"), [(0, 0), (2**63 - 1, 2**63 - 1), (-1, 2**63 - 1), (-(2**63), 0)])
def test_every_published_seed_is_one_of_ours(seed: int, expected: int) -> None:
    assert OPENAI.decode(body(seed=seed)).sampling.seed == expected


def test_a_top_p_of_zero_is_the_likeliest_token_alone() -> None:
    sampling = OPENAI.decode(body(top_p=0)).sampling
    assert (sampling.top_p, sampling.top_k) == (1.0, 1)


def test_load_tools_may_ask_for_more_than_is_published() -> None:
    decoded = OPENAI.decode(body(ignore_eos=True, top_k=40, top_p=0.5))
    assert (decoded.ignores_stop, decoded.sampling.top_k, decoded.sampling.top_p) == (True, 40, 0.5)


IGNORED: list[dict[str, Any]] = [
    {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    {"metadata": {"a": "b"}, "store": True, "service_tier": "auto", "parallel_tool_calls": True},
    {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "logprobs": False, "top_logprobs": 0, "n": 1},
    {"tools": [], "tool_choice": "none", "functions": [], "function_call": "auto"},
    {"response_format": {"type": "text"}, "modalities": ["text"], "verbosity": "medium", "reasoning_effort": "none"},
    {"stream": None, "stream_options": None, "temperature": None, "top_p": None, "seed": None, "audio": None},
    {"stop": None, "n": None, "user": None, "tools": None, "logprobs": None, "response_format": None, "logit_bias": None},
    {"metadata": None, "store": None, "frequency_penalty": None, "presence_penalty": None, "max_completion_tokens": None},
    {"ignore_eos": None, "top_k": None},
    {"ignore_eos": False, "top_k": -1},
    {"top_k": 0},
]


@pytest.mark.parametrize("fields", IGNORED, ids=str)
def test_what_asks_for_nothing_is_accepted(fields: dict[str, Any]) -> None:
    decoded = OPENAI.decode(body(**fields))
    assert (decoded.messages, decoded.max_tokens) == ((Message("user", "hello"),), 7)
    sampling = decoded.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (1.0, 1.0, 0)
    assert (decoded.stop_sequences, decoded.is_streamed, decoded.ignores_stop) == ((), False, False)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function"}]}, "body: tools is not supported"),
    ({"tool_choice": "required"}, 'tool_choice: only "none" or "auto" is supported'),
    ({"functions": [{"name": "f"}]}, "functions is not supported"),
    ({"response_format": {"type": "json_object"}}, 'response_format: only {"type": "text"} is supported'),
    ({"logprobs": True}, "logprobs: only false is supported"),
    ({"logit_bias": {"50256": -100}}, "logit_bias is not supported"),
    ({"n": 2}, "body: n: only 1 is supported"),
    ({"frequency_penalty": 0.1}, "frequency_penalty: only 0 is supported"),
    ({"presence_penalty": -0.1}, "presence_penalty: only 0 is supported"),
    ({"reasoning_effort": "high"}, 'reasoning_effort: only "none" is supported'),
    ({"modalities": ["text", "audio"]}, 'modalities: only ["text"] is supported'),
    ({"audio": {"voice": "alloy"}}, "audio is not supported"),
    ({"service_tier": "flex"}, 'service_tier: only "auto" or "default" is supported'),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content of other types than text"),
    ({"messages": [{"role": "tool", "content": "1", "tool_call_id": "a"}]}, "tools are not supported here"),
    ({"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]}, "tools are not supported here"),
    ({"messages": [USER, {"role": "user", "content": ""}]}, "messages[1] is empty"),
    ({"messages": []}, "$.messages"),
    ({"max_tokens": 7, "max_completion_tokens": 8}, "differ"),
    ({"max_completion_tokens": 0}, "$.max_completion_tokens"),
    ({"stream_options": {"include_usage": True}}, "stream_options is only for stream: true"),
    ({"stop": ["a"] * 5}, "$.stop"),
    ({"stop": ""}, "$.stop"),
    ({"temperature": 2.1}, "$.temperature"),
    ({"seed": 2**63}, "$.seed"),
    ({"top_k": -2}, "$.top_k"),
    ({"ignore_eos": 1}, "$.ignore_eos"),
    ({"system": "s"}, "unknown field `system`"),
]


@pytest.mark.parametrize(("fields", "words"), REFUSED, ids=[str(fields) for fields, _ in REFUSED])
def test_what_is_not_done_is_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        OPENAI.decode(body(**fields))
    assert words in refused.value.message


# What it writes.


def test_an_answer() -> None:
    assert OPENAI.encode_answer(HEAD, 'a"\n', FinishReason.MAX_TOKENS, None, USAGE) == (
        rb'{"object":"chat.completion","id":"chatcmpl-req_1","created":1700000000,"model":"m","choices":[{"message":'
        rb'{"content":"a\"\n","role":"assistant","refusal":null},"finish_reason":"length","index":0,"logprobs":null}],'
        rb'"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}'
    )


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (FinishReason.END_TURN, "stop"),
        (FinishReason.STOP_SEQUENCE, "stop"),
        (FinishReason.MAX_TOKENS, "length"),
        (FinishReason.REFUSAL, "content_filter"),
    ],
)
def test_every_reason_is_spelled_as_published(finish: FinishReason, reason: str) -> None:
    answer = json.loads(OPENAI.encode_answer(HEAD, "", finish, None, Usage(0, 0)))
    assert answer["choices"][0]["finish_reason"] == reason
    assert answer["choices"][0]["message"]["content"] == ""
    assert answer["usage"] == {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}


def chunk(choices: str, usage: str = "") -> bytes:
    head = '{"object":"chat.completion.chunk","id":"chatcmpl-req_1","created":1700000000,"model":"m","choices":['
    return f"data: {head}{choices}]{usage}}}\n\n".encode()


def choice(delta: str, finish: str = "null") -> str:
    return f'{{"delta":{delta},"finish_reason":{finish},"index":0,"logprobs":null}}'


def test_a_stream() -> None:
    writer = OPENAI.open_stream(HEAD, OPENAI.decode(body(stream=True)))
    assert writer.start() == chunk(choice('{"role":"assistant","content":""}'))
    assert writer.delta("a\n") == chunk(choice(r'{"content":"a\n"}'))
    assert writer.ping() == b": ping\n\n"
    assert writer.stop(FinishReason.END_TURN, None, USAGE) == chunk(choice("{}", '"stop"')) + b"data: [DONE]\n\n"


def test_a_stream_tells_its_usage_when_asked() -> None:
    writer = OPENAI.open_stream(HEAD, OPENAI.decode(body(stream=True, stream_options={"include_usage": True})))
    assert writer.delta("a") == chunk(choice('{"content":"a"}'), ',"usage":null')
    assert writer.stop(FinishReason.END_TURN, None, USAGE) == (
        chunk(choice("{}", '"stop"'), ',"usage":null')
        + chunk("", ',"usage":{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}')
        + b"data: [DONE]\n\n"
    )


@pytest.mark.parametrize(
    ("error", "type_", "code"),
    [
        (InvalidRequest("m"), "invalid_request_error", "null"),
        (SafetyRefused("m"), "invalid_request_error", '"content_filter"'),
        (NotAuthenticated("m"), "authentication_error", '"invalid_api_key"'),
        (NotFound("m"), "not_found_error", "null"),
        (ModelNotFound("m"), "not_found_error", '"model_not_found"'),
        (PromptTooLong("m"), "invalid_request_error", '"context_length_exceeded"'),
    ],
)
def test_errors(error: ServiceError, type_: str, code: str) -> None:
    expected = f'{{"error":{{"message":"m","type":"{type_}","param":null,"code":{code}}}}}'.encode()
    reply = OPENAI.error_reply(error, "req_1")
    assert (reply.status, reply.body) == (error.status, expected)
    assert OPENAI.open_stream(HEAD, OPENAI.decode(body(stream=True))).error(error) == b"data: " + expected + b"\n\n"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"messages": [{"role": "x" * 300, "content": "a"}]}, "messages[0].role"),
        ({"messages": [USER, {"content": "a"}]}, "messages[1].role"),
        ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a", "zip": 1}]}, "messages[0].zip"),
        ({"tool_choice": "x" * 300}, "tool_choice"),
        ({"zip": 1}, "zip"),
        ({"max_tokens": 7, "max_completion_tokens": 8}, "max_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
    ids=str,
)
def test_an_error_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        OPENAI.decode(body(**fields))
    assert json.loads(OPENAI.error_reply(refused.value, "req_1").body)["error"]["param"] == param
    assert param.rpartition(".")[2] in refused.value.message


def test_a_document_of_another_kind_has_no_field_that_is_wrong() -> None:
    for document, param in ((b"[]", None), (b"{}", "model")):
        with pytest.raises(InvalidRequest) as refused:
            OPENAI.decode(document)
        assert refused.value.param == param


@pytest.mark.parametrize(
    "content", [{"content": ""}, {"content": None}, {"content": []}, {"content": [{"type": "text", "text": ""}]}, {}], ids=str
)
@pytest.mark.parametrize(("role", "ours"), [("assistant", "assistant"), ("system", "system"), ("developer", "system")])
def test_a_turn_that_is_not_the_users_may_be_empty(role: str, ours: str, content: dict[str, Any]) -> None:
    decoded = OPENAI.decode(body(messages=[USER, {"role": role, "parsed": None, **content}, USER]))
    assert decoded.messages[1] == Message(ours, "")


def test_errors_that_pass_say_when() -> None:
    reply = OPENAI.error_reply(Overloaded("m", retry_after_s=3), "req_1")
    assert reply.status == 529
    assert reply.body == (b'{"error":{"message":"m","type":"overloaded_error","param":null,"code":null,"retry_after_s":3}}')
    assert headers_of(OPENAI, RateLimited("m", retry_after_s=3)) == {b"retry-after": b"3", b"x-should-retry": b"true"}


def test_the_headers() -> None:
    assert OPENAI.limit_headers(STANDING, now=0.0) == [
        (b"x-ratelimit-limit-requests", b"10"),
        (b"x-ratelimit-remaining-requests", b"0"),
        (b"x-ratelimit-reset-requests", b"2s"),
        (b"x-ratelimit-limit-tokens", b"1000"),
        (b"x-ratelimit-remaining-tokens", b"999"),
        (b"x-ratelimit-reset-tokens", b"0s"),
    ]
    assert OPENAI.request_id_names == ()
