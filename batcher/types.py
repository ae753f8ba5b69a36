"""The nouns that every part of batcher shares.

They are frozen: a value that travels between the core, a shell and a checker can be compared and kept, and nobody can
change it behind another's back. Plain dataclasses were refused for the hot ones: a `msgspec.Struct` without garbage
collector bookkeeping is built about five times faster, and one is built for every request.
"""

from enum import StrEnum

import msgspec

MAX_BATCH_SIZE = 50
"""Most inputs that one `run_batch` call may carry (SPEC S1.1): a contract with the GPU, not a setting."""


class Outcome(StrEnum):
    """How a request ended. Every admitted or refused request has exactly one; also the label of the metrics."""

    OK = "ok"
    REJECTED_RATE = "rejected_rate"
    REJECTED_CAPACITY = "rejected_capacity"
    REJECTED_SHUTDOWN = "rejected_shutdown"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"


class BatchReason(StrEnum):
    """Why a batch left for a worker."""

    FULL = "full"
    """As many requests waited as a batch may hold."""
    PACE = "pace"
    """A partial batch, at the moment that keeps workers evenly spaced (or at once, when workers are plenty)."""
    TIMEOUT = "timeout"
    """The oldest request had waited for the batch timeout."""
    DRAIN = "drain"
    """The service is stopping: whatever waits goes as soon as a worker is free."""
    RETRY = "retry"
    """The batch's previous worker was lost."""
    SPLIT = "split"
    """A part of a batch whose `run_batch` raised: the search for the input that is to blame."""


class WorkerFault(StrEnum):
    """Why a worker was given up. A closed set: it labels metrics and log lines."""

    DIED = "died"
    """Its process or connection ended, or `run_batch` let something escape that is no ordinary exception."""
    HUNG = "hung"
    """It passed the deadline of its batch."""
    BAD_OUTPUT = "bad_output"
    """It answered with the wrong number or type of outputs."""
    RAISING = "raising"
    """Every batch that it gets raises, while other workers succeed."""
    NOT_STARTED = "not_started"
    """It could not be started, or did not become ready in time."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One input of one caller, as the dispatcher sees it.

    `id` is unique for the life of the process and chosen by the owner. Instants are seconds on the owner's monotonic clock.
    """

    id: int
    tenant: str
    """Whose it is: the owner of the API key. Fairness inside a tier is between tenants."""
    tier: str
    """The name of a configured tier."""
    input: str
    num_bytes: int
    """What the request is charged against the queue's bound in bytes."""
    arrived_at: float
    deadline_at: float
    """After this instant the request is answered as expired, whether it waits or runs."""
