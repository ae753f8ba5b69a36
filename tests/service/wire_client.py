"""A client that writes bytes and reads what comes back, so that a test can say precisely what is on the wire.

HTTP libraries were refused here: they cannot send half a request, two at once, or a wrong one.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

PATIENCE_S = 20.0
"""A wait for what should come at once ends then: a test that fails must not hang. No test waits for it to pass."""

KEY = {"x-api-key": "dev-paid"}
OPERATOR = {"x-api-key": "dev-operator"}


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(
    method: str = "POST",
    path: str = "/v1/run",
    body: bytes = b"",
    *,
    headers: dict[str, str] = KEY,
    version: str = "1.1",
    has_length: bool | None = None,
) -> bytes:
    """The bytes of a request; a Content-Length is added if there is a body, or as `has_length` says."""
    lines = [f"{method} {path} HTTP/{version}", "host: test", *(f"{name}: {value}" for name, value in headers.items())]
    if has_length if has_length is not None else bool(body):
        lines.append(f"content-length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def run(input_: str, *, path: str = "/v1/run", **headers: str) -> bytes:
    """A good `POST /v1/run`; header names are given with underscores."""
    body = json.dumps({"input": input_}).encode()
    return request("POST", path, body, headers={**KEY, **{name.replace("_", "-"): value for name, value in headers.items()}})


def chunked(body: bytes, *, size: int) -> bytes:
    """A body in chunks of `size` bytes, ended."""
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def write(self, data: bytes) -> None:
        if not self.writer.transport.is_closing():
            self.writer.write(data)

    async def ask(self, data: bytes) -> Response:
        self.write(data)
        return await self.read()

    async def read(self, *, is_head: bool = False) -> Response:
        """The next response. Raises IncompleteReadError if the connection ends before."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._read(is_head=is_head)

    async def _read(self, *, is_head: bool) -> Response:
        status_line, *lines = (await self.reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
        version, status, *_ = status_line.split(" ")
        assert version == "HTTP/1.1"
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name not in headers, f"{name} twice in {lines}"
            headers[name] = value
        has_body = not is_head and int(status) >= 200
        body = await self.reader.readexactly(int(headers["content-length"])) if has_body else b""
        return Response(int(status), headers, body)

    async def read_to_end(self) -> bytes:
        """What comes until the server ends the connection."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read()

    def leave(self) -> None:
        """Ends the connection abruptly, as a client that is killed does."""
        self.writer.transport.abort()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
