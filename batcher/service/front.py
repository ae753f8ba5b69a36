"""The front door: the stages that every request passes, whatever its route, its grammar and the mode.

    headers   door          whose key, what length; refused before the body where that can be known (limits, load)
    body      dialect       what is asked
              idempotency   asked before?
              safety        may it come in?
              limits        is there room in the key's minute?           ─┐
              engine        admission, then the answer                    │ account.py: whatever the way out, what was
              safety        may it go out?                                │ reserved is settled or given back, once
              usage         written down before the last byte leaves     ─┘
              passage       one log line, the metrics, the span

One object has them all; a `Passage` takes one HTTP call through them and an `Account` keeps one answer's books.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from batcher.core.admission.reservation import Standing
from batcher.errors import Expired, Overloaded, RateLimited, SafetyRefused, ServerFault, ServiceError, ShuttingDown
from batcher.service.auth import Caller
from batcher.service.door import Door
from batcher.service.front_meters import FrontMeters
from batcher.service.generation import Timing
from batcher.service.idempotency import REPLAYED, Idempotency
from batcher.service.limiter import Limiter, LimitReached
from batcher.service.records import INVALID, Refused, RequestLine, what_refused
from batcher.service.request_log import RequestLog
from batcher.service.safety.stage import SafetyStage
from batcher.service.stores.usage_log import UsageLog
from batcher.service.tracing import NO_PHASES, Phases, TraceContext, Tracer
from batcher.service.wire.replies import Reply
from batcher.types import Outcome

LEFT = 499
"""The status of who left before a reply, in logs and metrics only; web servers' common word for it."""

PASSAGE = "batcher.passage"
"""Where in an ASGI scope an endpoint finds the Passage of a call that came by the short way and goes on by this one."""

NOBODY = Caller("", "")
"""Who calls, before anybody knows."""


class Front:
    """The stages of one service. Optional ones are None where they are not configured."""

    def __init__(
        self,
        *,
        door: Door,
        limiter: Limiter,
        safety: SafetyStage | None,
        idempotency: Idempotency,
        usage: UsageLog | None,
        meters: FrontMeters,
        request_log: RequestLog | None,
        tracer: Tracer,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.door = door
        self.limiter = limiter
        self.safety = safety
        self.idempotency = idempotency
        self.usage = usage
        self.meters = meters
        self.tracer = tracer
        self.clock = clock
        self.wall_clock = wall_clock
        self._request_log = request_log
        self._num_answering = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._is_abandoned = False

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While a task has to do with a call, whose text is looked through or whose answer is sent."""
        self._num_answering += 1
        self._is_idle.clear()
        try:
            yield
        finally:
            self._num_answering -= 1
            if not self._num_answering:
                self._is_idle.set()

    async def wait_idle(self) -> None:
        """Returns when no task has to do with any call, or nobody waits for that any longer."""
        if not self._is_abandoned:
            await self._is_idle.wait()

    def abandon(self) -> None:
        """What is still under way is not waited for."""
        self._is_abandoned = True
        self._is_idle.set()

    def open(self, route: str, headers: Mapping[bytes, bytes], own_id: str | None) -> "Passage":
        """A call of this route has come."""
        return Passage(self, route, self.tracer.start(headers), self.door.next_id(), own_id)

    def observe(self, line: RequestLine, passage: "Passage") -> None:
        self.meters.observe(line)
        if self._request_log is not None:
            self._request_log.write(line)
        if passage.trace is not None:
            self.tracer.end(passage.trace, line, passage.phases())


class Passage:
    """One HTTP call, from its headers to its reply. It is ended once, by `end`, however it ends."""

    __slots__ = (
        "arrived_at",
        "caller",
        "first_at",
        "front",
        "id",
        "is_over",
        "is_replayed",
        "is_streamed",
        "model",
        "num_input",
        "num_output",
        "own_id",
        "route",
        "shown_id",
        "standing",
        "timing",
        "trace",
    )

    def __init__(self, front: Front, route: str, trace: TraceContext | None, id_: str, own_id: str | None) -> None:
        self.front = front
        self.route = route
        self.trace = trace
        self.id = id_
        self.own_id = own_id
        """The id that the caller chose, if it is one that may be repeated."""
        self.shown_id = own_id or id_
        """What the caller is told as x-request-id."""
        self.arrived_at = front.clock()
        self.first_at: float | None = None
        """When the first text of the answer was there."""
        self.timing: Timing | None = None
        """Of whatever made the answer for this call, once that has told."""
        self.caller = NOBODY
        self.model = ""
        self.standing: Standing | None = None
        """Of its key's limits, once they were asked."""
        self.is_streamed = False
        self.num_input = 0
        self.num_output = 0
        self.is_over = False
        self.is_replayed = False
        """Whether it gets an answer that was kept."""

    def enter(self, headers: Mapping[bytes, bytes]) -> ServiceError | None:
        """Learns whose call it is, before its body is read. Returns the refusal of who may not come in now; raises the
        ServiceError for who may not at all."""
        self.caller = self.front.door.authenticate(headers)
        return self.front.door.judge_early(self.caller, headers)

    def note_first(self) -> None:
        if self.first_at is None:
            self.first_at = self.front.clock()

    def phases(self) -> Phases:
        """For the spans."""
        timing = self.timing
        return NO_PHASES if timing is None else Phases(timing.started_at - self.arrived_at, timing.run_s)

    def refuse(self, error: ServiceError) -> None:
        """Ends with an error. Its traceback goes: that knows the frames that it came through, and these know it, prompt and
        all."""
        error.__traceback__ = None
        if isinstance(error, LimitReached):
            self.standing = error.standing
        if isinstance(error, RateLimited | Overloaded):
            self.front.door.note_busy()
        refused = Refused.SAFETY if isinstance(error, SafetyRefused) else error.refused
        self.end(error.status, outcome_of(error), error.type, refused=refused)

    def leave(self) -> None:
        """Ends as the client has left, unless it has ended."""
        if not self.is_over:
            self.end(LEFT, Outcome.CANCELLED)

    def end_with(self, reply: Reply) -> None:
        """Ends with an answer."""
        self.is_replayed = REPLAYED in reply.headers
        self.end(reply.status, Outcome.OK)

    def end(self, status: int, outcome: str, error: str = "", *, refused: str = "") -> None:
        assert not self.is_over
        self.is_over = True
        front, caller, timing = self.front, self.caller, self.timing
        if error and not refused:
            refused = what_refused(status, outcome)
        # In the order of its fields: by their names it takes seven times as long, half a microsecond of each request.
        line = RequestLine(
            _micros(front.wall_clock()),
            self.id,
            self.route,
            status,
            outcome,
            _micros(front.clock() - self.arrived_at),
            caller.key_id,
            caller.tenant,
            caller.tier,
            self.model,
            error,
            refused,
            self.is_replayed,
            self.is_streamed,
            self.num_input,
            self.num_output,
            None if timing is None else _micros(timing.started_at - timing.accepted_at),
            None if self.first_at is None else _micros(self.first_at - self.arrived_at),
            "" if self.trace is None else self.trace.trace_id,
            self.own_id or "",
        )
        front.observe(line, self)


def _micros(seconds: float) -> float:
    """To a microsecond. `round` is exact about it, and takes three times as long."""
    return int(seconds * 1e6 + 0.5) / 1e6


def outcome_of(error: ServiceError) -> str:
    """How a request that is told this has ended (DESIGN D7)."""
    if isinstance(error, RateLimited):
        return Outcome.REJECTED_RATE
    if isinstance(error, ShuttingDown):
        return Outcome.REJECTED_SHUTDOWN
    if isinstance(error, Overloaded):
        return Outcome.REJECTED_CAPACITY
    if isinstance(error, Expired):
        return Outcome.EXPIRED
    return Outcome.FAILED if isinstance(error, ServerFault) else INVALID
