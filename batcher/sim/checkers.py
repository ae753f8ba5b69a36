"""The world's watcher: it enters what happens, asks every checker, and lets the dispatcher check itself.

It raises `LawBroken` at the first wrong thing, with the last events, so that a failure is read as a story and not as a number.
"""

from collections import deque
from collections.abc import Callable, Sequence

from batcher.config import DispatchConfig
from batcher.core.admission.gate import Refusal
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.effects import Effects
from batcher.sim.books import Books, LawBroken, require
from batcher.sim.laws import Checker, Order, Promptness, Retries, Room, check_refusal
from batcher.sim.world import run_batch
from batcher.types import Request

NUM_EVENTS_TOLD = 40


class Checkers:
    """The watcher: enters everything in the books and asks every checker."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        config: DispatchConfig,
        *,
        finishes_by: float,
        only_poison_raises: bool = True,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._config = config
        self._books = Books(num_workers=config.num_workers, answer_of=lambda word: run_batch([word])[0])
        self._checkers: list[Checker] = [kind(self._books, config) for kind in (Promptness, Order, Room)]
        self._checkers.append(Retries(self._books, config, only_poison_raises=only_poison_raises))
        self._events: deque[tuple[float, object]] = deque(maxlen=NUM_EVENTS_TOLD)
        self._finishes_by = finishes_by
        self._tell = tell
        self._now = 0.0

    def story(self) -> str:
        """The last events, one a line."""
        return "\n".join(_line(at, event) for at, event in self._events)

    def refused(self, request: Request, refusal: Refusal, *, now: float) -> None:
        self._note(("refused", request.id, refusal), now=now)
        check_refusal(refusal, self._books, self._config, num_parked=self._dispatcher.statistics().num_parked)

    def submitted(self, request: Request, *, now: float) -> None:
        self._note(request, now=now)
        self._books.submitted(request)

    def cancelled(self, request_id: int, was_live: bool, *, now: float) -> None:
        self._note(("cancel", request_id, was_live), now=now)
        self._books.cancelled(request_id, was_live)
        self._after(now=now)

    def drained(self, *, now: float) -> None:
        self._note(("drain",), now=now)
        self._books.drained()

    def became_ready(self, worker_id: int, incarnation: int, *, now: float) -> None:
        self._note(("ready", worker_id, incarnation), now=now)
        self._books.became_ready(worker_id, incarnation)

    def was_lost(self, worker_id: int, incarnation: int, *, now: float) -> None:
        self._note(("lost", worker_id, incarnation), now=now)
        self._books.was_lost(worker_id, incarnation)

    def completed(self, batch_id: int, attempt: int, outputs: object, *, now: float) -> None:
        self._note(("complete", batch_id, attempt), now=now)
        self._books.completed(batch_id, attempt, outputs)

    def raised(self, batch_id: int, attempt: int, *, now: float) -> None:
        self._note(("raise", batch_id, attempt), now=now)
        self._books.raised(batch_id, attempt)

    def ticked(self, *, now: float) -> None:
        self._note(("tick",), now=now)
        self._books.ticked()

    def performs(self, effects: Effects, *, now: float) -> None:
        for effect in effects:
            self._note(effect, now=now)
            for checker in self._checkers:
                checker.before(effect, now=now)
            self._books.enter(effect, now=now)
        self._books.performed(effects)
        self._after(now=now)

    def before_advance(self, to: float) -> None:
        require(to <= self._finishes_by, "everything finishes in time", to, self._finishes_by)
        for checker in self._checkers:
            checker.before_advance(to)

    def finished(self, *, probes: Sequence[int]) -> None:
        """Nothing is left to happen: all has ended, all tables are empty, every worker is back, the probes were answered."""
        books = self._books
        require(not books.live, "everything that was accepted ends", sorted(books.live))
        require(all(bench.is_free for bench in books.benches), "every worker comes back", self._dispatcher)
        statistics = self._dispatcher.statistics()
        left = (statistics.num_live, statistics.num_running, statistics.num_inflight, statistics.num_parked)
        require(left == (0, 0, 0, 0), "all tables are empty in the end", self._dispatcher)
        require(
            all(tier.num_waiting == tier.num_bytes == tier.num_tenants == 0 for tier in statistics.tiers), "queues are empty"
        )
        require(self._dispatcher.next_deadline() is None, "nothing is due when nothing is left", self._dispatcher)
        require(books.answered.issuperset(probes), "after the faults everything is answered", probes)

    def _note(self, event: object, *, now: float) -> None:
        require(now >= self._now, "time never goes back", now)
        self._now = now
        self._events.append((now, event))
        if self._tell is not None:
            self._tell(_line(now, event))

    def _after(self, *, now: float) -> None:
        for checker in self._checkers:
            checker.after_input(now=now)
        try:
            self._dispatcher.check()
        except AssertionError as error:
            raise LawBroken(f"the dispatcher's own laws hold: {error}") from error


def _line(at: float, event: object) -> str:
    return f"  {at:12.6f}  {event!r}"
