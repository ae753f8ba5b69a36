"""What is written down of a request when it has ended: for whoever bills it, and for whoever looks after the service."""

from enum import StrEnum

import msgspec

from batcher.types import Outcome


class Route(StrEnum):
    """The routes that compute something; a label of metrics."""

    RUN = "/v1/run"
    MESSAGES = "/v1/messages"
    CHAT = "/v1/chat/completions"


class UsageRecord(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One line of the usage log (SPEC S5.3): what was delivered to whom, which is what is billed."""

    request_id: str
    """Ours, unique."""
    key: str
    """The key's id."""
    tenant: str
    tier: str
    model: str
    """As it is called here, never a caller's words."""
    input_tokens: int
    """Of `POST /v1/run`, which knows no tokens: bytes of UTF-8; so the next."""
    output_tokens: int
    """Delivered: of an answer that was cancelled or failed, what had been sent until then."""
    finished_at: float
    """Wall-clock time, seconds since 1970."""
    outcome: Outcome = Outcome.OK
    computed_tokens: int | None = None
    """Tokens sampled for the answer, where they are not those delivered."""
    idempotency: str | None = None
    """A digest of tenant and Idempotency-Key. Records that share one are billed once: an answer whose client could not know of
    it before a crash was computed again for the same question."""


class RequestLine(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One line of the request log."""

    at: float
    """Wall-clock time of the end, seconds since 1970."""
    request_id: str
    route: str
    """The route's own name; `other` where there is none."""
    status: int
    """Of the reply; 499 if the client left before it."""
    outcome: str
    """An Outcome, or `invalid` for what was refused as it could not be accepted from anybody."""
    e2e_s: float
    key: str = ""
    tenant: str = ""
    tier: str = ""
    model: str = ""
    error: str = ""
    """The wire type of the error that was told."""
    is_streamed: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    ttft_s: float | None = None
    trace_id: str = ""
