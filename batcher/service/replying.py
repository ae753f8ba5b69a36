"""What a reply says of its call beside the answer, in the grammar of the call: the same on every way that a call may take."""

import msgspec

from batcher.errors import ServiceError
from batcher.service.conversation import Answerer
from batcher.service.front import Passage
from batcher.service.idempotency import REPLAYED
from batcher.service.wire.dialect import AnswerHead, Dialect
from batcher.service.wire.replies import Reply


def request_id_headers(request_id: str, dialect: Dialect) -> list[tuple[bytes, bytes]]:
    """The grammar's own, beside x-request-id."""
    return [(name, request_id.encode("ascii")) for name in dialect.request_id_names]


def reply_headers(passage: Passage, dialect: Dialect) -> list[tuple[bytes, bytes]]:
    """The request's id under the grammar's own names, how the caller's limits stand, and the span that it became."""
    headers = request_id_headers(passage.shown_id, dialect)
    if passage.standing is not None:
        headers += dialect.limit_headers(passage.standing, now=passage.front.wall_clock())
    if passage.trace is not None and (traceresponse := passage.trace.traceresponse) is not None:
        headers.append((b"traceresponse", traceresponse.encode()))
    return headers


def addressed(reply: Reply, passage: Passage, dialect: Dialect) -> Reply:
    """An answer as this caller's own, whoever it was made for: who is given one that was kept is told neither the first
    caller's request id nor what was left of the limits then."""
    is_replayed = [header for header in reply.headers if header == REPLAYED]
    headers = [*reply_headers(passage, dialect), *is_replayed]
    return msgspec.structs.replace(reply, request_id=passage.shown_id, headers=headers)


def error_reply(passage: Passage, dialect: Dialect, error: ServiceError) -> Reply:
    """An error in place of an answer."""
    reply = dialect.error_reply(error, passage.shown_id)
    reply.headers.extend(reply_headers(passage, dialect))
    return reply


def refuse(passage: Passage, dialect: Dialect, error: ServiceError) -> Reply:
    """The reply to a call that ends with an error; ends its passage."""
    passage.refuse(error)
    return error_reply(passage, dialect, error)


def answer_head(passage: Passage, answerer: Answerer, num_input_tokens: int) -> AnswerHead:
    return AnswerHead(
        id=passage.id,
        model=answerer.model_id,
        created_at=int(passage.front.wall_clock()),
        num_input_tokens=num_input_tokens,
    )
