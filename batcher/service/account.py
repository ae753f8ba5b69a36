"""The books of one answer: what is reserved for it, and what it is billed.

    reserve ─admitted─> answered   settled by what was computed; recorded as delivered
                     ─> stopped    cancelled or failed after work was done: the same, with what had been delivered
                     ─> dropped    nothing was done: all is given back
    reserve ─refused──> (nothing)

An account that was admitted has exactly one of these ends. One call has one account, except that callers with the same
Idempotency-Key share one: one run, one bill.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from batcher.errors import ServiceError
from batcher.service.front import Front, Passage
from batcher.service.limiter import Admitted, Judgement
from batcher.types import Outcome, Usage
from batcher.usage.record import UsageRecord

OnAdmitted: TypeAlias = Callable[[ServiceError | None], None]


class Account:
    """`_admitted` is what was reserved, from the judgement to the end."""

    __slots__ = ("_admitted", "_front", "_idempotency", "_is_abandoned", "_passage")

    def __init__(self, front: Front, passage: Passage, *, idempotency: str | None = None) -> None:
        self._front = front
        self._passage = passage
        self._idempotency = idempotency
        self._admitted: Admitted | None = None
        self._is_abandoned = False

    def reserve(self, num_input: int, max_output: int, on_admitted: OnAdmitted) -> None:
        """`on_admitted` is called once, perhaps at once, with None or with the error of the refusal; never, if the account was
        abandoned first. Raises InvalidRequest for what no minute has room for."""

        passage = self._passage

        def on_judgement(judgement: Judgement) -> None:
            passage.standing = judgement.standing
            if not isinstance(judgement, Admitted):
                if not self._is_abandoned:
                    on_admitted(judgement)
            elif self._is_abandoned:
                self._front.limiter.give_back(judgement)
            else:
                self._admitted = judgement
                passage.num_input = num_input
                on_admitted(None)

        self._front.limiter.reserve(passage.caller, passage.model, num_input, max_output, on_judgement)

    async def reserved(self, num_input: int, max_output: int) -> None:
        """The same, awaited. Raises ServiceError when refused; cancelled, it leaves nothing reserved."""
        admitted: asyncio.Future[ServiceError | None] = asyncio.get_running_loop().create_future()

        def on_admitted(error: ServiceError | None) -> None:
            if not admitted.done():  # A verdict may come after the cancellation and before whoever waits has heard of it.
                admitted.set_result(error)

        self.reserve(num_input, max_output, on_admitted)
        try:
            error = await admitted
        except asyncio.CancelledError:
            self.drop()
            raise
        if error is not None:
            raise error

    @property
    def is_open(self) -> bool:
        return self._admitted is not None

    def answered(self, usage: Usage, *, num_computed: int | None = None, num_charged: int | None = None) -> None:
        """The answer is over and about to be sent. `usage` is what is delivered, and billed; `num_computed` what was computed
        of output, if that is another count. It is charged to the limit, or `num_charged` in its place.

        Raises Overloaded if it must not be sent, as it cannot be recorded; then the account is closed as if it had never been.
        """
        admitted = self._close()
        num_computed = usage.output_tokens if num_computed is None else num_computed
        try:
            self._record(Outcome.OK, usage, num_computed)
        except ServiceError:
            self._give_back(admitted)
            raise
        self._front.limiter.settle(admitted, num_computed if num_charged is None else num_charged)

    def stopped(self, outcome: Outcome, computed: Usage, num_delivered: int) -> None:
        """It ended before it was whole. What was delivered is what is billed (SPEC S7.4), and what was computed is what the
        limit is charged: leaving early must not make work free."""
        admitted = self._close()
        num_computed = max(computed.output_tokens, num_delivered)
        if computed.input_tokens == num_computed == 0:
            self._give_back(admitted)
            return
        self._front.limiter.settle(admitted, num_computed)
        if not num_computed:
            self._passage.num_input = 0  # Charged to the limit, and not billed.
            return
        # The log counts what it cannot write and says so; there is no answer left to hold back.
        with suppress(ServiceError):
            self._record(outcome, Usage(computed.input_tokens, num_delivered), num_computed)

    def drop(self) -> None:
        """Nothing was done. Nothing happens if it has ended or was never admitted; a verdict still to come is undone."""
        self._is_abandoned = True
        admitted, self._admitted = self._admitted, None
        if admitted is not None:
            self._give_back(admitted)

    def _give_back(self, admitted: Admitted) -> None:
        self._passage.num_input = self._passage.num_output = 0  # Nothing of it is billed.
        self._front.limiter.give_back(admitted)

    def _close(self) -> Admitted:
        admitted, self._admitted = self._admitted, None
        assert admitted is not None
        self._is_abandoned = True
        return admitted

    def _record(self, outcome: Outcome, usage: Usage, num_computed: int) -> None:
        log = self._front.usage
        if log is None:
            return
        passage, caller = self._passage, self._passage.caller
        log.append(
            # In the order of its fields, as it is quicker: see Passage.end.
            UsageRecord(
                passage.id,
                caller.key_id,
                caller.tenant,
                caller.tier,
                passage.model,
                usage.input_tokens,
                usage.output_tokens,
                self._front.wall_clock(),
                outcome,
                None if num_computed == usage.output_tokens else num_computed,
                self._idempotency,
            )
        )
