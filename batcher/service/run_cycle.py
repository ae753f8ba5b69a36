"""One request on the short way of a connection, from its headers to its reply.

uvicorn's protocol knows a request by its RequestResponseCycle; this is the same thing without ASGI, with the fields that
uvicorn reads (`response_complete`, `keep_alive`, `more_body`). It judges, collects and submits; the connection says when it is
its turn, and writes.
"""

import asyncio
from typing import Protocol

from batcher.errors import ServerFault, ServiceError
from batcher.service import log
from batcher.service.front import Passage
from batcher.service.pending_bodies import PendingBody
from batcher.service.replying import refuse
from batcher.service.run import Endpoint, Pending
from batcher.service.small_bodies import SMALL_BODY_BYTES
from batcher.service.wire.replies import Reply
from batcher.types import Outcome


class Connection(Protocol):
    """What a cycle needs of its connection."""

    transport: asyncio.Transport

    def hand_over(self, cycle: "RunCycle", body: bytes | bytearray) -> None:
        """Gives the request, which has come in whole and whose turn it is, to ASGI."""

    def send(self, reply: Reply, cycle: "RunCycle") -> None: ...


class RunCycle:
    """`refusal` is the reason once the request is refused; `reads_on` says that its body is read even so.

    `pending_body` is what a large body holds of the server's budget, until its call is over. `passage` takes it through the
    stages; `pending` is what it was submitted as, until that is over: each knows the other, and what stayed so would keep the
    request, body and all, until the collector of cycles comes.
    """

    __slots__ = (
        "body",
        "connection",
        "endpoint",
        "expects_continue",
        "is_gone",
        "is_started",
        "keep_alive",
        "more_body",
        "passage",
        "pending",
        "pending_body",
        "reads_on",
        "refusal",
        "response_complete",
    )

    def __init__(
        self,
        connection: Connection,
        endpoint: Endpoint,
        passage: Passage,
        *,
        keep_alive: bool = False,
        expects_continue: bool = False,
    ) -> None:
        self.connection = connection
        self.endpoint = endpoint
        self.keep_alive = keep_alive
        self.expects_continue = expects_continue
        self.passage = passage
        self.body: bytes | bytearray = b""
        self.more_body = True
        self.is_started = False
        self.is_gone = False
        self.response_complete = False
        self.refusal: ServiceError | None = None
        self.reads_on = False
        self.pending: Pending | None = None
        self.pending_body: PendingBody | None = None

    def start(self) -> None:
        """It is its turn."""
        self.is_started = True
        if self.expects_continue and self.refusal is None and self.more_body and not self.body:
            self.connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._advance()

    def refuse(self, error: ServiceError, *, reads_on: bool = False) -> None:
        """To be refused when it is its turn, after the rest of the body if that is read on."""
        # Without its traceback, whose frames hold the data just read until the collector comes.
        self.refusal, self.reads_on, self.body = error.with_traceback(None), reads_on, b""
        self._close_body()
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
        num_bytes, door = len(self.body), self.endpoint.front.door
        try:
            door.check_length(num_bytes)
            if num_bytes > SMALL_BODY_BYTES:
                if self.pending_body is None:
                    self.pending_body = door.bodies.open(self.passage.caller.tenant)
                self.pending_body.grow(num_bytes)
        except ServiceError as error:
            self.refuse(error)

    def end_of_body(self) -> None:
        self.more_body = False
        self._advance()

    def hang_up(self) -> None:
        """The client is gone: its place is given back."""
        self.is_gone = True
        self.body = b""
        self._close_body()
        if not self.response_complete:
            if self.pending is not None:
                self.pending.cancel()
                self.pending = None
            self.passage.leave()
        self.response_complete = True

    def _advance(self) -> None:
        """Goes on as far as it can: a refusal needs no more body, anything else all of it, and both their turn."""
        if not self.is_started or self.response_complete:
            return
        if self.refusal is not None:
            if not (self.reads_on and self.more_body):
                self._reply(self.refusal)
        elif not self.more_body:
            if self.pending_body is None:
                self._submit()
            elif self.endpoint.takes_large:
                self.endpoint.front.door.turns.call(self.passage.caller.tenant, self._submit_in_turn)
            else:
                body, self.body = self.body, b""
                self._close_body()  # ASGI counts it anew.
                self.connection.hand_over(self, body)

    def _submit_in_turn(self) -> bool:
        is_wanted = not self.response_complete
        if is_wanted:
            self._submit()
        return is_wanted

    def _submit(self) -> None:
        body, self.body = self.body, b""
        try:
            pending = self.endpoint.submit(self.passage, body, self._reply)
            if pending is None:
                self._close_body()
                self.connection.hand_over(self, body)
            elif not self.response_complete:
                self.pending = pending
        except ServiceError as error:
            self._reply(error)
        except Exception as error:
            log.error("request_failed", exc_info=error)
            self._reply(ServerFault("internal error"))

    def _close_body(self) -> None:
        if self.pending_body is not None:
            self.pending_body.close()

    def _reply(self, result: Reply | ServiceError) -> None:
        self.response_complete = True
        self.pending = None
        self._close_body()
        if self.is_gone:
            return
        if isinstance(result, ServiceError):
            reply = refuse(self.passage, self.endpoint.dialect, result)
        else:
            self.passage.end(result.status, Outcome.OK)
            reply = result
        self.connection.send(reply, self)
