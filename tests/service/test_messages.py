"""`POST /v1/messages` in every mode: what it answers, and how it refuses. The modes may not differ in shape (SPEC S4)."""

from typing import Any

import httpx
import pytest

from tests.service.errors import assert_error
from tests.service.modes import MODES, OVERHEAD, served
from tests.service.serving import generating, simulated
from tests.service.sse import MESSAGES, ask, assert_answer, assert_stream, body, opened
from tests.service.wire.grammars import NO_BODIES
from tests.service.wire_client import KEY, chunked, connected, request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    mode: str = request.param
    return mode


# Answers


@pytest.mark.parametrize("content", ["hello", "ü\U0001f469‍\U0001f680 日本", "\0\x7f\u2028", "x" * 5_000])
async def test_streamed_or_not_the_answer_is_the_same(mode: str, content: str) -> None:
    num_bytes = len(content.encode())
    async with served(mode) as server, connected(server.port) as client:
        whole = assert_answer(await client.ask(ask(content, max_tokens=10_000)))
        stream = await opened(client, ask(content, max_tokens=10_000, stream=True))
        streamed = assert_stream(await stream.rest(), stream.headers["x-request-id"])
        assert streamed == whole
        text, reason, usage = whole
        assert (text, reason) == (content, "end_turn")
        assert usage["input_tokens"] == num_bytes + OVERHEAD[mode]
        assert usage["output_tokens"] == num_bytes + (mode != "text")  # A model samples the end of its turn, too.
        assert stream.status == 200
        assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert (stream.headers["cache-control"], stream.headers["x-accel-buffering"]) == ("no-cache", "no")
        assert "content-encoding" not in stream.headers
        assert (await client.ask(ask("next"))).status == 200  # The connection goes on.


async def test_a_client_that_accepts_compression_gets_none(mode: str) -> None:
    """B72: what is compressed is collected into lumps first."""
    async with served(mode) as server, connected(server.port) as client:
        stream = await opened(client, ask(stream=True, headers={**KEY, "accept-encoding": "gzip, br"}))
        assert_stream(await stream.rest(), stream.headers["x-request-id"])


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 15, 16, 17])
async def test_an_answer_has_as_many_tokens_as_it_may(mode: str, max_tokens: int) -> None:
    """B42. A token is a byte here."""
    async with served(mode) as server:
        answer = assert_answer(await server.ask(ask("x" * 100, max_tokens=max_tokens)))
    assert answer[:2] == ("x" * max_tokens, "max_tokens")
    assert answer[2]["output_tokens"] == max_tokens


async def test_the_end_of_the_turn_on_the_last_allowed_token_is_an_end_of_the_turn(mode: str) -> None:
    async with served(mode) as server:
        _, reason, usage = assert_answer(await server.ask(ask("hello", max_tokens=5 + (mode != "text"))))
    assert reason == "end_turn"
    assert usage["output_tokens"] == 5 + (mode != "text")


@pytest.mark.parametrize(
    ("stops", "text"),
    [
        (["lo"], "hel"),
        (["zzz", "l"], "he"),
        (["hello"], ""),
        (["o w", "o wo"], "hell"),
        (["w", "world"], "hello "),
        (["x"], None),
    ],
)
async def test_nothing_from_a_stop_sequence_on_is_delivered(mode: str, stops: list[str], text: str | None) -> None:
    async with served(mode) as server, connected(server.port) as client:
        whole = assert_answer(await client.ask(ask("hello world", stop_sequences=stops)))
        stream = await opened(client, ask("hello world", stop_sequences=stops, stream=True))
        assert assert_stream(await stream.rest(), stream.headers["x-request-id"]) == whole
    expected = ("hello world", "end_turn") if text is None else (text, "stop_sequence")
    assert whole[:2] == expected


async def test_a_caller_may_send_blocks_of_text_and_every_setting(mode: str) -> None:
    fields: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
            {"role": "user", "content": [{"type": "text", "text": "c"}, {"type": "text", "text": "d"}]},
        ],
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 40,
        "seed": 2**63 - 1,
        "stop_sequences": ["z" * 256] * 16,
        "stream": False,
    }
    async with served(mode) as server:
        assert assert_answer(await server.ask(ask(**fields)))[0] == "cd"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_callers_request_id_is_kept_and_an_unsafe_one_replaced(mode: str, is_streamed: bool) -> None:
    """B46, B76."""
    async with served(mode) as server, connected(server.port) as client:
        for own, is_kept in (("my-id.1", True), ("a%0d%0aset-cookie:1", False), ("x" * 129, False)):
            data = ask(stream=is_streamed, headers={**KEY, "x-request-id": own})
            headers = (await opened(client, data)).headers if is_streamed else (await client.ask(data)).headers
            assert (headers["x-request-id"] == own) is is_kept
            assert "set-cookie" not in headers
            if is_streamed:
                client.leave()
                break


async def test_serves_under_any_asgi_server(mode: str) -> None:
    async with (
        served(mode) as server,
        httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://asgi") as client,
    ):
        whole = await client.post(MESSAGES, content=body(), headers=KEY)
        assert (whole.status_code, whole.json()["content"]) == (200, "hello")
        streamed = await client.post(MESSAGES, content=body(stream=True), headers=KEY)
        assert streamed.text.count("event: ") >= 3
        assert streamed.text.endswith("}}\n\n")
        assert (await client.post(MESSAGES, content=b"{}", headers=KEY)).status_code == 400
        assert (await client.post(MESSAGES, content=body())).status_code == 401


# Refusals, the same in every mode, streamed or not

TURN = {"role": "user", "content": "hello"}
REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "no model": ({"model": None}, 400, "`model`"),
    "no messages": ({"messages": None}, 400, "`messages`"),
    "empty messages": ({"messages": []}, 400, "$.messages"),
    "no max_tokens": ({"max_tokens": None}, 400, "max_tokens is required"),
    "max_tokens 0": ({"max_tokens": 0}, 400, "$.max_tokens"),
    "max_tokens fraction": ({"max_tokens": 1.5}, 400, "$.max_tokens"),
    "max_tokens text": ({"max_tokens": "10"}, 400, "$.max_tokens"),
    "max_tokens huge": ({"max_tokens": 10**30}, 400, "$.max_tokens"),
    "unknown field": ({"frequency_penalty": 1}, 400, "`frequency_penalty`"),
    "system beside messages": ({"system": "Be brief."}, 400, '{"role": "system", "content": "..."}'),
    "unknown role": ({"messages": [{"role": "root", "content": "a"}]}, 400, "system, user or assistant"),
    "no content": ({"messages": [{"role": "user"}]}, 400, "`content`"),
    "empty content": ({"messages": [TURN, {"role": "user", "content": ""}]}, 400, "message 1 is empty"),
    "empty blocks": ({"messages": [{"role": "user", "content": []}]}, 400, "message 0 is empty"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image", "text": ""}]}]}, 400, "image"),
    "turn with more": ({"messages": [{**TURN, "name": "ada"}]}, 400, "`name`"),
    "temperature": ({"temperature": 2.1}, 400, "$.temperature"),
    "top_p": ({"top_p": 0}, 400, "$.top_p"),
    "top_k": ({"top_k": -1}, 400, "$.top_k"),
    "seed": ({"seed": 2**63}, 400, "$.seed"),
    "empty stop": ({"stop_sequences": [""]}, 400, "$.stop_sequences[0]"),
    "long stop": ({"stop_sequences": ["x" * 257]}, 400, "$.stop_sequences[0]"),
    "many stops": ({"stop_sequences": ["x"] * 17}, 400, "$.stop_sequences"),
    "stream": ({"stream": 1}, 400, "$.stream"),
    "another model": ({"model": "gpt\x00\n" + "x" * 10_000}, 404, "'simulated'"),
}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("case", REFUSED)
async def test_what_cannot_be_answered_is_told_so(case: str, is_streamed: bool) -> None:
    fields, status, words = REFUSED[case]
    for mode in ("continuous", "text"):
        async with served(mode) as server:
            response = await server.ask(ask(**{"stream": is_streamed, **fields}))
            type_ = {400: "invalid_request_error", 404: "not_found_error"}[status]
            assert words in assert_error(response, status, type_)


@pytest.mark.parametrize("data", NO_BODIES.values(), ids=NO_BODIES)
async def test_what_is_no_json_or_no_text_is_told_so(data: bytes) -> None:
    """B74."""
    async with generating(simulated()) as server, connected(server.port) as client:
        response = await client.ask(request(path=MESSAGES, body=data, has_length=True))
        assert_error(response, 400, "invalid_request_error")
        assert (await client.ask(ask("next"))).status == 200


async def test_a_proper_surrogate_pair_is_one_character() -> None:
    async with generating(simulated()) as server:
        response = await server.ask(request(path=MESSAGES, body=body().replace(b"hello", rb"\ud83d\ude00")))
    assert assert_answer(response)[0] == "\U0001f600"


@pytest.mark.parametrize("num_prompt", [99, 100])
@pytest.mark.parametrize("mode", ["continuous"])
async def test_prompt_and_answer_must_fit_the_context(mode: str, num_prompt: int) -> None:
    """B75: at exactly the context it works, one more is told with the numbers."""
    async with served(mode, max_model_len=110) as server:
        data = ask("x" * (num_prompt - OVERHEAD[mode]), max_tokens=11)
        response = await server.ask(data)
        if num_prompt == 99:
            assert_answer(response)
        else:
            message = assert_error(response, 400, "invalid_request_error")
            assert "exceed context limit: 100 + 11 > 110" in message


async def test_what_is_surely_too_long_is_not_even_tokenized(monkeypatch: pytest.MonkeyPatch) -> None:
    async with generating(simulated(max_model_len=1000)) as server:
        monkeypatch.setattr(server.service.model.tokenizer, "render", None)
        message = assert_error(await server.ask(ask("x" * 5_000)), 400, "invalid_request_error")
        assert "at least 5000 tokens" in message


async def test_a_backend_that_knows_only_text_needs_a_message_of_a_user() -> None:
    async with served("text") as server:
        response = await server.ask(ask(messages=[{"role": "assistant", "content": "a"}]))
        assert "role user" in assert_error(response, 400, "invalid_request_error")


# Before the body (B77, B78)


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "wrong"}, {"x-api-key": "", "content-encoding": "gzip"}])
async def test_without_a_key_nothing_is_read(mode: str, headers: dict[str, str]) -> None:
    async with served(mode) as server:
        response = await server.ask(request(path=MESSAGES, headers={**headers, "content-length": "20000"}))
        assert_error(response, 401, "authentication_error")


async def test_a_body_is_bounded_in_size_and_time(mode: str) -> None:
    async with served(mode, max_body_bytes=1000, body_timeout=0.03) as server:
        declared = await server.ask(request(path=MESSAGES, headers={**KEY, "content-length": "1001"}))
        assert_error(declared, 413, "request_too_large")
        endless = request(path=MESSAGES, headers={**KEY, "transfer-encoding": "chunked"})
        endless += chunked(b"x" * 1001, size=100).removesuffix(b"0\r\n\r\n")
        assert_error(await server.ask(endless), 413, "request_too_large")
        async with connected(server.port) as client:
            client.write(request(path=MESSAGES, headers={**KEY, "content-length": "100"}) + b"{")
            assert_error(await client.read(), 408, "timeout_error")


@pytest.mark.parametrize("path", ["/v1/messages/", "//v1/messages", "/V1/messages"])
async def test_a_path_that_looks_like_it_is_not_it(mode: str, path: str) -> None:
    async with served(mode) as server:
        assert_error(await server.ask(request(path=path, body=body())), 404, "not_found_error")
        for method in ("GET", "OPTIONS", "PUT"):
            assert_error(await server.ask(request(method, MESSAGES)), 405, "invalid_request_error")


async def test_in_continuous_mode_the_plain_contract_is_elsewhere(path: str) -> None:
    async with generating(simulated()) as server, connected(server.port) as client:
        response = await client.ask(request(path=path, body=b'{"input": "a"}'))
        assert "/v1/messages" in assert_error(response, 404, "not_found_error")
        response = await client.ask(request(path=path, body=b'{"input": "a"}', headers={}))
        assert_error(response, 401, "authentication_error")
