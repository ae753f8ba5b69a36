"""A sequence: one request inside a replica, from its submission to its end.

    state      | admit      | last chunk | preempt   | end
    -----------+------------+------------+-----------+---------
    WAITING    | PREFILLING |            |           | FINISHED
    PREFILLING |            | DECODING   | PREEMPTED | FINISHED
    DECODING   |            |            | PREEMPTED | FINISHED
    PREEMPTED  | PREFILLING |            |           | FINISHED
    FINISHED   |            |            |           |

Its tokens are one list, prompt first, and what is done with them are counts into it. A step takes effect in three stages, so
there are three counts: what the scheduler has sent, what the device has confirmed, and what is known as tokens. With two
steps in flight they differ:

    0 ............ num_confirmed ............ num_computed ... len(tokens) ... num_prompt + num_sampled
    |  computed, and in full blocks published |  in flight     |  to be sent   |  sampled in flight, PENDING

A state for each pair of counts was refused: the counts say it all, and the state only where the sequence is kept.
"""

from array import array
from collections.abc import Sequence as Items
from enum import Enum
from math import inf
from sys import maxsize

from batcher.types import Sampling


class SequenceState(Enum):
    WAITING = "waiting"
    """It has never run: its deadline holds."""
    PREFILLING = "prefilling"
    """It has a slot and blocks, and some of its known tokens have not been sent to be computed."""
    DECODING = "decoding"
    """All its known tokens have been sent: each step makes one more."""
    PREEMPTED = "preempted"
    """It gave slot and blocks back and waits to be computed again. It has started, so it does not expire."""
    FINISHED = "finished"
    """It has ended, in whatever way."""


TRANSITIONS: dict[SequenceState, frozenset[SequenceState]] = {
    SequenceState.WAITING: frozenset({SequenceState.PREFILLING, SequenceState.FINISHED}),
    SequenceState.PREFILLING: frozenset({SequenceState.DECODING, SequenceState.PREEMPTED, SequenceState.FINISHED}),
    SequenceState.DECODING: frozenset({SequenceState.PREEMPTED, SequenceState.FINISHED}),
    SequenceState.PREEMPTED: frozenset({SequenceState.PREFILLING, SequenceState.FINISHED}),
    SequenceState.FINISHED: frozenset(),
}

NO_SLOT = -1


class Sequence:
    """What a scheduler knows of one request. The scheduler writes; whoever submitted it may read, on the same thread.

    Raises ValueError if the prompt is empty or `max_tokens` below 1.
    """

    __slots__ = (
        "arrived_at",
        "block_table",
        "capacity",
        "deadline_at",
        "finished_at",
        "first_scheduled_at",
        "first_token_at",
        "hashes",
        "id",
        "is_reserved",
        "max_len",
        "max_tokens",
        "num_cached_tokens",
        "num_computed",
        "num_confirmed",
        "num_overtaken",
        "num_preemptions",
        "num_prompt_tokens",
        "num_published",
        "num_sampled",
        "order",
        "preempted_at",
        "publish_at",
        "salt",
        "sampling",
        "slot",
        "state",
        "stop_ids",
        "tenant",
        "tier",
        "tier_index",
        "tokens",
    )

    def __init__(
        self,
        *,
        id: int,
        tenant: str,
        tier: str,
        prompt: Items[int],
        max_tokens: int,
        sampling: Sampling,
        stop_ids: frozenset[int],
        arrived_at: float,
        deadline_at: float = inf,
        salt: bytes | None = None,
    ) -> None:
        if not prompt or max_tokens < 1:
            raise ValueError(
                f"sequence {id}: a prompt of {len(prompt)} and max_tokens of {max_tokens}; both must be at least 1"
            )
        self.id = id
        self.tenant = tenant
        self.tier = tier
        self.max_tokens = max_tokens
        self.sampling = sampling
        self.stop_ids = stop_ids
        """Empty where stop tokens are to be ignored."""
        self.arrived_at = arrived_at
        self.deadline_at = deadline_at
        """For admission alone (SPEC S5.1)."""
        self.salt = tenant.encode() if salt is None else salt
        """Whoever has the same salt shares cached prefixes; by default nobody but the tenant does."""

        self.tokens = list(prompt)
        """Prompt and answer, as far as they are known."""
        self.num_prompt_tokens = len(self.tokens)
        self.max_len = self.num_prompt_tokens + max_tokens
        self.state = SequenceState.WAITING
        self.order = 0
        """Counts up with each submission: of two sequences the newer has the higher one."""
        self.tier_index = 0

        self.slot = NO_SLOT
        self.block_table: array[int] = array("i")
        """A fresh one each time that it starts: a step in flight that holds an older one is a late step."""
        self.capacity = 0
        """Positions that the table covers."""
        self.is_reserved = False
        """It holds blocks for all that it may ever need, and is never preempted."""
        self.num_computed = 0
        """Positions that were sent to be computed, or were there already: the next one to send."""
        self.num_confirmed = 0
        """Positions whose step has been updated."""
        self.num_sampled = 0
        """Tokens of the answer that were sent to be sampled, those included that are not known yet."""
        self.hashes: list[bytes] = []
        """The chain of its full blocks, as far as it was needed."""
        self.num_published = 0
        """Leading blocks that the prefix cache has been told of, or has told of."""
        self.publish_at = maxsize
        """The next block may be published when so many positions are confirmed."""

        self.num_overtaken = 0
        """Sequences that were admitted past it since it did not fit."""
        self.num_preemptions = 0
        self.preempted_at: float | None = None
        """The last time."""
        self.num_cached_tokens = 0
        """Prompt tokens that its first start found in the prefix cache."""
        self.first_scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.finished_at: float | None = None

    @property
    def prompt(self) -> list[int]:
        return self.tokens[: self.num_prompt_tokens]

    @property
    def output(self) -> list[int]:
        return self.tokens[self.num_prompt_tokens :]

    @property
    def num_output_tokens(self) -> int:
        return len(self.tokens) - self.num_prompt_tokens

    @property
    def num_pending(self) -> int:
        """Sampled tokens that are not known yet."""
        return self.num_prompt_tokens + self.num_sampled - len(self.tokens)

    @property
    def is_running(self) -> bool:
        return self.state is SequenceState.PREFILLING or self.state is SequenceState.DECODING

    def move_to(self, state: SequenceState) -> None:
        """Asserts that the table has this transition."""
        assert state in TRANSITIONS[self.state], f"{self!r} cannot become {state.value}"
        self.state = state

    def forget_blocks(self) -> None:
        """Back to where nothing of it is computed. The tokens stay, and so do the names of their blocks."""
        self.slot = NO_SLOT
        self.block_table = array("i")
        self.capacity = self.num_computed = self.num_confirmed = self.num_published = 0
        self.publish_at = maxsize
        self.is_reserved = False

    def __repr__(self) -> str:
        counts = f"{self.num_prompt_tokens}+{self.num_output_tokens}/{self.max_tokens} tokens, {self.num_computed} computed"
        return f"<Sequence {self.id} of {self.tier}/{self.tenant} {self.state.value}: {counts}>"
