"""`POST /v1/run` (batch mode's plain contract), apart from the way bytes come and go.

Two front ends share it: the fast path inside uvicorn's protocol, and a raw ASGI endpoint for any other server. Both first ask
`authenticate` with the headers, before a byte of the body is read, then `submit` with the whole body.
"""

import os
from collections.abc import Callable, Mapping
from typing import TypeAlias

from batcher.config import HttpConfig
from batcher.core.effects import Answer
from batcher.errors import InvalidRequest, RequestTooLarge, ServiceError, ShuttingDown
from batcher.service.auth import Caller, Keys
from batcher.service.driver import Driver, End
from batcher.service.meters import Meters
from batcher.service.wire import Reply, decode_run, encode_error, encode_run, error_headers

OnReply: TypeAlias = Callable[[Reply], None]

_NO_HEADERS: list[tuple[bytes, bytes]] = []


class RunEndpoint:
    """What the two front ends share: who may call, what is asked, and what is replied."""

    def __init__(self, *, driver: Driver, keys: Keys, meters: Meters, http: HttpConfig) -> None:
        self._driver = driver
        self._keys = keys
        self._meters = meters
        self.max_body_bytes = http.max_body_bytes
        # Ids are unique beyond this process: a random prefix, then a count.
        self._id_prefix = f"req_{os.urandom(5).hex()}"
        self._num_refused = 0

    def authenticate(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Judges a request by its headers (names in lower case). Raises ServiceError: 401 before anything, 400 or 413."""
        key = headers.get(b"x-api-key")
        if key is None:
            bearer = headers.get(b"authorization", b"")
            key = bearer[7:].strip() if bearer[:7].lower() == b"bearer " else b""
        caller = self._keys.find(key)
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise InvalidRequest("the body must not be compressed")
        length = headers.get(b"content-length", b"0")
        self.check_length(int(length) if length.isdigit() else 0)
        return caller

    def check_length(self, num_bytes: int) -> None:
        """Raises RequestTooLarge. Also asked while a body of unknown length comes in."""
        if num_bytes > self.max_body_bytes:
            raise RequestTooLarge(f"the body is larger than {self.max_body_bytes} bytes")

    def submit(self, caller: Caller, body: bytes | bytearray, on_reply: OnReply, *, own_id: str | None = None) -> int:
        """Sends a request on its way; `on_reply` is called once, perhaps at once. Returns the id to `cancel` it by.

        `own_id` is the id that the caller chose, to be repeated in the reply.

        Raises InvalidRequest, and then nothing was sent.
        """
        input_ = decode_run(body).input
        return self._driver.submit(caller, input_, len(body), lambda end: on_reply(self._reply(end, own_id)))

    def cancel(self, request_id: int) -> None:
        self._driver.cancel(request_id)

    def refuse(self, error: ServiceError, own_id: str | None = None) -> Reply:
        """The reply to a request that never got an id of its own."""
        self._meters.num_unadmitted += 1
        self._num_refused += 1
        return _error_reply(error, own_id or f"{self._id_prefix}_x{self._num_refused}")

    def _reply(self, end: End, own_id: str | None) -> Reply:
        request_id = own_id or f"{self._id_prefix}_{end.request.id}"
        if isinstance(end, Answer):
            return Reply(200, encode_run(request_id, end.request.input, end.output), request_id, _NO_HEADERS)
        return _error_reply(end.error, request_id)


def _error_reply(error: ServiceError, request_id: str) -> Reply:
    closes = isinstance(error, ShuttingDown)
    return Reply(error.status, encode_error(error, request_id), request_id, error_headers(error), closes)
