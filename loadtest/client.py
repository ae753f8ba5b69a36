"""Sends requests over many kept-alive connections, for about 25 microseconds of CPU each.

HTTP client libraries cost from 180 (aiohttp) to 3,700 (httpx) microseconds a request, so one core could not offer 2,000/s
beside the server that it measures; this is httptools on a bare `asyncio.Protocol`. A connection carries one request at a
time, as a synchronous caller's does. Nothing is ever sent twice: a connection that dies takes its request with it, and
that is an outcome.
"""

import asyncio
import errno
import functools
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools

from loadtest.samples import SERVER_ERRORS, Ending, Samples
from loadtest.talk import Exchange, Talk, quote_error

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""A longer answer breaks its connection: one mad answer must not end the run for want of memory."""

MAX_IDLE_S = 4.0
"""Connections idle for longer are not used again: servers close them after 5 s or more, and a request must not cross that."""

_OUR_LIMITS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM})
"""Connect errors that tell of this machine, not of the server."""

_NOTHING = -1


class Connection(asyncio.Protocol):
    """One kept-alive connection. Owned by the event loop; `index` is the row of the request it carries, or -1."""

    __slots__ = ("_num_bytes", "_parser", "_pool", "exchange", "idle_at", "index", "read_at", "transport")

    def __init__(self, pool: "Pool") -> None:
        self.index = _NOTHING
        self.exchange: Exchange | None = None
        """Of the request that it carries."""
        self.idle_at = 0.0
        self.read_at = 0.0
        """The instant of the last read: everything that a read brings came at once."""
        self.transport: asyncio.Transport
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._num_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._pool.on_made(self)

    def data_received(self, data: bytes) -> None:
        self.read_at = self._pool.now()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.transport.abort()

    def on_body(self, data: bytes) -> None:
        self._num_bytes += len(data)
        if self._num_bytes > MAX_ANSWER_BYTES:
            self.transport.abort()
        elif self.exchange is not None:
            self.exchange.feed(self.status(), data, self.read_at)

    def status(self) -> int:
        """Of the answer that is being read."""
        return self._parser.get_status_code()

    def on_message_complete(self) -> None:
        status = self.status()
        if status >= 200:  # Not a "100 Continue", which announces the answer and is none.
            self._num_bytes = 0
            self._pool.on_answer(self, status, self._parser.should_keep_alive())

    def connection_lost(self, exc: Exception | None) -> None:
        self._pool.on_lost(self)


class Pool:
    """All connections of a run. Owned by the event loop.

    `send` takes a connection that is idle, opens one more while that is allowed, and else drops the request. Idle
    connections are used in turn, so that all of them stay warm. `num_pending` counts requests sent and not ended.
    """

    def __init__(self, talk: Talk, samples: Samples, *, max_connections: int, timeout_s: float):
        self.num_pending = 0
        self.on_end: Callable[[int], None] | None = None
        """Told the row of each request when it has ended, or was dropped."""
        self.counts = [0] * len(Ending)
        """Requests by how they ended, so far."""
        self.recent_latencies_s: list[float] = []
        """Of good answers since the last `clear()`: whoever shows progress clears it."""
        self._talk = talk
        self._samples = samples
        self._max_connections = max_connections
        self._timeout_s = timeout_s
        self._started_at = time.monotonic()
        self._connections: set[Connection] = set()
        self._idle: deque[Connection] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._answer_ids: set[int] = set()
        self._ip: str | None = None
        self._ssl: ssl.SSLContext | None = None

    def use_tls(self, *, is_insecure: bool) -> None:
        self._ssl = ssl.create_default_context()
        if is_insecure:
            self._ssl.check_hostname = False
            self._ssl.verify_mode = ssl.CERT_NONE

    def start_clock(self) -> None:
        """Instant 0 of the samples is now."""
        self._started_at = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._started_at

    async def warm(self, num: int) -> None:
        """Look the host up, and open connections before the run, 64 at a time.

        Raises `OSError` when the server cannot be reached.
        """
        address = self._talk.address
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(address.hostname, address.port, type=socket.SOCK_STREAM)
        self._ip = str(found[0][4][0])
        for num_before in range(0, num, 64):
            opened = await asyncio.gather(*(self._connect() for _ in range(min(num - num_before, 64))))
            self._idle.extend(opened)

    def send(self, index: int) -> None:
        """Send the request of this row, now if a connection is free."""
        now = self.now()
        while self._idle:
            connection = self._idle.popleft()
            if now - connection.idle_at < MAX_IDLE_S and not connection.transport.is_closing():
                self.num_pending += 1
                self._put(connection, index, now)
                return
            connection.transport.close()
        if len(self._connections) + len(self._opening) >= self._max_connections:
            self._end(index, Ending.DROPPED)
            return
        self.num_pending += 1
        task = asyncio.get_running_loop().create_task(self._open_and_put(index))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def drop(self, index: int) -> None:
        """The request of this row will not be sent any more."""
        self._end(index, Ending.DROPPED)

    def on_answer(self, connection: Connection, status: int, is_kept_alive: bool) -> None:
        index, exchange = connection.index, connection.exchange
        if exchange is None:
            self._samples.num_unasked += 1
            connection.transport.abort()
            return
        connection.index, connection.exchange = _NOTHING, None
        self.num_pending -= 1
        now = connection.read_at
        samples = self._samples
        try:
            ending, answer_id = exchange.end(status)
        except Exception:  # Whatever cannot even be read, such as JSON nested without end, is no answer to the question.
            ending, answer_id = Ending.MISMATCHED, None
        samples.ended_at[index] = now
        samples.status[index] = status
        if ending is Ending.OK:
            self.recent_latencies_s.append(now - samples.planned_at[index])
        elif ending in SERVER_ERRORS and not samples.first_error:
            samples.first_error = quote_error(status, exchange.error_body())
        if answer_id is not None:
            self._note_answer(answer_id)
        if is_kept_alive:
            connection.idle_at = now
            self._idle.append(connection)
        else:
            connection.transport.close()
        self._end(index, ending)

    def on_made(self, connection: Connection) -> None:
        self._connections.add(connection)

    def on_lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection.exchange is not None:
            ending = connection.exchange.cut()
            if ending is Ending.STREAM_CUT:
                self._samples.status[connection.index] = connection.status()
            self._fail(connection, ending)

    def give_up_late(self) -> None:
        """End every request that has waited for its answer for the timeout. Cheap enough to call ten times a second."""
        now = self.now()
        sent_before = now - self._timeout_s
        for connection in list(self._connections):
            if connection.index != _NOTHING and self._samples.sent_at[connection.index] <= sent_before:
                self._fail(connection, Ending.TIMEOUT)
                connection.transport.abort()

    async def close(self) -> None:
        """End what is pending as unfinished, and close every connection."""
        for task in list(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        for connection in list(self._connections):
            if connection.index != _NOTHING:
                self._fail(connection, Ending.UNFINISHED)
            connection.transport.abort()
        for _ in range(100):
            if self._connections:
                await asyncio.sleep(0.01)

    def _put(self, connection: Connection, index: int, now: float) -> None:
        request, connection.exchange = self._talk.begin(index)
        connection.index = index
        self._samples.sent_at[index] = now
        connection.transport.write(request)

    async def _open_and_put(self, index: int) -> None:
        asked_at = self._samples.sent_at[index] = self.now()
        try:
            connection = await asyncio.wait_for(self._connect(), self._timeout_s)
        except TimeoutError:
            self._end_opening(index, Ending.TIMEOUT)
        except OSError as error:
            self._end_opening(index, Ending.DROPPED if error.errno in _OUR_LIMITS else Ending.TRANSPORT)
        except asyncio.CancelledError:
            self._end_opening(index, Ending.UNFINISHED)
            raise
        else:
            # A server that is slow to accept is slow to its callers: the request counts as sent when it was tried.
            self._put(connection, index, asked_at)
            if connection not in self._connections:
                self._fail(connection, Ending.TRANSPORT)

    async def _connect(self) -> Connection:
        address = self._talk.address
        _, connection = await asyncio.get_running_loop().create_connection(
            functools.partial(Connection, self),
            self._ip or address.hostname,
            address.port,
            ssl=self._ssl,
            server_hostname=address.hostname if self._ssl else None,
        )
        connection.idle_at = self.now()
        return connection

    def _fail(self, connection: Connection, ending: Ending) -> None:
        index, connection.index, connection.exchange = connection.index, _NOTHING, None
        self._end_opening(index, ending)

    def _end_opening(self, index: int, ending: Ending) -> None:
        self.num_pending -= 1
        self._samples.ended_at[index] = self.now()
        self._end(index, ending)

    def _end(self, index: int, ending: Ending) -> None:
        self._samples.ending[index] = ending
        self.counts[ending] += 1
        if self.on_end is not None:
            self.on_end(index)

    def _note_answer(self, answer_id: object) -> None:
        """Remember the id's hash: whole ids of a long run would take twice the memory, and 64 bits do not collide."""
        key = hash(answer_id) if isinstance(answer_id, (str, int, float)) else hash(repr(answer_id))
        if key in self._answer_ids:
            self._samples.num_repeated += 1
        else:
            self._answer_ids.add(key)
