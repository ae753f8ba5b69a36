"""Decides when the next request goes out: by a schedule, after the answer before it, or as soon as a place is free.

An open loop sends by a schedule that was drawn before the run, whatever the answers do: its latency is what callers feel.
A conversation's later turns cannot be on it, since they carry the answers before them: each becomes due when the answer
before it has ended and the think time has passed, and its latency counts from there. The loop stays open in conversations:
they begin on schedule, however slow the others are. A closed loop has so many users, each of whom asks the next when the
last answer has ended. A slow server is then asked less, so its latency leaves out whoever would have waited (coordinated
omission): it measures throughput at a stated concurrency, and its latency is that of this many users, nobody else's.

A conversation ends with the first turn that gets no good answer, and no turn is asked that becomes due after the duration.
A closed loop's user whose request failed rests for a moment, or a server that is gone would be asked thousands of times in
a blink.
"""

import asyncio
import heapq
from collections.abc import Iterator

from loadtest.client import Pool
from loadtest.plan import Plan
from loadtest.samples import Ending, Samples

MAX_LATE_S = 1.0
"""A request this late is dropped: sending it would pile more load on a later second than the plan says."""

MAX_SENDS_A_TURN = 64
"""Sends in one go. Then the answers that have come are read, or a generator that lags would read them later and later."""

REST_S = 0.1
"""Between a closed loop's failed request and the same user's next."""

_TURN_S = 0.001


class Turner:
    """Sends what is due, then sets a timer for what is next. Owned by the event loop."""

    def __init__(self, pool: Pool, samples: Samples) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pool = pool
        self._samples = samples
        self._num_turned = 0
        self._timer: asyncio.Handle | None = None

    @property
    def num_turned(self) -> int:
        """Requests whose turn has come."""
        return self._num_turned

    def turn(self) -> None:
        pool, planned_at = self._pool, self._samples.planned_at
        index, last = self._num_turned, min(self._num_turned + MAX_SENDS_A_TURN, len(planned_at))
        now = pool.now()
        while index < last and planned_at[index] <= now:
            self._send(index, now)
            index += 1
        self._num_turned = index
        if index == len(planned_at):
            self.stop()
        else:
            self._set_timer(planned_at[index])

    def stop(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.done.done():
            self.done.set_result(None)

    def _send(self, row: int, now: float) -> None:
        if now - self._samples.planned_at[row] > MAX_LATE_S:
            self._pool.drop(row)
        else:
            self._pool.send(row)

    def _set_timer(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_s = due_at - self._pool.now()
        # uvloop rounds to the nearest millisecond, so half of one more means never early.
        delay_s = max(wait_s + _TURN_S / 2, _TURN_S) if wait_s > 0.0 else 0.0
        self._timer = asyncio.get_running_loop().call_later(delay_s, self.turn)


class Follower(Turner):
    """Also sends what an answer makes due: the next turn of its conversation, or a closed loop's next request.

    `due` holds what is planned and not yet sent, as a heap of (instant, row). Rows are added as they become due, so that a
    turn which is never due was never planned.
    """

    def __init__(self, pool: Pool, samples: Samples, plan: Plan, senders: Iterator[int]) -> None:
        super().__init__(pool, samples)
        self._turns = plan.messages.turns if plan.messages else 1
        self._think_time_s = plan.messages.think_time_s if plan.messages else 0.0
        self._is_closed = plan.concurrency is not None
        self._duration_s = plan.duration_s
        self._num_requests = plan.num_requests
        self._senders = senders
        self._due = [(at, row) for row, at in enumerate(samples.planned_at)]
        heapq.heapify(self._due)
        self._num_conversations = len(samples)
        for _ in range(plan.concurrency or 0):
            self._begin_conversation(0.0)
        pool.on_end = self._on_end

    def turn(self) -> None:
        now = self._pool.now()
        for _ in range(MAX_SENDS_A_TURN):
            if not self._due or self._due[0][0] > now:
                break
            self._num_turned += 1
            self._send(heapq.heappop(self._due)[1], now)
        if self._due:
            self._set_timer(self._due[0][0])
        elif not self._pool.num_pending:
            self.stop()

    def _on_end(self, row: int) -> None:
        if self.done.done():
            return
        samples, now = self._samples, self._pool.now()
        is_good = samples.ending[row] == Ending.OK
        turn = samples.tokens.turn[row] if samples.tokens is not None else 0
        if is_good and turn + 1 < self._turns:
            self._follow(row, turn + 1)
        elif self._is_closed:
            self._begin_conversation(now if is_good else now + REST_S)
        # Not at once: this may be called in the midst of a send.
        self._set_timer(self._due[0][0] if self._due else now)

    def _follow(self, row: int, turn: int) -> None:
        samples = self._samples
        assert samples.tokens is not None
        due_at = samples.ended_at[row] + self._think_time_s
        if self._may_ask(due_at):
            conversation = samples.tokens.conversation[row]
            next_row = samples.add(due_at, samples.sender[row], conversation=conversation, turn=turn)
            heapq.heappush(self._due, (due_at, next_row))

    def _begin_conversation(self, due_at: float) -> None:
        if self._may_ask(due_at):
            row = self._samples.add(due_at, next(self._senders), conversation=self._num_conversations)
            self._num_conversations += 1
            heapq.heappush(self._due, (due_at, row))

    def _may_ask(self, due_at: float) -> bool:
        return due_at < self._duration_s and (self._num_requests is None or len(self._samples) < self._num_requests)
