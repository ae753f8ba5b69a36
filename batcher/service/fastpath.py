"""uvicorn's HTTP protocol, with `POST /v1/run` answered inside it.

A request through ASGI costs a scope, a task, an event and four awaits: about 110 microseconds of CPU where the whole rest of
the way costs 40. So the hot route takes a shorter way on the same connection and parser, and every other request takes
uvicorn's own. A server of our own was refused: it would be uvicorn again, less tried.

Requests on one connection are answered in order. Each is a cycle (a RunCycle or uvicorn's) in `_cycles`, of which the first has
been started and the others wait:

    bytes ─> parser ─headers complete─> _cycles.append ─its turn─> start ─reply─> on_response_complete ─> next

What one connection may cost is bounded: headers, bodies and what is sent ahead in bytes, a message in time; nothing is read
while replies are not taken, and a client that takes none is cut off.
"""

import asyncio
from collections import deque
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from batcher.config import HttpConfig
from batcher.errors import InvalidRequest, Overloaded, RequestTimeout, RequestTooLarge, ServiceError, ShuttingDown
from batcher.service.run import RunEndpoint
from batcher.service.run_cycle import RunCycle
from batcher.service.wire import Reply, declared_length, encode_response, find_request_id

_HOT_URL = b"/v1/run"

_MAX_HEAD_BYTES = 65_536
"""Of one request's line and headers, give or take one read: four times what common servers allow."""

_MAX_FRAMING = 8
"""Bytes on the wire for a byte of body: a chunk of one byte takes six."""

_MAX_AHEAD_BYTES = 65_536
"""Read ahead while requests wait behind another. Not less, since a connection that is not read cannot be seen to end."""

_SMALL_BODY_BYTES = 16_384
"""A refused request with a body up to this is read to its end, so that its connection can go on."""

_LINGER_S = 2.0
"""How long a connection that was refused in mid-message is still read, so that the refusal is not lost in a reset."""


class FastPathProtocol(HttpToolsProtocol):
    """One connection.

    `_cycles` are the requests that are not answered yet, the oldest first, each with its ASGI app if it is uvicorn's; `cycle`
    is the latest, which the parser feeds. `_reading_timer` runs while a message comes in and it is the client we wait for,
    `_writing_timer` while the client takes no replies. Once `_is_deaf`, whatever arrives is thrown away.
    """

    cycle: Any

    def __init__(self, *, endpoint: RunEndpoint, http: HttpConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.endpoint = endpoint
        self._http = http
        self._cycles: deque[tuple[Any, Any]] = deque()
        self._has_first_started = False
        self._is_going_on = False
        self._is_deaf = False
        self._is_lingering = False
        self._is_reading = False
        self._is_reading_head = False
        self._num_bytes = 0
        self._num_bytes_ahead = 0
        self._reading_timer: asyncio.TimerHandle | None = None
        self._writing_timer: asyncio.TimerHandle | None = None

    # The connection.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm_keep_alive()
        if len(self.connections) > self._http.max_connections:
            self._refuse_message(Overloaded("too many connections", retry_after_s=1))

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_deaf = True
        self._cancel_timers()
        cycles, self._cycles = self._cycles, deque()
        for cycle, _ in cycles:
            if isinstance(cycle, RunCycle):
                cycle.hang_up()
            else:
                cycle.disconnected = True
                cycle.message_event.set()
        self.cycle = None
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Nothing more is heard, and the connection ends with its last pending reply."""
        if self._is_reading and self._cycles:
            self._refuse_message(ShuttingDown("this server is shutting down", retry_after_s=1))
            return
        self._is_deaf = True
        if self._cycles:
            self._cycles[-1][0].keep_alive = False
        elif not self._is_lingering:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        was_reading = self._is_reading
        super().data_received(data)
        if self._is_reading and was_reading:
            self._num_bytes += len(data)
            limit = _MAX_HEAD_BYTES if self._is_reading_head else _MAX_HEAD_BYTES + self._http.max_body_bytes * _MAX_FRAMING
            if self._num_bytes > limit:
                self._refuse_message(RequestTooLarge(f"the request is larger than {limit} bytes"))
        self._num_bytes_ahead = self._num_bytes_ahead + len(data) if len(self._cycles) > 1 else 0
        if self._num_bytes_ahead > _MAX_AHEAD_BYTES:
            self.flow.pause_reading()
        self._watch_reading()
        if not self._is_reading and not self._cycles and self.timeout_keep_alive_task is None:
            self._arm_keep_alive()

    def pause_writing(self) -> None:
        """The client does not take its replies: it gets no more until it does, and not for ever."""
        super().pause_writing()
        self.flow.pause_reading()
        self._watch_reading()
        self._writing_timer = self.loop.call_later(self._http.body_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writing_timer is not None:
            self._writing_timer.cancel()
            self._writing_timer = None
        if not self.transport.is_closing():
            self._go_on()

    # What the parser finds.

    def on_message_begin(self) -> None:
        self._is_reading = self._is_reading_head = True
        self._num_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_reading_head:  # What comes behind a chunked body is nothing we know.
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_reading_head = False
        if self._is_deaf:
            return
        if self.url != _HOT_URL or self.parser.get_method() != b"POST":
            self.cycle = None  # Then uvicorn hands the new cycle to `_start_asgi_task`, whatever became of the last.
            super().on_headers_complete()
            return
        keep_alive = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        own_id = find_request_id(self.headers)
        cycle = RunCycle(self, keep_alive=keep_alive, expects_continue=self.expect_100_continue, own_id=own_id)
        self.cycle = cycle
        try:
            cycle.caller = self.endpoint.authenticate(self.headers)
            if self.parser.should_upgrade():  # The parser skips the body of such a request.
                raise InvalidRequest("this server speaks HTTP/1.1 only: leave the Upgrade header out")
        except ServiceError as error:
            is_small = declared_length(self.headers) <= _SMALL_BODY_BYTES
            cycle.refuse(error, reads_on=is_small and not self.expect_100_continue)
        self._enqueue(cycle, None)

    def on_body(self, body: bytes) -> None:
        if self._is_deaf:
            return
        if isinstance(self.cycle, RunCycle):
            self.cycle.feed(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_reading = False
        if self._is_deaf:
            return
        if isinstance(self.cycle, RunCycle):
            self.cycle.end_of_body()
        else:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's name for: the parser gave up."""
        self._refuse_message(InvalidRequest("this is not HTTP/1.1"))

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn's name for: the parser stops behind a request with an Upgrade header."""
        self.shutdown()

    def _refuse_message(self, error: ServiceError) -> None:
        """Refuses what is coming in, behind what was asked before, and hears nothing more."""
        self._is_deaf = True
        if self._is_reading and not self._is_reading_head and self.cycle is not None:
            if isinstance(self.cycle, RunCycle):
                self.cycle.refuse(error)
                return
            if self.cycle.response_started:
                self.transport.close()
                return
            self._cycles.pop()  # To its app, the client is gone.
            self._has_first_started = self._has_first_started and bool(self._cycles)
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        cycle = RunCycle(self, keep_alive=False)
        cycle.refuse(error)
        self._enqueue(cycle, None)

    # Turns.

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """uvicorn's name for: a cycle of its own has come in."""
        self._enqueue(cycle, app)

    def _enqueue(self, cycle: Any, app: Any) -> None:
        self._cycles.append((cycle, app))
        self._go_on()

    def _go_on(self) -> None:
        """Starts the first cycle if it waits, and reads on when nothing waits. A loop: replies may come at once."""
        if self._is_going_on:
            return
        self._is_going_on = True
        while self._cycles and not (self._has_first_started or self.flow.write_paused or self._has_ended):
            cycle, app = self._cycles[0]
            self._has_first_started = True
            if isinstance(cycle, RunCycle):
                cycle.start()
            else:
                super()._start_asgi_task(cycle, app)
        self._is_going_on = False
        if len(self._cycles) <= 1 and not self.flow.write_paused and not self._has_ended:
            self.flow.resume_reading()
            self._watch_reading()

    def on_response_complete(self) -> None:
        """The first cycle has its reply."""
        self.server_state.total_requests += 1
        if not self._cycles:
            return
        cycle, _ = self._cycles.popleft()
        self._has_first_started = False
        if cycle.more_body and not self._has_ended:
            self._linger()
        self._go_on()
        if not (self._cycles or self._is_reading or self._has_ended):
            self._arm_keep_alive()

    @property
    def _has_ended(self) -> bool:
        """Whether nothing may be written any more."""
        return self._is_lingering or self.transport.is_closing()

    # Writing.

    def send(self, reply: Reply, cycle: RunCycle) -> None:
        """Writes the reply of the first cycle, and ends the connection if either side asked for it."""
        keeps_alive = cycle.keep_alive and not cycle.more_body and not reply.closes
        self.transport.write(encode_response(reply, self.server_state.default_headers, keeps_alive=keeps_alive))
        if not keeps_alive and not cycle.more_body:
            self._is_deaf = True
            self.transport.close()
        self.on_response_complete()

    def _linger(self) -> None:
        """Ends the connection, a little later: what the client still sends is thrown away meanwhile."""
        self._is_deaf = self._is_lingering = True
        self._cancel_timers()
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self._reading_timer = self.loop.call_later(_LINGER_S, self.transport.close)

    # Time.

    def _arm_keep_alive(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def _watch_reading(self) -> None:
        """Bounds the time of the message that is coming in, while it is the client that we wait for."""
        is_ours = self._is_reading_head or isinstance(self.cycle, RunCycle)  # A body on the ASGI way has a timeout there.
        if self._is_reading and is_ours and not self._is_deaf and not self.flow.read_paused:
            if self._reading_timer is None:
                self._reading_timer = self.loop.call_later(self._http.body_timeout_s, self._on_reading_timeout)
        elif self._reading_timer is not None and not self._is_lingering:
            self._reading_timer.cancel()
            self._reading_timer = None

    def _on_reading_timeout(self) -> None:
        self._refuse_message(RequestTimeout(f"the request did not arrive within {self._http.body_timeout_s:g} s"))

    def _cancel_timers(self) -> None:
        self._unset_keepalive_if_required()
        for timer in (self._reading_timer, self._writing_timer):
            if timer is not None:
                timer.cancel()
        self._reading_timer = self._writing_timer = None
