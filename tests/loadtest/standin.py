"""A little server with a will of its own: each test says what it answers, and how slowly."""

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

CERTIFICATE = Path(__file__).parent / "localhost.pem"


class Answer(msgspec.Struct, frozen=True):
    """What goes back. `is_cut` closes the connection in the middle of it; `trailing` comes after it, unasked."""

    status: int = 200
    body: bytes = b""
    delay_s: float = 0.0
    is_cut: bool = False
    is_last: bool = False
    """Say `connection: close`, and close."""
    trailing: bytes = b""
    head: bytes | None = None
    """Instead of an HTTP head: what is no HTTP."""


class Asked(msgspec.Struct, frozen=True):
    number: int
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def input(self) -> str:
        return str(msgspec.json.decode(self.body)["input"])


Will = Callable[[Asked], Answer]


def echo(asked: Asked) -> Answer:
    return Answer(body=say(asked.input, answer_id=f"req_{asked.number}"))


def say(output: str, *, answer_id: str) -> bytes:
    return msgspec.json.encode({"id": answer_id, "output": output, "usage": {"input_tokens": 1, "output_tokens": 1}})


class StandIn:
    def __init__(self, will: Will) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self.num_connections = 0
        self._will = will
        self._tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await self._answer(reader, writer):
                pass
        writer.close()
        with contextlib.suppress(ConnectionError, asyncio.CancelledError, ssl.SSLError):
            await writer.wait_closed()
        self._tasks.discard(task)

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection stays."""
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers["content-length"]))
        asked = Asked(len(self.asked), first.split(" ")[1], headers, body)
        self.asked.append(asked)
        answer = self._will(asked)
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        close = "connection: close\r\n" if answer.is_last else ""
        head = f"HTTP/1.1 {answer.status} Whatever\r\ncontent-length: {len(answer.body)}\r\n{close}\r\n".encode()
        sent = (head if answer.head is None else answer.head) + answer.body
        writer.write(sent[: len(sent) // 2] if answer.is_cut else sent + answer.trailing)
        await writer.drain()
        return not answer.is_cut and not answer.is_last


@contextlib.contextmanager
def standing_in(will: Will = echo, *, is_tls: bool = False) -> Iterator[StandIn]:
    """A server of this will on a port of its own, in a thread of its own, until the block is left."""
    server = StandIn(will)
    started, loop = threading.Event(), asyncio.new_event_loop()
    context = None
    if is_tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE)

    async def live() -> None:
        listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=context, backlog=512)
        server.url = f"{'https' if is_tls else 'http'}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        started.set()
        await stopping.wait()
        listener.close()
        await server.stop()

    stopping = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(live()), daemon=True)
    thread.start()
    assert started.wait(10.0)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join(10.0)
        loop.close()
