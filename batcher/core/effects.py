"""All that the core can ask its shell to do.

An input of the core changes state first and returns these, in the order in which they must be performed. Callbacks were
refused: a core that calls back can be re-entered in the middle of a decision.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from batcher.errors import ServiceError
from batcher.types import BatchReason, FinishReason, Outcome, Request, WorkerFault


class StartWorker(msgspec.Struct, frozen=True, gc=False):
    """Start this worker, then report `worker_ready` or `worker_lost` with the same incarnation.

    Incarnations of one worker count up from 1; what an older one still says is ignored.
    """

    worker_id: int
    incarnation: int


class StopWorker(msgspec.Struct, frozen=True, gc=False):
    """Give this incarnation up: kill it, and report nothing more of it."""

    worker_id: int
    incarnation: int
    fault: WorkerFault
    returned: str = ""
    """What came in place of outputs, in words that name no input; for BAD_OUTPUT."""


class RunBatch(msgspec.Struct, frozen=True):
    """Call `run_batch` with the inputs of `requests` on this worker, then report `complete`, `fail` or `worker_lost`."""

    worker_id: int
    incarnation: int
    batch_id: int
    attempt: int
    """1 for the first try; a late report of an earlier attempt is ignored."""
    requests: tuple[Request, ...]
    reason: BatchReason


class Answer(msgspec.Struct, frozen=True):
    """The request has its output: tell the caller."""

    request: Request
    output: str
    departed_at: float
    """When the attempt that answered left for its worker."""


class Refuse(msgspec.Struct, frozen=True):
    """The request ends without an output: tell the caller why. `outcome` is never ok nor cancelled."""

    request: Request
    outcome: Outcome
    error: ServiceError


Effect: TypeAlias = StartWorker | StopWorker | RunBatch | Answer | Refuse
Effects: TypeAlias = Sequence[Effect]

NOTHING: Effects = ()
"""What an input returns when there is nothing to do; shared, since most submits end so."""


class Emit(msgspec.Struct, frozen=True, gc=False):
    """A running sequence has its next token. With a `finish` it is the last: its blocks and its slot are given back."""

    sequence_id: int
    token: int
    finish: FinishReason | None = None


class EndSequence(msgspec.Struct, frozen=True):
    """A sequence ends without finishing: refused, expired or failed. `outcome` is never ok nor cancelled."""

    sequence_id: int
    outcome: Outcome
    error: ServiceError


ReplicaEffect: TypeAlias = Emit | EndSequence
ReplicaEffects: TypeAlias = Sequence[ReplicaEffect]
