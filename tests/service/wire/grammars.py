"""The grammars, each with a good body, for what is true of all of them."""

import json
from typing import Any

from batcher.core.admission.reservation import Standing
from batcher.errors import ServiceError
from batcher.service.wire.anthropic import ANTHROPIC
from batcher.service.wire.dialect import AnswerHead, Dialect
from batcher.service.wire.native import NATIVE
from batcher.service.wire.openai import OPENAI

GRAMMARS: dict[str, Dialect] = {"native": NATIVE, "anthropic": ANTHROPIC, "openai": OPENAI}

HEAD = AnswerHead(id="req_1", model="m", created_at=1_700_000_000, num_input_tokens=5)

STANDING = Standing(
    requests_limit=10, requests_remaining=0, requests_reset_s=1.5, tokens_limit=1000, tokens_remaining=999, tokens_reset_s=0.0
)


def document(**fields: Any) -> dict[str, Any]:
    """Good in every grammar, unless told otherwise."""
    return {"model": "m", "max_tokens": 7, "messages": [{"role": "user", "content": "hello"}], **fields}


def body(**fields: Any) -> bytes:
    return json.dumps(document(**fields)).encode()


NO_BODIES = {
    "nothing": b"",
    "no JSON": b"hello",
    "list": b"[]",
    "null": b"null",
    "cut": body()[:-5],
    "trailing": body() + b"{}",
    "lone surrogate": body().replace(b"hello", rb"\ud83d"),
    "surrogate as bytes": body().replace(b"hello", b"\xed\xa0\xbd"),
    "overlong": body().replace(b"hello", b"\xc0\xaf"),
    "latin-1": body().replace(b"hello", b"\xfc"),
    "line break in a string": body().replace(b"hello", b"a\nb"),
    "byte order mark": b"\xef\xbb\xbf" + body(),
    "UTF-16": body().decode().encode("utf-16"),
    "UTF-32": body().decode().encode("utf-32"),
    "NaN": body().replace(b"7", b"NaN"),
    "huge": body().replace(b"7", b"9" * 5000),
    "huge exponent": body(temperature=1).replace(b'"temperature": 1', b'"temperature": 1e999'),
    "deep": body().replace(b'"hello"', b"[" * 100_000),
    "deep beside its kind": body().replace(b'"hello"', b'[{"type": ' + b"[" * 100_000),
    "deep in what is ignored": body().replace(b'"model"', b'"metadata": ' + b"[" * 100_000),
    "deep in what is unknown": body().replace(b'"model"', b'"x": ' + b"[" * 100_000),
    "long name": body()[:-1] + b', "' + b"n" * 100_000 + b'": 1}',
}
"""Bytes that are no JSON, or no text, or no object such as every grammar asks for."""


def headers_of(dialect: Dialect, error: ServiceError) -> dict[bytes, bytes]:
    return dict(dialect.error_reply(error, "req_1").headers)
