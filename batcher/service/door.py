"""Who may come in, judged by a request's headers alone, and how those are told that may not. Every route has this in common."""

import os
from collections.abc import Mapping

from batcher.config import HttpConfig
from batcher.errors import InvalidRequest, RequestTooLarge, ServiceError
from batcher.service.auth import Caller, Keys
from batcher.service.wire.replies import Reply, error_reply


class Door:
    """One for the whole service: the ids that it gives never repeat."""

    def __init__(self, *, keys: Keys, http: HttpConfig) -> None:
        self._keys = keys
        self.max_body_bytes = http.max_body_bytes
        # Ids are unique beyond this process: a random prefix, then a count.
        self._id_prefix = f"req_{os.urandom(5).hex()}"
        self.num_refused = 0
        """Requests that were answered with an error before anybody could accept them: no key, no such route, no sense, too
        large, too slow, more long prompts than can be read."""

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

    def name(self, number: int, own_id: str | None) -> str:
        """A request's id: the caller's own, if it chose one, or ours by `number`, which its owner counts."""
        return own_id or f"{self._id_prefix}_{number}"

    def refuse(self, error: ServiceError, own_id: str | None = None) -> Reply:
        """The reply to a request that never got a number of its own."""
        self.num_refused += 1
        return error_reply(error, own_id or f"{self._id_prefix}_x{self.num_refused}")
