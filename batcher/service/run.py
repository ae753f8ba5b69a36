"""`POST /v1/run` (batch mode's plain contract), apart from the way bytes come and go.

Two front ends share it: the fast path inside uvicorn's protocol, and a raw ASGI endpoint for any other server. Both first ask
the door with the headers, before a byte of the body is read, then `submit` with the whole body.
"""

from collections.abc import Callable
from typing import Protocol, TypeAlias

from batcher.core.effects import Answer
from batcher.errors import NotFound
from batcher.service.auth import Caller
from batcher.service.door import Door
from batcher.service.driver import Driver, End
from batcher.service.wire.replies import Reply, error_reply
from batcher.service.wire.run import decode_run, encode_run

OnReply: TypeAlias = Callable[[Reply], None]

_NO_HEADERS: list[tuple[bytes, bytes]] = []


class Endpoint(Protocol):
    """What the two front ends share."""

    door: Door

    def submit(self, caller: Caller, body: bytes | bytearray, on_reply: OnReply, *, own_id: str | None = None) -> int:
        """Sends a request on its way; `on_reply` is called once, perhaps at once. Returns the id to `cancel` it by.

        `own_id` is the id that the caller chose, to be repeated in the reply.

        Raises ServiceError, and then nothing was sent.
        """

    def cancel(self, request_id: int) -> None: ...


class RunEndpoint:
    """What is asked, and what is replied."""

    def __init__(self, *, driver: Driver, door: Door) -> None:
        self._driver = driver
        self.door = door

    def submit(self, caller: Caller, body: bytes | bytearray, on_reply: OnReply, *, own_id: str | None = None) -> int:
        input_ = decode_run(body).input
        return self._driver.submit(caller, input_, len(body), lambda end: on_reply(self._reply(end, own_id)))

    def cancel(self, request_id: int) -> None:
        self._driver.cancel(request_id)

    def _reply(self, end: End, own_id: str | None) -> Reply:
        request_id = self.door.name(end.request.id, own_id)
        if isinstance(end, Answer):
            return Reply(200, encode_run(request_id, end.request.input, end.output), request_id, _NO_HEADERS)
        return error_reply(end.error, request_id)


class NoRunEndpoint:
    """In continuous mode nobody runs batches: says where to ask instead."""

    def __init__(self, door: Door) -> None:
        self.door = door

    def submit(self, caller: Caller, body: bytes | bytearray, on_reply: OnReply, *, own_id: str | None = None) -> int:
        raise NotFound("there is no /v1/run in continuous mode: ask POST /v1/messages, or serve with --mode batch")

    def cancel(self, request_id: int) -> None:
        raise AssertionError("nothing was submitted")
