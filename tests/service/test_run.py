"""`POST /v1/run` by both ways: what it answers, and how it fails. The two ways may not differ in anything but speed."""

import json
import re
from contextlib import AsyncExitStack

import httpx
import pytest

from batcher.config import TierConfig
from tests.service.errors import assert_error
from tests.service.serving import ASYNC_FAULTY, Gate, quick, serving, until
from tests.service.wire_client import KEY, chunked, connected, request, run

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("text", ["hello", "", "\0", "\x7f\u2028", "ü\U0001f469\u200d\U0001f680", "x" * 100_000])
async def test_answers_with_the_output_of_its_own_input(path: str, text: str) -> None:
    async with serving(quick(backend=ASYNC_FAULTY)) as server:
        response = await server.ask(run(text, path=path))
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert response.json == {
        "id": response.headers["x-request-id"],
        "output": f"<{text}>",
        "usage": {"input_characters": len(text), "output_characters": len(text) + 2},
    }
    assert "connection" not in response.headers


async def test_serves_under_any_asgi_server() -> None:
    async with (
        serving(quick()) as server,
        httpx.AsyncClient(transport=httpx.ASGITransport(server.app), base_url="http://asgi") as client,
    ):
        response = await client.post("/v1/run", json={"input": "hello"}, headers=KEY)
        assert (response.status_code, response.json()["output"]) == (200, "hello")
        response = await client.post("/v1/run", json={"input": "hello"})
        assert (response.status_code, response.json()["error"]["type"]) == (401, "authentication_error")
        response = await client.post("/v1/run", content=b"x" * 1_000_001, headers=KEY)
        assert (response.status_code, response.json()["error"]["type"]) == (413, "request_too_large")


# What is no request (B74)

NOT_REQUESTS = {
    "nothing": b"",
    "no JSON": b"hello",
    "null": b"null",
    "list": b'["hello"]',
    "no input": b"{}",
    "number": b'{"input": 1}',
    "null input": b'{"input": null}',
    "list input": b'{"input": ["hello"]}',
    "unknown field": b'{"input": "hello", "stream": true}',
    "trailing": b'{"input": "hello"}{}',
    "cut": b'{"input": "hel',
    "lone high surrogate": rb'{"input": "\ud83d"}',
    "lone low surrogate": rb'{"input": "\ude00"}',
    "swapped surrogates": rb'{"input": "\ude00\ud83d"}',
    "surrogate in a name": rb'{"\ud83d": 1}',
    "surrogate as bytes": b'{"input": "\xed\xa0\xbd"}',
    "overlong": b'{"input": "\xc0\xaf"}',
    "latin-1": '{"input": "\u00fc"}'.encode("latin-1"),
    "byte order mark": b'\xef\xbb\xbf{"input": "hello"}',
    "UTF-16": '{"input": "hello"}'.encode("utf-16"),
    "UTF-32": '{"input": "hello"}'.encode("utf-32"),
    "raw line feed": b'{"input": "a\nb"}',
    "deep": b"[" * 200_000,
    "deep inside": b'{"other": ' + b"[" * 200_000,
    "long name": b'{"' + b"n" * 200_000 + b'": 1}',
}


@pytest.mark.parametrize("body", NOT_REQUESTS.values(), ids=NOT_REQUESTS)
async def test_what_is_no_request_is_told_so_before_it_meets_a_batch(path: str, body: bytes) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        response = await client.ask(request(path=path, body=body, has_length=True))
        assert '{"input": "text"}' in assert_error(response, 400, "invalid_request_error")
        assert (await client.ask(run("next", path=path))).status == 200
        assert server.statistics.counters.batch_sizes == {1: 1}


async def test_a_proper_surrogate_pair_is_one_character(path: str) -> None:
    async with serving(quick()) as server:
        response = await server.ask(request(path=path, body=rb'{"input": "\ud83d\ude00"}'))
    assert response.json["output"] == "\U0001f600"
    assert response.json["usage"] == {"input_characters": 1, "output_characters": 1}


@pytest.mark.parametrize("encoding", ["gzip", "br", "nonsense"])
async def test_a_compressed_body_is_refused_unread(path: str, encoding: str) -> None:
    async with serving(quick()) as server:
        response = await server.ask(run("hello", path=path, content_encoding=encoding))
    assert_error(response, 400, "invalid_request_error")


# How much may be asked (B77)


async def test_the_largest_body_is_served_and_the_next_byte_is_too_many(path: str) -> None:
    async with serving(quick(max_body_bytes=100)) as server, connected(server.port) as client:
        body = json.dumps({"input": "x" * 87}).encode()
        assert len(body) == 100
        assert (await client.ask(request(path=path, body=body))).status == 200
        response = await client.ask(request(path=path, body=body + b" "))
        assert "100 bytes" in assert_error(response, 413, "request_too_large")


async def test_a_declared_length_over_the_limit_is_refused_at_once(path: str) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        response = await client.ask(request(path=path, headers={**KEY, "content-length": "100000000"}))
        assert_error(response, 413, "request_too_large")
        assert await client.read_to_end() == b""


async def test_an_undeclared_length_is_counted_while_it_comes(path: str) -> None:
    """The body has no end: only a count can refuse it."""
    async with serving(quick(max_body_bytes=1000)) as server, connected(server.port) as client:
        client.write(request(path=path, headers={**KEY, "transfer-encoding": "chunked"}))
        client.write(chunked(b"x" * 1001, size=100).removesuffix(b"0\r\n\r\n"))
        assert_error(await client.read(), 413, "request_too_large")


@pytest.mark.parametrize("size", [1, 7, 18])
async def test_a_body_may_come_in_any_pieces(path: str, size: int) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        body = chunked(b'{"input": "hello"}', size=size)
        for byte in request(path=path, headers={**KEY, "transfer-encoding": "chunked"}) + body:
            client.write(bytes([byte]))
            await client.writer.drain()
        assert (await client.read()).json["output"] == "hello"


# The request's id (B46, B76)


@pytest.mark.parametrize("own", ["a", "A-Z_a.z-0", "x" * 128])
async def test_a_callers_request_id_is_told_again_beside_ours(path: str, own: str) -> None:
    """The id in the body is what usage and logs know the request by: never the caller's, who may give one twice."""
    async with serving(quick()) as server:
        good = await server.ask(run("hello", path=path, x_request_id=own))
        bad = await server.ask(request(path=path, body=b"{}", headers={**KEY, "x-request-id": own}))
    assert good.headers["x-request-id"] == own
    assert re.fullmatch(r"req_[0-9a-f]{10}_\d+", good.json["id"])
    assert_error(bad, 400, "invalid_request_error")
    assert bad.headers["x-request-id"] == own


@pytest.mark.parametrize(
    "own", ["", " ", "a b", "x" * 129, "x" * 30_000, "\u00fc", "a%0d%0aset-cookie:1", "a\tb", 'a"b', "a\\b", "a,b", "a/b"]
)
async def test_an_unsafe_request_id_is_replaced(path: str, own: str) -> None:
    async with serving(quick()) as server:
        response = await server.ask(run("hello", path=path, x_request_id=own))
    assert response.status == 200
    assert re.fullmatch(r"req_[0-9a-f]{10}_\d+", response.headers["x-request-id"])
    assert response.json["id"] == response.headers["x-request-id"]
    assert "set-cookie" not in response.headers


async def test_request_ids_of_the_service_never_repeat() -> None:
    ids: list[str] = []
    for _ in range(2):
        async with serving(quick()) as server, connected(server.port) as client:
            questions = (run("a"), request(body=b"{}"), request("GET", "/nope"), run("b"))
            ids.extend([(await client.ask(data)).headers["x-request-id"] for data in questions])
    assert len(set(ids)) == 8


# How the service fails


async def test_over_the_wait_budget_a_request_is_refused_with_a_time_to_come_back(path: str, gate: Gate) -> None:
    tiers = (TierConfig("paid", wait_budget_s=5.0), TierConfig("free", wait_budget_s=0.0))
    settings = quick(backend=ASYNC_FAULTY, workers=1, max_batch_size=1, service_time=1.0, tiers=tiers)
    async with serving(settings) as server, AsyncExitStack() as clients:
        for input_ in [gate.hold, *["waits"] * 6]:
            (await clients.enter_async_context(connected(server.port))).write(run(input_, path=path))
            await until(lambda: server.statistics.num_running == 1)
        await until(lambda: server.statistics.tiers[0].num_waiting == 6)
        response = await server.ask(run("too many", path=path))
        assert "estimated wait of 6.000 s" in assert_error(response, 529, "overloaded_error")
        assert response.headers["retry-after"] in ("1", "2")
        free = await server.ask(request(path=path, body=b'{"input": "free"}', headers={"x-api-key": "dev-free"}))
        assert_error(free, 529, "overloaded_error")
        gate.open()


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_a_request_without_an_answer_in_time_is_told_so(path: str, gate: Gate, num_workers: int) -> None:
    """B08: the second one waits behind a worker that does not come free (with one worker), or runs too (with two)."""
    settings = quick(backend=ASYNC_FAULTY, workers=num_workers, request_timeout=0.05)
    async with serving(settings) as server, connected(server.port) as running, connected(server.port) as waiting:
        running.write(run(gate.hold, path=path))
        await until(lambda: server.statistics.num_running == 1)
        waiting.write(run(gate.hold, path=path))
        for client in (running, waiting):
            assert "0.05 s" in assert_error(await client.read(), 504, "timeout_error")
        assert server.statistics.tiers[0].num_waiting == 0
        gate.open()


async def test_an_input_that_makes_run_batch_raise_is_not_worth_a_retry(path: str) -> None:
    async with serving(quick(backend=ASYNC_FAULTY)) as server:
        response = await server.ask(run("BOOM", path=path))
        assert "BOOM" not in assert_error(response, 500, "api_error", may_retry="false")
        assert (await server.ask(run("good", path=path))).status == 200
