"""Who may come in, judged by a request's headers alone, and how those are told that may not. Every route has this in common."""

import os
import time
from collections.abc import Callable, Mapping
from math import inf

from batcher.config import HttpConfig
from batcher.errors import InvalidRequest, PermissionDenied, RequestTooLarge, ServiceError
from batcher.service.auth import Caller, Keys
from batcher.service.pending_bodies import PendingBodies
from batcher.service.small_bodies import SMALL_BODY_BYTES
from batcher.service.turns import Turns
from batcher.service.wire.replies import declared_length

_MAX_LENGTH_DIGITS = 18
"""A Content-Length with more is too long by its beginning already."""

_BUSY_S = 1.0
"""From a refusal on, every request is judged by its headers. A crowd that is refused keeps it so."""


def _refuse_nobody(caller: Caller) -> ServiceError | None:
    return None


class Door:
    """One for the whole service: the ids that it gives never repeat."""

    def __init__(self, *, keys: Keys, http: HttpConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self.max_body_bytes = http.max_body_bytes
        self.bodies = PendingBodies(max_bytes=http.max_pending_body_bytes)
        """What may be held of bodies together."""
        self.turns = Turns()
        """When a large body is gone on with, or a long text."""
        self.refuse_early: Callable[[Caller], ServiceError | None] = _refuse_nobody
        """Why this caller's requests are refused at present, whatever they ask: its limit is used up, what it gets could not be
        recorded, or nobody has room. Asked before a body is read, and so it never waits. Its owner is the service."""
        self._clock = clock
        self._busy_until_at = -inf
        # Ids are unique beyond this process: a random prefix, then a count.
        self._id_prefix = f"req_{os.urandom(5).hex()}"
        self._num_ids = 0

    def authenticate(self, headers: Mapping[bytes, bytes]) -> Caller:
        """Judges a request by its headers (names in lower case). Raises ServiceError: 401 before anything, 400 or 413."""
        key = headers.get(b"x-api-key")
        if key is None:
            bearer = headers.get(b"authorization", b"")
            key = bearer[7:].strip() if bearer[:7].lower() == b"bearer " else b""
        caller = self._keys.find(key)
        if (encoding := headers.get(b"content-encoding")) is not None and encoding.lower() != b"identity":
            raise InvalidRequest("the body must not be compressed")
        if (length := headers.get(b"content-length")) is not None and length.isdigit():
            self.check_length(int(length[:_MAX_LENGTH_DIGITS]))
        return caller

    def judge_early(self, caller: Caller, headers: Mapping[bytes, bytes]) -> ServiceError | None:
        """What this caller's requests are refused with at present, if they are. For the routes that make work.

        Of a small body it is not asked while there was room for everybody: it is there anyway, and will be judged. Returned and
        not raised: in a flood that is a twentieth of a refusal.
        """
        is_asked = self._clock() < self._busy_until_at or declared_length(headers) > SMALL_BODY_BYTES
        return self.refuse_early(caller) if is_asked else None

    def note_busy(self) -> None:
        """Somebody was refused for a limit, as there was no room, or as something that is needed was away."""
        self._busy_until_at = self._clock() + _BUSY_S

    def require_operator(self, caller: Caller) -> None:
        """Raises PermissionDenied."""
        if not caller.is_operator:
            raise PermissionDenied(self._keys.operators_only)

    def check_length(self, num_bytes: int) -> None:
        """Raises RequestTooLarge. Also asked while a body of unknown length comes in."""
        if num_bytes > self.max_body_bytes:
            raise RequestTooLarge(f"the body is larger than {self.max_body_bytes} bytes")

    def next_id(self) -> str:
        """Another request's id."""
        self._num_ids += 1
        return f"{self._id_prefix}_{self._num_ids}"
