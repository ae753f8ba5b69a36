"""A server that says what a test tells it to, in order: errors when they are wanted, streams that break, silence.

The words are our grammars' own; what is made up is only when they are said, and where a connection ends.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

from batcher.errors import ServiceError
from batcher.service.replying import request_id_headers
from batcher.service.wire.dialect import Dialect
from batcher.service.wire.replies import Reply, encode_response

SILENCE = b""
"""Says nothing until the test is over."""

REQUEST_ID = "req_stand_in"


class Heard(NamedTuple):
    """A request that came."""

    line: str
    headers: dict[str, str]
    body: bytes


class StandIn:
    """`script` has one answer for each request; a connection ends with its answer."""

    def __init__(self, script: tuple[bytes, ...]) -> None:
        self.port = 0
        self.heard: list[Heard] = []
        self.is_over = asyncio.Event()
        self._script = list(script)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *fields = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (field.split(": ", 1) for field in fields)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            self.heard.append(Heard(line, headers, body))
            said = self._script.pop(0)
            if said == SILENCE:
                await self.is_over.wait()
            writer.write(said)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # The client has left, which is its right.
        finally:
            writer.close()


@asynccontextmanager
async def standing_in(*script: bytes) -> AsyncIterator[StandIn]:
    stand_in = StandIn(script)
    server = await asyncio.start_server(stand_in.answer, "127.0.0.1", 0)
    stand_in.port = server.sockets[0].getsockname()[1]
    try:
        yield stand_in
    finally:
        stand_in.is_over.set()
        server.close()
        await server.wait_closed()
    assert not stand_in._script, "not all was asked for"


def whole(dialect: Dialect, body: bytes) -> bytes:
    headers = request_id_headers(REQUEST_ID, dialect)
    return encode_response(Reply(200, body, REQUEST_ID, headers), (), keeps_alive=False)


def refusal(dialect: Dialect, error: ServiceError) -> bytes:
    reply = dialect.error_reply(error, REQUEST_ID)
    reply.headers.extend(request_id_headers(REQUEST_ID, dialect))
    return encode_response(reply, (), keeps_alive=False)


def stream(dialect: Dialect, *events: bytes, is_cut: bool = False) -> bytes:
    """Without its end if it is cut."""
    headers: Mapping[bytes, bytes] = {
        b"content-type": b"text/event-stream",
        b"transfer-encoding": b"chunked",
        b"connection": b"close",
        **dict(request_id_headers(REQUEST_ID, dialect)),
    }
    head = b"HTTP/1.1 200 OK\r\n" + b"".join(b"%b: %b\r\n" % field for field in headers.items()) + b"\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in events) + (b"" if is_cut else b"0\r\n\r\n")
