"""What happened to every request of a run, in columns.

Everything that is reported later (percentiles, pictures, recovery times) is computed from these raw rows, so that no
figure is an average of averages and none is rounded into a bucket. Columns of machine numbers are used since a row as an
object costs ten times the memory and, at 10,000/s, a noticeable part of the generator's core.
"""

from array import array
from enum import IntEnum

import msgspec

from batcher.sim.workload import Sender
from loadtest.tokens import Tokens


class Ending(IntEnum):
    """How a request ended, as the caller sees it. The lower-case names are the report's `outcomes`."""

    UNSENT = 0
    """Its turn never came: the run was interrupted. Not an outcome."""
    DROPPED = 1
    """The generator could not send it: no connection was free, or it was too late. Not an outcome: the run is INVALID."""
    UNFINISHED = 2
    """Sent, and no answer when an interrupted run ended."""
    OK = 3
    """A 2xx answer that belongs to its question."""
    MISMATCHED = 4
    """A 2xx answer that does not belong to its question, or that cannot be read."""
    REJECTED_CAPACITY = 5
    """529, or 503: the service is overloaded."""
    REJECTED_RATE = 6
    """429: over the key's own limit."""
    EXPIRED = 7
    """504: the service gave up on it."""
    CLIENT_ERROR = 8
    """Any other 4xx or 3xx: the request itself was not accepted."""
    FAILED = 9
    """Any other 5xx."""
    TIMEOUT = 10
    """No answer within the generator's own bound."""
    TRANSPORT = 11
    """The connection could not be made, died, or carried something that is not HTTP. Never sent again."""
    POISON_FAILED = 12
    """A poison input got its 500, as it must."""
    POISON_ANSWERED = 13
    """A poison input got an answer, which is wrong."""
    STREAM_ERROR = 14
    """An error event came in the stream: the answer failed, though its status is 200."""
    STREAM_CUT = 15
    """The stream, or its connection, ended before the event that says that the answer is whole."""


REJECTIONS = frozenset({Ending.REJECTED_CAPACITY, Ending.REJECTED_RATE})
"""Refused: the service is busy, and said so. Nothing else is called that."""
SERVER_ERRORS = frozenset({Ending.EXPIRED, Ending.CLIENT_ERROR, Ending.FAILED, Ending.STREAM_ERROR})
"""The server itself said that something is wrong, and perhaps what."""
NOT_OUTCOMES = frozenset({Ending.UNSENT, Ending.DROPPED})
NOT_ERRORS = NOT_OUTCOMES | REJECTIONS | {Ending.OK, Ending.POISON_FAILED, Ending.UNFINISHED}
"""All other endings are errors: something that a caller would call broken, not busy."""


class Samples(msgspec.Struct, gc=False):
    """One row per planned request, in the order in which they became due. Instants are seconds from the start of the run.

    The client of the run writes into the columns, each row once; after the run they are only read. `sent_at` and
    `ended_at` mean something only where `ending` says that the request was sent, and ended.
    """

    senders: tuple[Sender, ...]
    planned_at: "array[float]"
    sender: "array[int]"
    """Index into `senders`."""
    is_poison: bytearray
    sent_at: "array[float]"
    ended_at: "array[float]"
    ending: bytearray
    status: "array[int]"
    """The HTTP status, 0 where there was none."""
    num_unasked: int = 0
    """Answers that arrived on a connection where nothing was asked."""
    num_repeated: int = 0
    """Answers whose id an earlier answer had already carried."""
    tokens: Tokens | None = None
    """Of generated text; None where the endpoint generates none."""
    first_error: str = ""
    """Status and text of the first of `SERVER_ERRORS`. The report keeps it: it is not saved with the rows."""

    def __len__(self) -> int:
        return len(self.planned_at)

    def add(self, planned_at: float, sender: int, *, conversation: int = 0, turn: int = 0) -> int:
        """One more request that is planned and not yet sent; its row."""
        self.planned_at.append(planned_at)
        self.sender.append(sender)
        self.is_poison.append(0)
        self.sent_at.append(0.0)
        self.ended_at.append(0.0)
        self.ending.append(Ending.UNSENT)
        self.status.append(0)
        if self.tokens is not None:
            self.tokens.add(conversation, turn)
        return len(self.planned_at) - 1


def blank_samples(
    senders: tuple[Sender, ...], planned_at: "array[float]", sender: "array[int]", is_poison: bytearray
) -> Samples:
    """Samples of requests that are planned and not yet sent."""
    num = len(planned_at)
    return Samples(
        senders=senders,
        planned_at=planned_at,
        sender=sender,
        is_poison=is_poison,
        sent_at=array("d", bytes(8 * num)),
        ended_at=array("d", bytes(8 * num)),
        ending=bytearray(num),
        status=array("H", bytes(2 * num)),
    )
