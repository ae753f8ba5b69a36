"""`POST /v1/run` (batch mode's plain contract), apart from the way bytes come and go.

Two front ends share it: the fast path inside uvicorn's protocol, and a raw ASGI endpoint for any other server. Both first ask
`authenticate` with the headers, before a byte of the body is read, then `submit` with the whole body.
"""

import os
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from batcher.config import HttpConfig
from batcher.core.effects import Answer
from batcher.errors import InvalidRequest, RequestTimeout, RequestTooLarge, ServerFault, ServiceError, ShuttingDown
from batcher.service import log
from batcher.service.auth import Caller, Keys
from batcher.service.driver import Driver, End
from batcher.service.meters import Meters
from batcher.service.wire import Reply, accept_request_id, decode_run, encode_error, encode_run, error_headers


class Head(msgspec.Struct, frozen=True):
    """What the headers told: who calls, and the id that the caller chose."""

    caller: Caller
    request_id: str | None


OnReply: TypeAlias = Callable[[Reply], None]

_NO_HEADERS: list[tuple[bytes, bytes]] = []


class RunEndpoint:
    def __init__(self, *, driver: Driver, keys: Keys, meters: Meters, http: HttpConfig) -> None:
        self._driver = driver
        self._keys = keys
        self._meters = meters
        self.max_body_bytes = http.max_body_bytes
        # Ids are unique beyond this process: a random prefix, then a count.
        self._id_prefix = f"req_{os.urandom(5).hex()}"
        self._num_refused = 0

    def authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> Head:
        """Judges a request by its headers (names in lower case). Raises ServiceError: 401 before anything, 400 or 413."""
        key = bearer = encoding = b""
        request_id = None
        length = 0
        for name, value in headers:
            if name == b"x-api-key":
                key = value
            elif name == b"authorization":
                bearer = value
            elif name == b"content-length":
                length = int(value)  # The parser has let only digits through.
            elif name == b"x-request-id":
                request_id = accept_request_id(value)
            elif name == b"content-encoding":
                encoding = value
        if not key and bearer[:7].lower() == b"bearer ":
            key = bearer[7:].strip()
        head = Head(self._keys.find(key), request_id)
        if encoding and encoding.lower() != b"identity":
            raise InvalidRequest("the body must not be compressed")
        self.check_length(length)
        return head

    def check_length(self, num_bytes: int) -> None:
        """Raises RequestTooLarge. Also asked while a body of unknown length comes in."""
        if num_bytes > self.max_body_bytes:
            raise RequestTooLarge(f"the body is larger than {self.max_body_bytes} bytes")

    def submit(self, head: Head, body: bytes | bytearray, on_reply: OnReply) -> int:
        """Sends a request on its way; `on_reply` is called once, perhaps at once. Returns the id to `cancel` it by.

        Raises InvalidRequest, and then nothing was sent.
        """
        input_ = decode_run(body).input
        return self._driver.submit(head.caller, input_, len(body), lambda end: on_reply(self._reply(end, head.request_id)))

    def cancel(self, head: Head, request_id: int) -> None:
        self._driver.cancel(head.caller.tier, request_id)

    def refuse(self, error: ServiceError, request_id: str | None = None) -> Reply:
        """The reply to a request that never got an id of its own."""
        self._meters.invalid += 1
        self._num_refused += 1
        return _error_reply(error, request_id or f"{self._id_prefix}_x{self._num_refused}")

    def _reply(self, end: End, request_id: str | None) -> Reply:
        request_id = request_id or f"{self._id_prefix}_{end.request.id}"
        if isinstance(end, Answer):
            try:
                return Reply(200, encode_run(request_id, end.request.input, end.output), request_id, _NO_HEADERS)
            except UnicodeEncodeError as error:
                log.error("output_not_text", exc_info=error, request_id=request_id)
                return _error_reply(ServerFault("the output has no UTF-8 form"), request_id)
        return _error_reply(end.error, request_id)


def _error_reply(error: ServiceError, request_id: str) -> Reply:
    # The rest of such a body would be in the way of the next request.
    closes = isinstance(error, ShuttingDown | RequestTimeout | RequestTooLarge)
    return Reply(error.status, encode_error(error, request_id), request_id, error_headers(error), closes)
