"""A little server with a will of its own: each test says what it answers, and how slowly."""

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from tests.loadtest.listening import LittleServer, read_head

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


class StandIn(LittleServer):
    def __init__(self, will: Will) -> None:
        super().__init__()
        self.asked: list[Asked] = []
        self._will = will

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, headers = await read_head(reader)
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
    """A server of this will until the block is left."""
    context = None
    if is_tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(CERTIFICATE)
    with StandIn(will).living(context=context) as server:
        yield server
