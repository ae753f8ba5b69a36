"""One connection of somebody who means no good, and the few manners that all abuse is made of.

Raw sockets, since no HTTP library leaves an answer unread, sends a byte a second or says what is no HTTP. Each manner is one
visit: a connection from its opening to its end. It costs its own process as little as it can, which shares the machine with
what is measured.
"""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import TypeAlias, cast

import msgspec

from loadtest.target import SplitUrl

NUM_AHEAD = 5
"""Requests that `ask_many` sends together."""
DRIP_EVERY_S = 1.0
POUR_PIECE = b"x" * 16_384
POUR_EVERY_S = 0.25
"""A body that does not end is 64 kB a second from each client, 64 MB from a thousand: more would measure the loopback."""
DEAF_S = 5.0
PATIENCE_S = 20.0
"""More than the server is set to have with anybody: who is still connected then was not cut off."""

_DEAF_BYTES = 4096
"""What the system may hold for somebody who reads nothing; it takes twice that."""
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_STATUS_BYTES = len(b"HTTP/1.1 200 ")

Make: TypeAlias = Callable[[Random], bytes]
"""The bytes of one visit."""


class Tally(msgspec.Struct):
    """What became of the visits. One that was neither answered nor cut off left by itself, or when the abuse ended."""

    visits: int = 0
    unconnected: int = 0
    answers: dict[str, int] = msgspec.field(default_factory=dict)
    """By status; "cut" where the connection ended without one."""

    def note(self, answer: str) -> None:
        self.answers[answer] = self.answers.get(answer, 0) + 1


class Line:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tally: Tally) -> None:
        self._reader = reader
        self._writer = writer
        self._tally = tally

    @property
    def is_closing(self) -> bool:
        return self._writer.transport.is_closing()

    def send(self, data: bytes) -> None:
        if not self.is_closing:
            self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    def stop_reading(self) -> None:
        cast(asyncio.Transport, self._writer.transport).pause_reading()

    async def hear(self, num_answers: int = 1) -> None:
        """Reads until so many answers have begun, or to the end."""
        tail = b""
        while num_answers > 0:
            data = await self._reader.read(65_536)
            if not data:
                self._tally.note("cut")
                return
            seen = tail + data
            for status in _STATUS.findall(seen):
                if status != b"100":  # That it may go on is no answer.
                    self._tally.note(status.decode())
                    num_answers -= 1
            tail = seen[1 - _STATUS_BYTES :]

    async def hear_end(self) -> None:
        while await self._reader.read(65_536):
            pass


Manner: TypeAlias = Callable[[Line, Random, Make], Awaitable[None]]


async def ask(line: Line, random: Random, make: Make) -> None:
    """Sends, reads what is said to it, and goes."""
    line.send(make(random))
    await line.hear()


async def ask_many(line: Line, random: Random, make: Make) -> None:
    """The same with several in advance."""
    line.send(b"".join(make(random) for _ in range(NUM_AHEAD)))
    await line.hear(NUM_AHEAD)


async def hold(line: Line, random: Random, make: Make) -> None:
    """Says something, and then nothing until it is cut off."""
    line.send(make(random))
    await line.hear()
    await line.hear_end()


async def deaf(line: Line, random: Random, make: Make) -> None:
    """Sends and never reads: it cannot even see that it was cut off, and comes again after a while."""
    line.stop_reading()
    line.send(make(random))
    await asyncio.sleep(DEAF_S)


async def leave(line: Line, random: Random, make: Make) -> None:
    """Asks, and has left before it is answered, or just then."""
    line.send(make(random))
    await asyncio.sleep(random.uniform(0.0, 0.25))


async def drip(line: Line, random: Random, make: Make) -> None:
    """A byte a second, until something is said to it."""
    hearing = asyncio.ensure_future(line.hear())
    try:
        for byte in make(random):
            line.send(bytes((byte,)))
            if (await asyncio.wait({hearing}, timeout=DRIP_EVERY_S))[0]:
                break
    finally:
        hearing.cancel()


async def pour(line: Line, random: Random, make: Make) -> None:
    """A head, and a body that does not end, whatever is said to it."""
    head = make(random)
    piece = b"%x\r\n%b\r\n" % (len(POUR_PIECE), POUR_PIECE) if b"chunked" in head else POUR_PIECE
    hearing = asyncio.ensure_future(line.hear())
    try:
        line.send(head)
        while not line.is_closing:
            line.send(piece)
            await line.drain()
            await asyncio.sleep(POUR_EVERY_S)
    finally:
        hearing.cancel()


@asynccontextmanager
async def connected(address: SplitUrl, tally: Tally) -> AsyncIterator[Line]:
    """A line with little room for what is not read. Raises OSError."""
    raw = socket.socket()
    try:
        raw.setblocking(False)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _DEAF_BYTES)
        await asyncio.get_running_loop().sock_connect(raw, (address.hostname, address.port))
        reader, writer = await asyncio.open_connection(sock=raw)
    except BaseException:
        raw.close()
        raise
    try:
        yield Line(reader, writer, tally)
    finally:
        writer.transport.abort()
