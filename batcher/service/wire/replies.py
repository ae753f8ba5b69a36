"""Replies as bytes, and the headers that decide about them, which are the same in all grammars. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping
from http import HTTPStatus
from math import ceil, inf

import msgspec

from batcher.core.admission.reservation import Standing
from batcher.errors import ServiceError, ShuttingDown

_STATUS_LINES = {status.value: b"HTTP/1.1 %d %b\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
_STATUS_LINES[529] = b"HTTP/1.1 529 Overloaded\r\n"

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class Reply(msgspec.Struct, frozen=True):
    """What a front end sends. `closes` asks it to end the connection after that."""

    status: int
    body: bytes
    request_id: str
    headers: list[tuple[bytes, bytes]]
    closes: bool = False


def error_reply(error: ServiceError, body: bytes, request_id: str) -> Reply:
    """The reply of any grammar: `body` is its own, the status and the headers of an error are the same in all."""
    return Reply(error.status, body, request_id, error_headers(error), closes=isinstance(error, ShuttingDown))


def error_headers(error: ServiceError) -> list[tuple[bytes, bytes]]:
    """Headers that go with an error: when to retry, and whether at all, for official SDKs decide by these."""
    headers = []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if error.status >= 500 or error.status in (408, 409, 422, 429):
        headers.append((b"x-should-retry", b"true" if error.is_retryable else b"false"))
    return headers


def ratelimit_headers(standing: Standing, reset_format: bytes) -> list[tuple[bytes, bytes]]:
    """`x-ratelimit-limit-requests`, `-remaining-` and `-reset-`, and the same of tokens, where there is such a limit.
    `reset_format` has a place for whole seconds."""
    headers: list[tuple[bytes, bytes]] = []
    if standing.requests_limit is not None and standing.requests_remaining is not None:
        headers += (
            (b"x-ratelimit-limit-requests", b"%d" % standing.requests_limit),
            (b"x-ratelimit-remaining-requests", b"%d" % standing.requests_remaining),
            (b"x-ratelimit-reset-requests", reset_format % ceil(standing.requests_reset_s)),
        )
    if standing.tokens_limit is not None and standing.tokens_remaining is not None:
        headers += (
            (b"x-ratelimit-limit-tokens", b"%d" % standing.tokens_limit),
            (b"x-ratelimit-remaining-tokens", b"%d" % standing.tokens_remaining),
            (b"x-ratelimit-reset-tokens", reset_format % ceil(standing.tokens_reset_s)),
        )
    return headers


def limits_of(standing: Standing) -> Iterator[tuple[bytes, int, int, float]]:
    """(requests or tokens, limit, remaining, seconds until all of it is free), of each limit that there is."""
    if standing.requests_limit is not None and standing.requests_remaining is not None:
        yield b"requests", standing.requests_limit, standing.requests_remaining, standing.requests_reset_s
    if standing.tokens_limit is not None and standing.tokens_remaining is not None:
        yield b"tokens", standing.tokens_limit, standing.tokens_remaining, standing.tokens_reset_s


def find_request_id(headers: Mapping[bytes, bytes]) -> str | None:
    """The caller's own x-request-id if it is safe to repeat in headers, bodies and logs; else None."""
    own_id = headers.get(b"x-request-id")
    return own_id.decode("ascii") if own_id is not None and _REQUEST_ID.fullmatch(own_id) else None


def declared_length(headers: Mapping[bytes, bytes]) -> float:
    """Bytes of body that the headers declare: 0 without a body, infinity for one of unknown length."""
    return inf if b"transfer-encoding" in headers else int(headers.get(b"content-length", b"0"))


def encode_response(reply: Reply, default_headers: Iterable[tuple[bytes, bytes]], *, keeps_alive: bool) -> bytes:
    """The reply as it goes over an HTTP/1.1 connection."""
    parts = [_STATUS_LINES[reply.status]]
    for name, value in (*default_headers, *reply.headers):
        parts += (name, b": ", value, b"\r\n")
    if not keeps_alive:
        parts.append(b"connection: close\r\n")
    parts.append(
        b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %b\r\n\r\n"
        % (len(reply.body), reply.request_id.encode("ascii"))
    )
    parts.append(reply.body)
    return b"".join(parts)
