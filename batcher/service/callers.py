"""Who waits for a replica's answers: the books of the side that never computes.

They are what makes every request end exactly once, whatever the engine does: an engine that fails, hangs or is restarted may
say nothing more, and then its callers are answered from here.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias

from batcher.errors import ServiceError
from batcher.service import log
from batcher.service.generation import NO_USAGE, Cancelled, Delta, Event, Events, Failed, Finished, GenerationRequest
from batcher.types import Outcome, Usage

OnEvent: TypeAlias = Callable[[Event], None]
OnUsage: TypeAlias = Callable[[Usage], None]


class _Caller:
    """Who waits for an answer, and how much of it was told."""

    __slots__ = ("deadline_at", "num_prompt_tokens", "num_tokens", "on_event", "tier")

    def __init__(self, request: GenerationRequest, on_event: OnEvent) -> None:
        # Not the request itself: its prompt is the engine's from now on.
        self.tier = request.tier
        self.deadline_at = request.deadline_at
        self.num_prompt_tokens = len(request.prompt)
        self.on_event = on_event
        self.num_tokens = 0

    def usage(self) -> Usage:
        """By what was delivered: for when the engine cannot be asked."""
        return Usage(self.num_prompt_tokens, self.num_tokens) if self.num_tokens else NO_USAGE


class Callers:
    """Belongs to one event loop. Callbacks may call back: each method leaves the books right before it calls one.

    `_waiting` has every request whose caller waits. `_leaving` has those that ended here before the engine said so: each waits
    for the engine's own end, which tells the usage and that nothing is held for it any more. `withdraw` asks the engine for it.
    `on_end` is told who waits no more, and how long its answer was if it is whole.
    """

    def __init__(
        self, tiers: Iterable[str], withdraw: Callable[[int], None], on_end: Callable[[int, int | None], None] | None = None
    ) -> None:
        self.outcomes = {tier: dict.fromkeys(Outcome, 0) for tier in tiers}
        """By tier; each request is counted once, when its caller is told or leaves."""
        self._withdraw = withdraw
        self._on_end = on_end
        self._waiting: dict[int, _Caller] = {}
        self._leaving: dict[int, tuple[_Caller, OnUsage | None]] = {}

    def __len__(self) -> int:
        return len(self._waiting) + len(self._leaving)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, sequence_id: int, request: GenerationRequest, on_event: OnEvent) -> None:
        self._waiting[sequence_id] = _Caller(request, on_event)

    def cancel(self, sequence_id: int, on_usage: OnUsage | None) -> None:
        """The caller has left and is told nothing more; nothing happens if it is not waiting."""
        caller = self._waiting.pop(sequence_id, None)
        if caller is not None:
            self._count(caller.tier, Outcome.CANCELLED)
            self._leave(sequence_id, caller, on_usage)

    def refuse(self, tier: str, refusal: Failed, on_event: OnEvent) -> None:
        """Tells somebody who was never added."""
        self._count(tier, refusal.outcome)
        _tell(on_event, refusal)

    def deliver(self, events: Events) -> None:
        """What the engine says, to whom it concerns."""
        waiting = self._waiting
        for sequence_id, event in events:
            caller = waiting.get(sequence_id)
            if isinstance(event, Delta):
                if caller is None:
                    continue  # It left when this was under way.
                caller.num_tokens += event.num_tokens
                if not _tell(caller.on_event, event):
                    self.cancel(sequence_id, None)
            elif caller is None:
                _, on_usage = self._leaving.pop(sequence_id)
                _tell(on_usage, event.usage)
            else:
                assert not isinstance(event, Cancelled)
                del waiting[sequence_id]
                self._note_end(sequence_id, event.usage.output_tokens if isinstance(event, Finished) else None)
                self._count(caller.tier, event.outcome if isinstance(event, Failed) else Outcome.OK)
                _tell(caller.on_event, event)

    def end_all(self, outcome: Outcome, error: ServiceError) -> None:
        """Answers everybody who waits now, whatever the engine does, and takes their sequences out of it."""
        for sequence_id in list(self._waiting):
            self.end(sequence_id, outcome, error)

    def end(self, sequence_id: int, outcome: Outcome, error: ServiceError) -> None:
        caller = self._waiting.pop(sequence_id, None)
        if caller is not None:
            self._count(caller.tier, outcome)
            self._leave(sequence_id, caller, None)
            _tell(caller.on_event, Failed(outcome, error, caller.usage()))

    def settle(self) -> None:
        """The engine says nothing more: those that left are charged what they were sent."""
        while self._leaving:
            _, (caller, on_usage) = self._leaving.popitem()
            _tell(on_usage, caller.usage())

    def overdue(self, now: float) -> list[int]:
        """Those that wait for their first token and whose deadline has passed."""
        return [id_ for id_, caller in self._waiting.items() if caller.deadline_at <= now and not caller.num_tokens]

    def _leave(self, sequence_id: int, caller: _Caller, on_usage: OnUsage | None) -> None:
        self._leaving[sequence_id] = (caller, on_usage)
        self._note_end(sequence_id, None)
        self._withdraw(sequence_id)

    def _note_end(self, sequence_id: int, answer_len: int | None) -> None:
        if self._on_end is not None:
            self._on_end(sequence_id, answer_len)

    def _count(self, tier: str, outcome: Outcome) -> None:
        self.outcomes[tier][outcome] += 1


def _tell(callback: Callable[[Event], None] | Callable[[Usage], None] | None, what: Event | Usage) -> bool:
    """Whether it took it: one caller's connection must not cost the others of its step their text."""
    try:
        if callback is not None:
            callback(what)  # type: ignore[arg-type]
    except Exception as error:
        log.error("callback_failed", exc_info=error)
        return False
    return True
