"""Between bytes and types: the body of `POST /v1/run`, its answer, and the one shape of every error (DESIGN D6). Pure."""

import re

import msgspec

from batcher.errors import InvalidRequest, ServiceError

JSON = b"application/json"

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RunBody(msgspec.Struct, forbid_unknown_fields=True):
    input: str


class RunUsage(msgspec.Struct):
    """What was delivered, in characters: batch mode knows no tokens."""

    input_characters: int
    output_characters: int


class RunAnswer(msgspec.Struct):
    id: str
    output: str
    usage: RunUsage


class ErrorDetail(msgspec.Struct):
    type: str
    message: str
    retry_after_s: int | None


class ErrorBody(msgspec.Struct, tag="error"):
    """`{"type": "error", "error": {"type", "message", "retry_after_s"}, "request_id"}`."""

    error: ErrorDetail
    request_id: str


_decoder = msgspec.json.Decoder(RunBody)
_encoder = msgspec.json.Encoder()


def decode_run(body: bytes | bytearray) -> RunBody:
    """Raises InvalidRequest for whatever is not a JSON object with a string `input` and nothing else.

    Text that has no UTF-8 form (lone surrogates, overlong bytes) is refused here, before it can meet a batch.
    """
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise InvalidRequest(f'the body must be a JSON object like {{"input": "text"}}: {error}') from None


def encode_run(request_id: str, input_: str, output: str) -> bytes:
    """Raises UnicodeEncodeError if the backend's output has no UTF-8 form."""
    return _encoder.encode(RunAnswer(request_id, output, RunUsage(len(input_), len(output))))


def encode_error(error: ServiceError, request_id: str) -> bytes:
    return _encoder.encode(ErrorBody(ErrorDetail(error.type, error.message, error.retry_after_s), request_id))


def error_headers(error: ServiceError) -> list[tuple[bytes, bytes]]:
    """Headers that go with an error: when to retry, and whether at all, for official SDKs decide by these."""
    headers = []
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if error.status >= 500 or error.status in (408, 409, 429):
        headers.append((b"x-should-retry", b"true" if error.is_retryable else b"false"))
    return headers


def accept_request_id(value: bytes) -> str | None:
    """The caller's own request id if it is safe to repeat in headers, bodies and logs; else None."""
    return value.decode("ascii") if _REQUEST_ID.fullmatch(value) else None
