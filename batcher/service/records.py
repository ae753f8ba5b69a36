"""What is written down of a request when it has ended, for whoever looks after the service. Who bills it reads another record:
`batcher.usage.record`."""

from enum import StrEnum

import msgspec

from batcher import errors
from batcher.types import Outcome


class Route(StrEnum):
    """The routes that compute something; a label of metrics."""

    RUN = "/v1/run"
    MESSAGES = "/v1/messages"
    CHAT = "/v1/chat/completions"


def route_of(path: str) -> str:
    """The label of a path: its Route, or OTHER."""
    return path if path in _ROUTES else OTHER


OTHER = "other"
"""In place of a route, or a model, that there is none of."""
_ROUTES = frozenset(Route)


INVALID = "invalid"
"""In place of an Outcome: refused as it could not be accepted from anybody."""


class Refused(StrEnum):
    """What stood in a request's way; a label of metrics. Each says of whom more is needed: the caller's limit, our machines,
    what our machines rely on, or the caller's own request."""

    RATE_REQUESTS = "rate_requests"
    """The key's or the tier's limit of requests."""
    RATE_TOKENS = "rate_tokens"
    """Likewise of tokens."""
    LIMITS_AWAY = "limits_away"
    """The store of the limits could not be asked."""
    CLAIMS_AWAY = "claims_away"
    """The store of idempotent requests could not be asked."""
    USAGE_AWAY = "usage_away"
    """The usage log cannot be written, and no answer is given without its record."""
    CAPACITY = "capacity"
    """The estimated wait, or a queue or a table that is full."""
    SHED = errors.SHED
    """The dynamic throttle: this key is among those that are refused while the overload lasts."""
    SHUTDOWN = "shutdown"
    SAFETY = "safety"
    """The input did not pass, or nothing of the answer did; an answer that was stopped is none of these."""
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    IDEMPOTENCY = "idempotency"
    """The same key's answer is still being made, or belongs to another body."""
    TOO_LARGE = "too_large"
    TOO_SLOW = "too_slow"
    """The body did not arrive in time."""
    INVALID = "invalid"
    """Whatever else nobody could accept: no such route, method or model, no sense."""


_BY_STATUS = {
    400: Refused.INVALID,
    401: Refused.UNAUTHENTICATED,
    403: Refused.FORBIDDEN,
    408: Refused.TOO_SLOW,
    409: Refused.IDEMPOTENCY,
    413: Refused.TOO_LARGE,
    422: Refused.IDEMPOTENCY,
    429: Refused.RATE_REQUESTS,
    529: Refused.CAPACITY,
}
"""Any other status of a refused request was invalid."""
_REFUSALS = frozenset((Outcome.REJECTED_RATE, Outcome.REJECTED_CAPACITY, Outcome.REJECTED_SHUTDOWN, INVALID))
"""An expired, cancelled or failed request was let in: it is no refusal."""


def what_refused(status: int, outcome: str) -> str:
    """The Refused of a request that ended so and whose error does not say it; empty for one that was not refused."""
    if outcome not in _REFUSALS:
        return ""
    return Refused.SHUTDOWN if outcome == Outcome.REJECTED_SHUTDOWN else _BY_STATUS.get(status, Refused.INVALID)


class RequestLine(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One line of the request log. Times are told to a microsecond: more digits say nothing."""

    at: float
    """Wall-clock time of the end, seconds since 1970."""
    request_id: str
    route: str
    """The route's own name; `other` where there is none."""
    status: int
    """Of the reply; 499 if the client left before it."""
    outcome: str
    """An Outcome, or INVALID."""
    e2e_s: float
    key: str = ""
    tenant: str = ""
    tier: str = ""
    model: str = ""
    error: str = ""
    """The wire type of the error that was told."""
    refused: str = ""
    """A Refused, of a request that was refused."""
    is_replayed: bool = False
    """Whether a kept answer was given again: its tokens were counted and billed when it was made."""
    is_streamed: bool = False
    input_tokens: int = 0
    output_tokens: int = 0
    queue_s: float | None = None
    """Until its batch left, or its first step was launched, since it was let in: as in the metric of this name. None where it
    did not come to that, or did not come to an answer."""
    ttft_s: float | None = None
    trace_id: str = ""
    own_id: str = ""
    """The id that the caller chose, out of A-Za-z0-9._- and at most 128 of them."""
