"""An engine's own thread: inbox -> submit and cancel -> step -> events out.

A step computes for milliseconds to seconds, and on an event loop that would be silence for everybody. A thread was preferred to
a process: prompts and tokens need no pipe, and what computes (torch, a device) lets go of the interpreter meanwhile.

What goes in is a message in a deque; what comes out is one call on the event loop for each step, with the events of all of its
sequences: a call for each token would cost more than the token. A thread cannot be killed: if a step never returns, this one
stays until the process ends. Its owner sees that in `busy_since` and answers the callers (`batcher.service.replica`).
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Protocol, TypeAlias

import msgspec

from batcher.core.replica.statistics import ReplicaStatistics
from batcher.errors import ConfigError
from batcher.service import log
from batcher.service.engine import Engine
from batcher.service.generation import Events, GenerationRequest

CHECK_S = 1.0
"""How often an idle engine checks its laws: counts only, well under a millisecond."""
PUBLISH_S = 0.02
"""How old the published statistics of a busy engine may be."""
MAX_REST_S = 60.0
"""An idle engine looks around this often, however far its next deadline is: a wait for years overflows the system's clock."""
START_BACKOFF_S = 0.1
MAX_START_BACKOFF_S = 30.0
"""The rest before the backend is started again: doubled each time until a step succeeds."""


class Submit(msgspec.Struct, frozen=True, gc=False):
    sequence_id: int
    request: GenerationRequest
    arrived_at: float


class Cancel(msgspec.Struct, frozen=True, gc=False):
    sequence_id: int


class Drain(msgspec.Struct, frozen=True, gc=False):
    """Nobody new comes: see `Engine.drain`."""


Message: TypeAlias = Submit | Cancel | Drain


class Listener(Protocol):
    """Who is told, on the event loop."""

    def deliver(self, events: Events) -> None: ...
    def engine_ready(self) -> None: ...
    def engine_lost(self) -> None:
        """All that it had was ended before; what is sent until the next `engine_ready` is refused, some of it late."""

    def engine_unsound(self) -> None:
        """A law is broken: what runs may end, and nothing new should be given to it."""

    def engine_ended(self, error: BaseException | None) -> None:
        """It is over: on request, or by an error: ConfigError if it cannot ever start, else a bug."""


class Unread:
    """Submits of one tier that are in the inbox. Whoever sends adds to what came, and the thread to what was taken."""

    __slots__ = ("_num_sent", "_num_taken", "_num_tokens_sent", "_num_tokens_taken")

    def __init__(self) -> None:
        self._num_sent = self._num_tokens_sent = self._num_taken = self._num_tokens_taken = 0

    @property
    def num(self) -> int:
        return self._num_sent - self._num_taken

    @property
    def num_tokens(self) -> int:
        """Their prompts'."""
        return self._num_tokens_sent - self._num_tokens_taken

    def note_sent(self, request: GenerationRequest) -> None:
        self._num_sent += 1
        self._num_tokens_sent += len(request.prompt)

    def note_taken(self, request: GenerationRequest) -> None:
        self._num_taken += 1
        self._num_tokens_taken += len(request.prompt)


class EngineThread:
    """`_inbox`: anybody appends and then sets `_has_mail`; the thread clears that and then pops, so that it sleeps through no
    message. What is public and changes is written by the thread and read by anybody.
    """

    def __init__(self, engine: Engine, listener: Listener, *, start_backoff_s: float = START_BACKOFF_S) -> None:
        self._engine = engine
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Message] = deque()
        self._has_mail = threading.Event()
        self._is_stopping = False
        self._is_over = False
        self._thread = threading.Thread(target=self._main, name="engine", daemon=True)
        self._start_backoff_s = start_backoff_s
        self._is_first_start = True
        self._rest_s = start_backoff_s
        """Before the next start of the backend, unless it is the first."""
        self._check_at = -inf
        self._publish_at = -inf
        self.statistics: ReplicaStatistics = engine.statistics()
        """A recent snapshot."""
        self.busy_since: float | None = None
        """When the pass in progress began, on the engine's clock; None while it rests or starts its backend."""
        self.unread = {tier: Unread() for tier in engine.config.tiers}
        """What it has not taken from the inbox yet, by tier, the highest first."""
        self.num_failed_checks = 0

    def start(self) -> None:
        self._thread.start()

    def send(self, message: Message) -> None:
        """Never blocks. One thread sends. Nobody reads it once the thread is over."""
        if not self._is_over:
            if isinstance(message, Submit):
                self.unread[message.request.tier].note_sent(message.request)
            self._inbox.append(message)
            self._has_mail.set()

    def is_inbox_full(self, tier: str, *, num_tokens: int) -> bool:
        """Whether an engine that stands still has left as much unread as may wait, of this tier and higher ones.

        What waits in the scheduler does not count: it alone knows who gives way to whom there, and how long that takes. Nor do
        lower tiers, whose flood must not keep a higher one out.
        """
        config = self._engine.config
        num = 1
        for name, unread in self.unread.items():
            num += unread.num
            num_tokens += unread.num_tokens
            if name == tier:
                break
        return num > config.max_waiting or num_tokens > config.max_waiting_tokens

    def stop(self) -> None:
        """Asks it to end after the pass in progress; `engine_ended` follows."""
        self._is_stopping = True
        self._has_mail.set()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread is gone."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    # The thread.

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            while not self._is_stopping:
                if self._engine.is_up:
                    self._pass()
                else:
                    self._start_backend()
        except BaseException as raised:
            error = raised
            if not isinstance(raised, ConfigError):
                log.error("engine_failed", exc_info=raised)
        self.busy_since = None
        self._is_over = True
        self._inbox.clear()
        try:
            self._engine.close()
            self._publish(is_due=True)
        finally:
            self._post(lambda: self._listener.engine_ended(error))

    def _pass(self) -> None:
        """One round: what came in, a step, what goes out."""
        engine = self._engine
        self.busy_since = engine.clock()
        self._deliver(self._take() + engine.tick())  # Who is refused or too late need not wait for a step.
        num_collected = engine.num_collected
        events = engine.step()
        if engine.num_collected > num_collected:
            self._rest_s = self._start_backoff_s
        wait_s = engine.wait_s()
        self._publish(is_due=wait_s != 0)
        self._deliver(events)
        if not engine.is_up:
            self._post(self._listener.engine_lost)
        elif wait_s != 0:
            self._check()
            self.busy_since = None
            self._has_mail.wait(None if wait_s is None else min(wait_s, MAX_REST_S))

    def _take(self) -> Events:
        """Gives the engine what is in the inbox now."""
        self._has_mail.clear()
        events: Events = []
        engine, inbox = self._engine, self._inbox
        for _ in range(len(inbox)):
            message = inbox.popleft()
            now = engine.clock()
            if isinstance(message, Submit):
                events += engine.submit(message.sequence_id, message.request, now=now, arrived_at=message.arrived_at)
                self.unread[message.request.tier].note_taken(message.request)
            elif isinstance(message, Cancel):
                events += engine.cancel(message.sequence_id, now=now)
            else:
                engine.drain(now=now)
        return events

    def _start_backend(self) -> None:
        """Tries once, after a rest unless it is the first time. Raises ConfigError if it never can start."""
        if not self._is_first_start:
            self._rest(self._rest_s)
            self._rest_s = min(MAX_START_BACKOFF_S, 2 * self._rest_s)
            if self._is_stopping:
                return
        self._is_first_start = False
        try:
            self._engine.load()
        except BaseException as error:
            if isinstance(error, ConfigError) and not self._engine.has_been_up:
                raise
            log.error("backend_not_started", exc_info=error, rest_s=self._rest_s)
        else:
            log.event("backend_ready", model=self._engine.model.info.id)
            self._post(self._listener.engine_ready)

    def _rest(self, rest_s: float) -> None:
        """Sleeps without a backend, and refuses what comes meanwhile."""
        self.busy_since = None
        until = self._engine.clock() + rest_s
        while not self._is_stopping and (wait_s := until - self._engine.clock()) > 0:
            self._deliver(self._take())
            self._has_mail.wait(wait_s)

    def _check(self) -> None:
        now = self._engine.clock()
        if now < self._check_at or self._engine.num_live:
            return
        self._check_at = now + CHECK_S
        try:
            self._engine.check()
        except AssertionError as error:
            self.num_failed_checks += 1
            log.error("engine_check_failed", exc_info=error)
            self._post(self._listener.engine_unsound)

    def _publish(self, *, is_due: bool) -> None:
        now = self._engine.clock()
        if is_due or now >= self._publish_at:
            self._publish_at = now + PUBLISH_S
            self.statistics = self._engine.statistics()

    def _deliver(self, events: Events) -> None:
        if events:
            self._post(lambda: self._listener.deliver(events))

    def _post(self, call: Callable[[], None]) -> None:
        # If the loop is closed this thread was given up, and nobody listens any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)
