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


def headers_of(dialect: Dialect, error: ServiceError) -> dict[bytes, bytes]:
    return dict(dialect.error_reply(error, "req_1").headers)
