"""Batch mode's look at who waits in vain (`core.admission.late`): by a timer, for where nothing leaves nothing else happens."""

import asyncio
from collections.abc import Callable, Mapping

from batcher.core.admission.gate import Gate
from batcher.core.admission.late import MAX_LATE, no_place
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.dispatch.tiers import MAX_AGE_S
from batcher.core.effects import Answer, Refuse
from batcher.types import Outcome, Request

WATCH_S = 0.5
"""How often: a quarter of what is waited for at least."""

MIN_LATE_S = 2.0 * MAX_AGE_S
"""The least that is waited for, whatever the budget: the starving have a slot of their own, and it must come to them first."""


class LateWatch:
    """Belongs to the driver. `waiters` has its live requests in order of arrival, and changes under the watch."""

    def __init__(
        self,
        waiters: Mapping[int, tuple[Request, object]],
        dispatcher: Dispatcher,
        gate: Gate,
        *,
        read_clock: Callable[[], float],
        end_all: Callable[[list[Answer | Refuse], float], None],
    ) -> None:
        self._waiters = waiters
        self._dispatcher = dispatcher
        self._gate = gate
        self._read_clock = read_clock
        self._end_all = end_all
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(WATCH_S, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """O(waiting requests that are older than MIN_LATE_S)."""
        now = self._read_clock()
        dispatcher, gate = self._dispatcher, self._gate
        patience_s = {tier: max(MAX_LATE * budget_s, MIN_LATE_S) for tier, budget_s in gate.lower_budgets_s.items()}
        found = []
        for request, _ in self._waiters.values():
            waited_s = now - request.arrived_at
            if waited_s < MIN_LATE_S:
                break  # Those after it came later.
            if waited_s >= patience_s.get(request.tier, waited_s + 1.0) and not dispatcher.has_left(request.id):
                found.append(request)
        refusals: list[Answer | Refuse] = []
        for request in found:
            wait_s = gate.estimate_wait_s(
                request.tier,
                work_ahead=dispatcher.num_ahead_of(request.tier, request.tenant),
                capacity_rate=dispatcher.capacity_rate,
                now=now,
            )
            dispatcher.cancel(request.id)
            refusals.append(Refuse(request, Outcome.REJECTED_CAPACITY, no_place(now - request.arrived_at, wait_s)))
        self.start()
        if refusals:
            self._end_all(refusals, 0.0)
