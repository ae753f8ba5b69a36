"""One `POST /v1/run` on a connection, from its headers to its reply.

uvicorn's protocol knows a request by its RequestResponseCycle; this is the same thing without ASGI, with the fields that
uvicorn reads (`response_complete`, `keep_alive`, `more_body`). It judges, collects and submits; the connection says when it is
its turn, and writes.
"""

import asyncio
from typing import Protocol

from batcher.errors import ServerFault, ServiceError
from batcher.service import log
from batcher.service.auth import Caller
from batcher.service.run import Endpoint
from batcher.service.wire.replies import Reply


class Connection(Protocol):
    """What a cycle needs of its connection."""

    endpoint: Endpoint
    transport: asyncio.Transport

    def send(self, reply: Reply, cycle: "RunCycle") -> None: ...


class RunCycle:
    """`caller` is None once the request is refused, with `refusal` the reason; `reads_on` says that its body is read even so.

    `own_id` is the id that the caller chose, if any; `request_id` what the dispatcher knows it by while it has it.
    """

    __slots__ = (
        "body",
        "caller",
        "connection",
        "expects_continue",
        "is_gone",
        "is_started",
        "keep_alive",
        "more_body",
        "own_id",
        "reads_on",
        "refusal",
        "request_id",
        "response_complete",
    )

    def __init__(
        self,
        connection: Connection,
        keep_alive: bool = False,
        expects_continue: bool = False,
        own_id: str | None = None,
    ) -> None:
        self.connection = connection
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        self.own_id = own_id
        self.body: bytes | bytearray = b""
        self.more_body = True
        self.is_started = False
        self.is_gone = False
        self.response_complete = False
        self.caller: Caller | None = None
        self.refusal: ServiceError | None = None
        self.reads_on = False
        self.request_id: int | None = None

    def start(self) -> None:
        """It is its turn."""
        self.is_started = True
        if self.expects_continue and self.refusal is None and self.more_body and not self.body:
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._advance()

    def refuse(self, error: ServiceError, *, reads_on: bool = False) -> None:
        """To be refused when it is its turn, after the rest of the body if that is read on."""
        # Without its traceback, whose frames hold the data just read until the collector comes.
        self.caller, self.refusal, self.reads_on, self.body = None, error.with_traceback(None), reads_on, b""
        self._advance()

    def feed(self, data: bytes) -> None:
        """Takes a piece of the body; too much of it is a refusal."""
        if self.refusal is not None or self.response_complete:
            return
        if not self.body:
            self.body = data
        else:
            if not isinstance(self.body, bytearray):
                self.body = bytearray(self.body)
            self.body += data
        try:
            self.connection.endpoint.door.check_length(len(self.body))
        except ServiceError as error:
            self.refuse(error)

    def end_of_body(self) -> None:
        self.more_body = False
        self._advance()

    def hang_up(self) -> None:
        """The client is gone: its place is given back."""
        self.is_gone = True
        if self.request_id is not None and not self.response_complete:
            self.connection.endpoint.cancel(self.request_id)
        self.response_complete = True

    def _advance(self) -> None:
        """Goes on as far as it can: a refusal needs no more body, anything else all of it, and both their turn."""
        if not self.is_started or self.response_complete:
            return
        endpoint = self.connection.endpoint
        if self.refusal is not None:
            if not (self.reads_on and self.more_body):
                self._reply(endpoint.door.refuse(self.refusal, self.own_id))
        elif not self.more_body and self.caller is not None:
            body, self.body = self.body, b""
            try:
                self.request_id = endpoint.submit(self.caller, body, self._reply, own_id=self.own_id)
            except ServiceError as error:
                self._reply(endpoint.door.refuse(error, self.own_id))
            except Exception as error:
                log.error("request_failed", exc_info=error)
                self._reply(endpoint.door.refuse(ServerFault("internal error"), self.own_id))

    def _reply(self, reply: Reply) -> None:
        self.response_complete = True
        if not self.is_gone:
            self.connection.send(reply, self)
