"""The nouns that every part of batcher shares.

They are frozen: a value that travels between the core, a shell and a checker can be compared and kept, and nobody can
change it behind another's back. Plain dataclasses were refused for the hot ones: a `msgspec.Struct` without garbage
collector bookkeeping is built about five times faster, and one is built for every request.
"""

from array import array
from collections.abc import Sequence as Items
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


# Continuous mode: what a replica's scheduler asks of a StepBackend. Ids only, never tensors.

BLOCK_SIZE = 16
"""Tokens of one KV block (SPEC S6.2)."""

PENDING = -1
"""Stands for the token that this slot sampled last: the device has it already, the scheduler may not have seen it yet."""


class FinishReason(StrEnum):
    """Why an answer ended; also the wire's `stop_reason`."""

    END_TURN = "end_turn"
    """The model sampled one of its stop tokens."""
    MAX_TOKENS = "max_tokens"
    STOP_SEQUENCE = "stop_sequence"
    """A stop string of the caller's appeared in the text."""
    REFUSAL = "refusal"
    """A safety check ended the answer."""


class Usage(msgspec.Struct, frozen=True, gc=False):
    """What a request is billed for, counted from token ids (SPEC S3.5)."""

    input_tokens: int
    output_tokens: int
    """Tokens sampled for the answer, a stop token and the tokens of a stop string among them; of an answer that a safety check
    ended, those of the text that left before it."""


class Sampling(msgspec.Struct, frozen=True, gc=False):
    """How a token is drawn from the logits. The defaults leave the model's distribution as it is."""

    temperature: float = 1.0
    """0 is greedy: the highest logit, the lowest id among equals."""
    top_p: float = 1.0
    """Draw among the fewest likeliest tokens that hold this much probability; 1 is all."""
    top_k: int = 0
    """Draw among this many likeliest tokens; 0 is all."""
    seed: int = 0
    """From 0 to 2**63 - 1. With the position it decides the draw, whatever else is in the batch."""


GREEDY = Sampling(temperature=0.0)


class ScheduledSequence(msgspec.Struct, frozen=True, gc=False):
    """One sequence's part of a step.

    The step computes the keys and values of `tokens`, at the positions from `start` on, and writes them into the blocks of
    `block_table`: position p lies in block `block_table[p // BLOCK_SIZE]` at offset `p % BLOCK_SIZE`. The positions before
    `start` are there already, computed by this sequence or by one that shared the block.
    """

    sequence_id: int
    slot: int
    """From 0 to max_num_seqs - 1, this sequence's own while it runs: where a backend may keep its last sampled token."""
    tokens: Items[int]
    """At least one. PENDING may only be alone, and then the backend puts in what the slot's last sampling gave."""
    start: int
    block_table: "array[int]"
    """Type code 'i'. Covers `start + len(tokens)` positions; may be longer. The scheduler's own: read it before the next
    `schedule`, never write it."""
    is_sampled: bool
    """Whether a token is drawn from the logits of the last position (a chunk in the middle of a prompt has none)."""
    sampling: Sampling


class Step(msgspec.Struct, frozen=True):
    """One pass of the model over some tokens of some sequences: decodes first, then prefill chunks."""

    step_id: int
    """Counts up from 1."""
    sequences: tuple[ScheduledSequence, ...]
    num_tokens: int
    num_padding: int = 0
    """Rows that are computed for nothing, like its first sequence's: a static batch keeps its size until its last sequence
    ends. With any, the first sequence is a decode."""

    @property
    def num_sampled(self) -> int:
        return sum(sequence.is_sampled for sequence in self.sequences)


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    role: str
    content: str
