"""Clients that are slow, endless, deaf or do not speak HTTP. None may hold more than its share, nor for longer than stated."""

import asyncio
import contextlib
import logging
from typing import cast

import pytest

from tests.service.errors import assert_error
from tests.service.serving import ASYNC_FAULTY, Gate, quick, serving, until
from tests.service.wire_client import KEY, Response, chunked, connected, request, run

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]

# Slow


@pytest.mark.parametrize("sent", [0, 5])
async def test_a_body_that_does_not_come_in_time_is_given_up(path: str, sent: int) -> None:
    async with serving(quick(body_timeout=0.03)) as server, connected(server.port) as client:
        client.write(request(path=path, headers={**KEY, "content-length": "18"}) + b'{"input": "hello"}'[:sent])
        response = await client.read()
        assert "0.03 s" in assert_error(response, 408, "timeout_error")
        assert await client.read_to_end() == b""


async def test_a_chunked_body_that_does_not_end_is_given_up(path: str) -> None:
    async with serving(quick(body_timeout=0.03)) as server, connected(server.port) as client:
        client.write(request(path=path, headers={**KEY, "transfer-encoding": "chunked"}))
        client.write(chunked(b'{"input": "hello"}', size=4).removesuffix(b"0\r\n\r\n"))
        assert_error(await client.read(), 408, "timeout_error")


async def test_a_byte_now_and_then_does_not_buy_time(path: str) -> None:
    async with serving(quick(body_timeout=0.3, keep_alive=0.2)) as server, connected(server.port) as client:
        reading = asyncio.ensure_future(client.read())
        for byte in request(path=path, headers={**KEY, "content-length": "100000"}) + b"x" * 100_000:
            client.write(bytes([byte]))
            await asyncio.sleep(0.001)
            if reading.done():
                break
        assert_error(reading.result(), 408, "timeout_error")


@pytest.mark.parametrize("sent", [b"P", b"POST /v1/run HTTP/1.1\r\n", b"GET /load HTTP/1.1\r\nhost: a\r\nx: y\r\n"])
async def test_headers_that_do_not_come_in_time_are_given_up(sent: bytes) -> None:
    async with serving(quick(body_timeout=0.03)) as server, connected(server.port) as client:
        assert_error(await client.ask(sent), 408, "timeout_error")
        assert await client.read_to_end() == b""


@pytest.mark.parametrize(("path", "key", "status"), [("/health", KEY, 405), ("/nope", KEY, 404), ("/v1/run?x", {}, 401)])
async def test_a_request_refused_before_its_body_has_one_answer(path: str, key: dict[str, str], status: int) -> None:
    """However long the body takes that nobody wants."""
    async with serving(quick(body_timeout=0.03)) as server, connected(server.port) as client:
        response = await client.ask(request(path=path, headers={**key, "content-length": "100"}))
        assert response.status == status
        assert await client.read_to_end() == b""


async def test_a_refused_client_that_goes_on_sending_still_reads_why(path: str) -> None:
    """The connection ends gently: closing it under the client's bytes would reset it, and the answer with it."""
    async with serving(quick(max_body_bytes=1000)) as server, connected(server.port) as client:
        client.write(request(path=path, headers={**KEY, "content-length": "5000000"}))
        for _ in range(50):
            client.write(b"x" * 100_000)
            await asyncio.sleep(0)
        assert_error(await client.read(), 413, "request_too_large")


# Endless


@pytest.mark.parametrize("in_url", [False, True])
async def test_endless_headers_are_refused(in_url: bool) -> None:
    """They come before any key, so their number and size need a bound of their own."""
    async with serving(quick()) as server, connected(server.port) as client:
        reading = asyncio.ensure_future(client.read())
        client.write(b"POST /v1/run" + (b"?" if in_url else b" HTTP/1.1\r\nhost: a\r\n"))
        num_sent = 0
        while not reading.done() and num_sent < 20_000_000:
            client.write(b"x" * 10_000 if in_url else b"x-header: " + b"x" * 10_000 + b"\r\n")
            num_sent += 10_000
            await asyncio.sleep(0)
        response = await asyncio.wait_for(reading, 5.0)
        assert response.status in (400, 413, 431)
        assert response.headers["connection"] == "close"
        assert num_sent < 20_000_000


async def test_endless_trailers_are_cut_off(path: str) -> None:
    """Headers behind the body are headers too. On the ASGI way it is too late for an answer of ours."""
    async with serving(quick()) as server, connected(server.port) as client:
        reading = asyncio.ensure_future(client.read())
        client.write(request(path=path, headers={**KEY, "transfer-encoding": "chunked"}) + b"2\r\n{}\r\n0\r\n")
        num_sent = 0
        while not reading.done() and num_sent < 20_000_000:
            client.write(b"x-trailer: " + b"x" * 10_000 + b"\r\n")
            num_sent += 10_000
            await asyncio.sleep(0)
        assert num_sent < 20_000_000
        with contextlib.suppress(asyncio.IncompleteReadError):
            assert (await reading).status == 413


# Deaf


async def test_a_client_that_never_reads_holds_no_more_than_a_few_answers() -> None:
    """Its answers pile up in the server only until the server stops reading its requests."""
    async with serving(quick()) as server, connected(server.port) as client:
        deaf = cast(asyncio.Transport, client.writer.transport)
        deaf.pause_reading()
        one = run("x" * 400_000)
        sending = asyncio.ensure_future(_send_for_ever(client.writer, one))
        (connection,) = server.server.server_state.connections
        most = 0
        for _ in range(300):
            most = max(most, connection.transport.get_write_buffer_size())
            await asyncio.sleep(0.001)
        sending.cancel()
        assert 0 < most < 4_000_000
        deaf.resume_reading()
        for _ in range(3):
            assert (await client.read()).status == 200
        client.leave()


async def _send_for_ever(writer: asyncio.StreamWriter, data: bytes) -> None:
    while True:
        writer.write(data)
        await writer.drain()


# No HTTP

NO_HTTP = {
    "garbage": b"\x00\x01\x02 garbage\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "words": b"hello there, server\r\n\r\n",
    "unknown method": b"FETCH /v1/run HTTP/1.1\r\nhost: a\r\n\r\n",
    "line feeds alone": b"GET /health HTTP/1.1\nhost: a\n\n",
    "folded header": b"GET /health HTTP/1.1\r\nhost: a\r\nx: a\r\n b\r\n\r\n",
    "nul in a header": b"GET /health HTTP/1.1\r\nhost: a\r\nx: a\x00b\r\n\r\n",
    "space in a name": b"GET /health HTTP/1.1\r\nhost: a\r\nx : a\r\n\r\n",
    "high bit in the path": b"GET /\xff HTTP/1.1\r\nhost: a\r\n\r\n",
    "CONNECT": b"CONNECT a:80 HTTP/1.1\r\nhost: a\r\n\r\n",
    "two lengths": request(headers={**KEY, "Content-Length": "18"}, body=b'{"input": "hello"}'),
    "length and chunks": request(headers={**KEY, "content-length": "3", "transfer-encoding": "chunked"}),
    "unknown coding": request(headers={**KEY, "transfer-encoding": "gzip"}),
    "chunks not last": request(headers={**KEY, "transfer-encoding": "chunked, identity"}),
    "negative length": request(headers={**KEY, "content-length": "-1"}),
    "signed length": request(headers={**KEY, "content-length": "+18"}),
    "odd length": request(headers={**KEY, "content-length": "1_8"}),
    "endless length": request(headers={**KEY, "content-length": "9" * 40}),
    "no chunk": request(headers={**KEY, "transfer-encoding": "chunked"}) + b"hello\r\n",
}


@pytest.mark.parametrize("data", NO_HTTP.values(), ids=NO_HTTP)
async def test_what_is_no_http_is_told_so_and_ended(data: bytes) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        response = await client.ask(data)
        assert_error(response, 400, "invalid_request_error")
        assert response.headers["connection"] == "close"
        assert await client.read_to_end() == b""
        assert (await server.ask(run("next"))).status == 200


async def test_garbage_behind_a_running_request_does_not_answer_in_its_place(path: str, gate: Gate) -> None:
    async with serving(quick(backend=ASYNC_FAULTY)) as server, connected(server.port) as client:
        client.write(run(gate.hold, path=path) + b"\x00 garbage\r\n\r\n")
        await until(lambda: server.statistics.num_running == 1 or server.statistics.num_live == 0)
        gate.open()
        data = await client.read_to_end()
    assert not data or data.startswith(b"HTTP/1.1 200 ")


async def test_bytes_of_no_meaning_are_logged_without_their_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        async with serving(quick()) as server:
            for data in NO_HTTP.values():
                response: Response = await server.ask(data)
                assert b"garbage" not in response.body
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "garbage" not in caplog.text
