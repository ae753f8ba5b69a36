"""One line of the usage log, which is what callers are billed by.

The service writes it and `batcher usage` reads it, which needs no server: so it stands here with its readers, and the service
imports it.
"""

import msgspec

from batcher.types import Outcome


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
    """Delivered, as the answer's usage says: of an answer that a safety check ended, what left before it; of one that was
    cancelled or failed, what had been sent until then."""
    finished_at: float
    """Wall-clock time, seconds since 1970."""
    outcome: Outcome = Outcome.OK
    computed_tokens: int | None = None
    """Tokens sampled for the answer as far as known then, where they are not those delivered; bytes where those are."""
    idempotency: str | None = None
    """A digest of tenant, Idempotency-Key and question. Records that share one are billed once: an answer whose client could
    not know of it before a crash was computed again for the same question."""
