"""uvicorn's HTTP protocol, with `POST /v1/run` answered inside it.

A request through ASGI costs a scope, a task, an event and four awaits: about 110 microseconds of CPU where the whole rest of
the way costs 40. So the hot route takes a shorter way on the same connection, parser, keep-alive and shutdown, and every
other request takes uvicorn's own. A server of our own was refused: it would be uvicorn again, less tried.

A connection reads like this:

    headers complete ──hot──> RunCycle: judge the headers, collect the body, submit, write the reply
          └──────────other──> uvicorn's RequestResponseCycle (ASGI)

Requests on one connection are answered in order: one that comes while another is unanswered waits in uvicorn's `pipeline`.
"""

import asyncio
from math import inf
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from batcher.config import HttpConfig
from batcher.errors import Overloaded, RequestTimeout, ServiceError
from batcher.service.run import Head, Reply, RunEndpoint

_HOT_URL = b"/v1/run"

_SMALL_BODY_BYTES = 16_384
"""A refused request with a body up to this is read to its end, so that its connection can go on."""

_LINGER_S = 2.0
"""How long a connection that was refused in mid-body is still read, so that the refusal is not lost in a reset."""


class _NoEvent:
    """Stands where an ASGI cycle has the event that wakes its task; a hot cycle has no task."""

    def set(self) -> None:
        pass


_NO_EVENT = _NoEvent()


class RunCycle:
    """One request and its reply. uvicorn's protocol knows it by the same fields as its own cycles.

    `head` is None once the request was refused by its headers, with `refusal` the reason; `reads_on` says that its body is
    read even so. `request_id` is what the dispatcher knows it by while it has it.
    """

    __slots__ = (
        "body",
        "disconnected",
        "head",
        "is_current",
        "keep_alive",
        "message_event",
        "more_body",
        "protocol",
        "reads_on",
        "refusal",
        "request_id",
        "response_complete",
    )

    def __init__(self, protocol: "FastPathProtocol", *, keep_alive: bool) -> None:
        self.protocol = protocol
        self.keep_alive = keep_alive
        self.body: bytes | bytearray = b""
        self.more_body = True
        self.is_current = False
        self.response_complete = False
        self.disconnected = False
        self.message_event = _NO_EVENT
        self.head: Head | None = None
        self.refusal: ServiceError | None = None
        self.reads_on = False
        self.request_id: int | None = None

    def refuse(self, error: ServiceError) -> None:
        """To be refused, as soon as it is its turn."""
        self.head, self.refusal, self.reads_on = None, error, False
        self.advance()

    def advance(self) -> None:
        """Goes on as far as it can: a refusal needs no more body, anything else all of it, and both their turn."""
        if not self.is_current or self.response_complete:
            return
        endpoint = self.protocol.endpoint
        if self.refusal is not None:
            if not (self.reads_on and self.more_body):
                self.reply(endpoint.refuse(self.refusal))
        elif not self.more_body and self.head is not None:
            head, body, self.body = self.head, self.body, b""
            try:
                self.request_id = endpoint.submit(head, body, self.reply)
            except ServiceError as error:
                self.reply(endpoint.refuse(error, head.request_id))

    def hang_up(self) -> None:
        """The client is gone: its place is given back."""
        self.disconnected = True
        if self.request_id is not None and self.head is not None and not self.response_complete:
            self.protocol.endpoint.cancel(self.head, self.request_id)
        self.response_complete = True

    def reply(self, reply: Reply) -> None:
        self.response_complete = True
        if not self.disconnected:
            self.protocol.send(reply, self)


class FastPathProtocol(HttpToolsProtocol):
    """One connection. `_reading_timer` runs while a message has begun and is not complete."""

    cycle: Any
    """The latest request: a RunCycle, or uvicorn's own; None before the first."""

    def __init__(self, *, endpoint: RunEndpoint, http: HttpConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.endpoint = endpoint
        self._http = http
        self._is_reading = False
        self._is_lingering = False
        self._reading_timer: asyncio.TimerHandle | None = None

    # Connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._http.max_connections:
            self._send_alone(self.endpoint.refuse(Overloaded("too many connections", retry_after_s=1)))
            return
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_reading_timer()
        self._unset_keepalive_if_required()
        for cycle in (self.cycle, *(cycle for cycle, _ in self.pipeline)):
            if isinstance(cycle, RunCycle):
                cycle.hang_up()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_lingering:
            return
        super().data_received(data)
        if self._is_reading and self._reading_timer is None and not self.transport.is_closing():
            self._reading_timer = self.loop.call_later(self._http.body_timeout_s, self._on_reading_timeout)

    # Parser callbacks.

    def on_message_begin(self) -> None:
        self._is_reading = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self.url != _HOT_URL or self.parser.get_method() != b"POST" or self.parser.should_upgrade():
            super().on_headers_complete()
            return
        previous = self.cycle
        is_http_1_1 = self.parser.get_http_version() != "1.0"
        cycle = RunCycle(self, keep_alive=is_http_1_1 and self.parser.should_keep_alive())
        self.cycle = cycle
        try:
            cycle.head = self.endpoint.authenticate(self.headers)
        except ServiceError as error:
            cycle.refusal = error
            cycle.reads_on = not self.expect_100_continue and _content_length(self.headers) <= _SMALL_BODY_BYTES
        if previous is None or previous.response_complete:
            cycle.is_current = True
            if cycle.refusal is not None:
                cycle.advance()
            elif self.expect_100_continue:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, None))  # type: ignore[arg-type]

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if not isinstance(cycle, RunCycle):
            super().on_body(body)
            return
        if cycle.refusal is not None or cycle.response_complete:
            return
        if not cycle.body:
            cycle.body = body
        else:
            if not isinstance(cycle.body, bytearray):
                cycle.body = bytearray(cycle.body)
            cycle.body += body
        try:
            self.endpoint.check_length(len(cycle.body))
        except ServiceError as error:
            cycle.body = b""
            cycle.refuse(error)

    def on_message_complete(self) -> None:
        self._is_reading = False
        self._stop_reading_timer()
        cycle = self.cycle
        if not isinstance(cycle, RunCycle):
            super().on_message_complete()
            return
        cycle.more_body = False
        cycle.advance()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if isinstance(cycle, RunCycle):
            cycle.is_current = True
            cycle.advance()
        else:
            super()._start_asgi_task(cycle, app)

    # Writing.

    def send(self, reply: Reply, cycle: RunCycle) -> None:
        """Writes the reply of the current cycle and goes on with the connection, or ends it."""
        is_whole = not cycle.more_body
        keeps_alive = cycle.keep_alive and is_whole and not reply.closes
        self._write(reply, keeps_alive=keeps_alive)
        if keeps_alive:
            self.on_response_complete()
        elif is_whole:
            self.server_state.total_requests += 1
            self.transport.close()
        else:
            self._linger()

    def _send_alone(self, reply: Reply) -> None:
        self._write(reply, keeps_alive=False)
        self._linger()

    def _write(self, reply: Reply, *, keeps_alive: bool) -> None:
        parts = [STATUS_LINE.get(reply.status, b"HTTP/1.1 %d \r\n" % reply.status)]
        for name, value in self.server_state.default_headers:
            parts += (name, b": ", value, b"\r\n")
        for name, value in reply.headers:
            parts += (name, b": ", value, b"\r\n")
        if not keeps_alive:
            parts.append(b"connection: close\r\n")
        parts.append(
            b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n\r\n"
            % (len(reply.body), reply.request_id.encode("ascii"))
        )
        parts.append(reply.body)
        self.transport.write(b"".join(parts))

    def _linger(self) -> None:
        """Ends the connection, a little later: what the client still sends is thrown away meanwhile."""
        self._is_lingering = True
        self._stop_reading_timer()
        self._unset_keepalive_if_required()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self._reading_timer = self.loop.call_later(_LINGER_S, self.transport.close)

    # Time.

    def _stop_reading_timer(self) -> None:
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None

    def _on_reading_timeout(self) -> None:
        self._reading_timer = None
        error = RequestTimeout(f"the request did not arrive within {self._http.body_timeout_s:g} s")
        if isinstance(self.cycle, RunCycle) and self.cycle.more_body:
            self.cycle.refuse(error)
        elif self.cycle is None or self.cycle.response_complete:
            self._send_alone(self.endpoint.refuse(error))
        else:
            self.transport.close()


def _content_length(headers: list[tuple[bytes, bytes]]) -> float:
    """What the headers declare: 0 without a body, infinity for one of unknown length."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return inf
    return 0
