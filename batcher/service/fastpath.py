"""uvicorn's HTTP protocol, with `POST /v1/run` and whole answers to conversations answered inside it.

A request through ASGI costs a scope, a task, an event and four awaits: about 110 microseconds of CPU where the whole rest of
the way costs 40. So the hot routes take a shorter way on the same connection and parser, and every other request takes
uvicorn's own; a conversation that turns out to be none for this way, once its body is there, is handed over then. A server of
our own was refused: it would be uvicorn again, less tried.

Requests on one connection are answered in order. Each is a cycle (a RunCycle or uvicorn's) in `_cycles`, of which the first has
been started and the others wait:

    bytes ─> parser ─headers complete─> _cycles.append ─its turn─> start ─reply─> on_response_complete ─> next

What one connection may cost is bounded: headers, bodies and what is sent ahead in bytes, a message in time; nothing is read
while replies are not taken, and a client that takes none is cut off.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from batcher.config import HttpConfig
from batcher.errors import InvalidRequest, Overloaded, RequestTooLarge, ServiceError, ShuttingDown
from batcher.service.front import PASSAGE
from batcher.service.records import OTHER
from batcher.service.run import Endpoint
from batcher.service.run_cycle import RunCycle
from batcher.service.small_bodies import SMALL_BODY_BYTES
from batcher.service.timed import TimedProtocol
from batcher.service.whole import WholeAnswers
from batcher.service.wire.replies import Reply, declared_length, encode_response, find_request_id

_HOT_URL = b"/v1/run"

_MAX_HEAD_BYTES = 65_536
"""Of one request's line and headers, give or take one read: four times what common servers allow."""

_MAX_FRAMING = 8
"""Bytes on the wire for a byte of body: a chunk of one byte takes six."""

_MAX_AHEAD_BYTES = 65_536
"""Read ahead while requests wait behind another. Not less, since a connection that is not read cannot be seen to end."""


class _CycleTransport:
    """The transport as uvicorn's cycle has it. To close one whose request has not come in whole would throw the reply away,
    too: the system resets a connection that is closed with something unread."""

    def __init__(self, protocol: "FastPathProtocol") -> None:
        # Not the cycle: it has this, and the two would wait for the collector.
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        # With its reply complete it is ended next, in `on_response_complete`.
        if not self._protocol.has_replied_before_body:
            self._protocol.transport.close()


class FastPathProtocol(TimedProtocol):
    """One connection.

    `_cycles` are the requests that are not answered yet, the oldest first, each with its ASGI app if it is uvicorn's; `cycle`
    is the latest, which the parser feeds. Once `_is_deaf`, whatever arrives is thrown away.
    """

    def __init__(self, *, endpoint: Endpoint, whole: WholeAnswers | None, http: HttpConfig, **kwargs: Any) -> None:
        super().__init__(http=http, **kwargs)
        self._run = endpoint
        self._whole = whole
        self._cycles: deque[tuple[Any, Any]] = deque()
        self._has_first_started = False
        self._is_going_on = False
        self._has_begun_in_this_read = False
        self._num_bytes = 0
        self._num_bytes_ahead = 0

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
            self._close()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        self._has_begun_in_this_read = False
        super().data_received(data)
        if self._is_reading and not self._has_begun_in_this_read:
            self._num_bytes += len(data)
            limit = _MAX_HEAD_BYTES if self._is_reading_head else _MAX_HEAD_BYTES + self._http.max_body_bytes * _MAX_FRAMING
            if self._num_bytes > limit:
                self._refuse_message(RequestTooLarge(f"the request is larger than {limit} bytes"))
        self._num_bytes_ahead = self._num_bytes_ahead + len(data) if len(self._cycles) > 1 else 0
        if self._num_bytes_ahead > _MAX_AHEAD_BYTES:
            self.flow.pause_reading()
        self._watch_reading()
        if not (self._cycles or self._is_reading or self._has_ended):
            self._arm_keep_alive()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._go_on()

    # What the parser finds.

    def on_message_begin(self) -> None:
        self._is_reading = self._is_reading_head = self._has_begun_in_this_read = True
        self._num_bytes = 0
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_reading_head:  # What comes behind a chunked body is nothing we know.
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._is_reading_head = False
        if self._is_deaf:
            return
        parser, headers = self.parser, dict(self.headers)
        endpoint = self._find_endpoint(headers)
        if endpoint is None:
            self._start_asgi()
            return
        expects_continue = headers.get(b"expect", b"").lower() == b"100-continue"
        keep_alive = parser.get_http_version() != "1.0" and parser.should_keep_alive()
        passage = endpoint.front.open(endpoint.route, headers, find_request_id(headers))
        self.cycle = cycle = RunCycle(self, endpoint, passage, keep_alive=keep_alive, expects_continue=expects_continue)
        try:
            passage.model = endpoint.model_id
            refusal = passage.enter(headers)
            if refusal is None and parser.should_upgrade():  # The parser skips the body of such a request.
                raise InvalidRequest("this server speaks HTTP/1.1 only: leave the Upgrade header out")
        except ServiceError as error:
            refusal = error
        if refusal is not None:
            cycle.refuse(refusal, reads_on=declared_length(headers) <= SMALL_BODY_BYTES and not expects_continue)
        self._enqueue(cycle, None)

    def _find_endpoint(self, headers: Mapping[bytes, bytes]) -> Endpoint | None:
        """Who answers this request on the short way; None where nobody does."""
        if self.parser.get_method() != b"POST" or b"idempotency-key" in headers:
            return None
        if self.url == _HOT_URL:
            return self._run
        # These may still be given to ASGI once their bodies are there: it must be their turn then, and nobody has answered yet.
        if self._whole is None or self._cycles or self.flow.write_paused or b"expect" in headers:
            return None
        return self._whole.find(self.url, headers)

    def hand_over(self, cycle: RunCycle, body: bytes | bytearray) -> None:
        assert self._cycles.pop()[0] is cycle
        assert not self._cycles
        self._has_first_started = False
        cycle.response_complete = True
        self._start_asgi()
        self.cycle.scope[PASSAGE] = cycle.passage
        super().on_body(bytes(body))
        super().on_message_complete()

    def _start_asgi(self) -> None:
        """Lets uvicorn make what ASGI needs of the request, as if the parser had only now told it."""
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        for name, value in headers:
            super().on_header(name, value)
        self.cycle = None  # Then uvicorn hands the new cycle to `_start_asgi_task`, whatever became of the last.
        super().on_headers_complete()

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
                self.cycle.refuse(self.cycle.refusal or error)
                return
            if self.cycle.response_started:
                self._close()
                return
            self._cycles.pop()  # To its app, the client is gone.
            self._has_first_started = self._has_first_started and bool(self._cycles)
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        cycle = RunCycle(self, self._run, self._run.front.open(OTHER, {}, None))
        cycle.refuse(error)
        self._enqueue(cycle, None)

    # Turns.

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        """uvicorn's name for: a cycle of its own has come in."""
        cycle.transport = _CycleTransport(self)
        self._enqueue(cycle, app)

    def _enqueue(self, cycle: Any, app: Any) -> None:
        self._cycles.append((cycle, app))
        self._go_on()

    def _go_on(self) -> None:
        """Starts the first cycle if it waits, and reads on when nothing waits. A loop: replies may come at once."""
        if self._is_going_on:
            return
        self._is_going_on = True
        try:
            while self._cycles and not (self._has_first_started or self.flow.write_paused or self._has_ended):
                cycle, app = self._cycles[0]
                self._has_first_started = True
                if isinstance(cycle, RunCycle):
                    cycle.start()
                else:
                    super()._start_asgi_task(cycle, app)
        finally:
            self._is_going_on = False
        if self.flow.read_paused and len(self._cycles) <= 1 and not self.flow.write_paused and not self._has_ended:
            self.flow.resume_reading()
            self._watch_reading()

    @property
    def has_replied_before_body(self) -> bool:
        """Whether the first cycle's reply is complete, and its request has not come in whole."""
        first = self._cycles[0][0] if self._cycles else None
        return first is not None and bool(first.response_complete and first.more_body)

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

    # Writing.

    def send(self, reply: Reply, cycle: RunCycle) -> None:
        """Writes the reply of the first cycle, and ends the connection if either side asked for it."""
        keeps_alive = cycle.keep_alive and not cycle.more_body and not reply.closes
        self.transport.write(encode_response(reply, self.server_state.default_headers, keeps_alive=keeps_alive))
        if not keeps_alive and not cycle.more_body:
            self._close()
        self.on_response_complete()
