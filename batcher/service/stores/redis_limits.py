"""Rate limits that several gateways share, counted in Redis: exact in every sliding minute, over all of them (SPEC S8.3).

All that is asked for while one question is under way travels with the next one: one script, one round trip, one atomic step for
many requests, so that the cost of a request falls as load grows. A pipeline of one script a request was refused: the client
costs more than the counting. No request has a task; the one task here is the store's.

Check and charge are the script's one step (CASES B33), by the clock of Redis, so gateways need not agree on the time. Where
that clock goes back no time has passed (CASES B34); where it is set forward that cannot be told from a time without calls, and
what was counted is forgotten early: Redis belongs on a machine whose clock is slewed, not set.

What goes wrong errs on the safe side. A reserve whose reply never came may have been charged, and stays so; a correction that
could not be sent, or whose reply never came, leaves its reservation as it was. Both end by themselves within a minute.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import msgspec

from batcher.config import LimitMode, LimitsConfig, OnFailure
from batcher.core.admission.leases import LEASE_S, Leases
from batcher.core.admission.limits import Limits
from batcher.core.admission.reservation import LimitRefusal, Reservation, Standing, StoreAway, Subject
from batcher.service import log
from batcher.service.limits import OnVerdict, RedisLimitsStatistics, Verdict
from batcher.service.stores.redis_codec import (
    Answer,
    Ask,
    decode_answer,
    encode_call,
    grants,
    is_admitted,
    refusal,
    reservation,
)
from batcher.service.stores.redis_corrections import Corrections
from batcher.service.stores.redis_link import RedisAway, RedisLink, Script
from batcher.service.stores.redis_refusals import Refusals

MAX_BATCH = 128
"""Requests in one script call: about a millisecond of Redis, in which nobody else is served."""

MAX_WAITING = 8 * MAX_BATCH
"""Requests that wait for a verdict beside those under way; with more than that Redis does not keep up."""

_CORRECTION_DELAY_S = 0.02
"""Corrections wait so long for a request to travel with, and for others of the same second to be added to."""

_CLOSE_S = 1.0
"""What the last corrections may take when the gateway stops."""

_SCRIPT = Script("redis_limits.lua")


class RedisLimits:
    """A LimitStore. Lives on one event loop.

    `_waiting` holds the requests of the next calls, `_corrections` what is to be given back or charged by them. `_alone` counts
    in this process what is decided while Redis is away and the policy is open: then each gateway keeps a limit by itself, and
    its reservations have no epoch. `_delay` runs while corrections wait for a request to travel with. `_pump` is None before
    the start and from the close on.
    """

    def __init__(self, config: LimitsConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        assert config.redis_url is not None, "limits in Redis without its address"
        self._clock = clock
        self._timeout_s = config.redis_timeout_s
        self._link = RedisLink(config.redis_url, store="limits", timeout_s=config.redis_timeout_s, max_connections=2)
        is_open = config.on_redis_failure is OnFailure.OPEN
        self._alone = Limits(max_subjects=config.max_keys, now=clock()) if is_open else None
        self._leases = Leases() if config.mode is LimitMode.LEASE else None
        self._seed = uuid4().hex[:12]
        self._waiting: deque[Ask] = deque()
        self._corrections = Corrections()
        self._refusals = Refusals()
        self._has_work = asyncio.Event()
        self._delay: asyncio.TimerHandle | None = None
        self._pump: asyncio.Task[None] | None = None
        self._num_calls = self._num_asked = self._num_leased = self._num_alone = 0

    async def start(self) -> None:
        """Returns once Redis has answered, or has failed to within the time limit."""
        await self._link.start()
        self._pump = asyncio.get_running_loop().create_task(self._serve())

    async def close(self) -> None:
        """Whoever waits is told that the store is away; what is still to be given back is sent, if that is soon done."""
        pump, self._pump = self._pump, None
        self._decide_waiting_alone()
        if pump is not None:
            if self._leases is not None:
                self._corrections.add_remainders(self._leases.end_all())
            if self._delay is not None:
                self._delay.cancel()
                self._delay = None
            self._has_work.set()
            if not self._link.is_away:
                await asyncio.wait({pump}, timeout=_CLOSE_S)
            pump.cancel()
            await asyncio.wait({pump})
        await self._link.close()

    def reserve(self, subjects: tuple[Subject, ...], tokens: int, on_verdict: OnVerdict) -> None:
        """Tokens above a limit (`never_fits`) are refused as if they fitted once all of it is free: ask before."""
        limited = tuple([subject for subject in subjects if not subject.limit.is_unlimited])
        if not limited:
            on_verdict(Reservation((), tokens, 0))
            return
        now = self._clock()
        ask = Ask(limited, tokens, on_verdict, now, is_first_shown=limited[0] is subjects[0])
        if self._leases is not None:
            leased = self._leases.admit(limited, tokens, now=now)
            if leased is not None:
                self._num_leased += 1
                on_verdict(leased if ask.is_first_shown else msgspec.structs.replace(leased, standing=Standing()))
                return
        if self._link.is_away or self._pump is None or len(self._waiting) >= MAX_WAITING:
            on_verdict(self._decide_alone(ask))
            return
        if self._leases is not None:
            ask = msgspec.structs.replace(ask, slices=self._wanted(self._leases, ask))
        self._waiting.append(ask)
        self._has_work.set()

    def settle(self, reservation: Reservation, tokens: int) -> None:
        if reservation.epoch:
            if tokens != reservation.tokens:
                self._corrections.add_for(reservation, 0, tokens - reservation.tokens)
                self._send_later()
        elif reservation.subjects:
            assert self._alone is not None, "a reservation of another store"
            self._alone.settle(reservation, tokens, now=self._clock())

    def give_back(self, reservation: Reservation) -> None:
        self._refusals.forget(reservation.subjects)
        if reservation.epoch:
            self._corrections.add_for(reservation, -1, -reservation.tokens)
            self._send_later()
        elif reservation.subjects:
            assert self._alone is not None, "a reservation of another store"
            self._alone.give_back(reservation, now=self._clock())

    def peek(self, subjects: tuple[Subject, ...]) -> LimitRefusal | None:
        """What Redis said here in the last second."""
        now = self._clock()
        refused = self._refusals.peek(subjects, now=now)
        if refused is not None:
            return refused
        if self._link.is_away and self._alone is not None:
            return self._alone.peek(subjects, now=now)
        return None

    def statistics(self) -> RedisLimitsStatistics:
        return RedisLimitsStatistics(
            is_failing=self._link.is_failing,
            num_waiting=len(self._waiting),
            num_leases=0 if self._leases is None else len(self._leases),
            num_losses=self._link.num_losses,
            num_calls=self._num_calls,
            num_asked=self._num_asked,
            num_leased=self._num_leased,
            num_alone=self._num_alone,
            num_dropped=self._corrections.num_dropped,
        )

    async def _serve(self) -> None:
        while True:
            await self._has_work.wait()
            if self._link.is_away:
                self._decide_waiting_alone()
                await self._link.back.wait()
            asks = self._take_waiting()
            if asks or (self._corrections and self._delay is None):
                await self._exchange(asks)
            elif self._pump is None:
                return
            elif not self._waiting:
                self._has_work.clear()

    def _take_waiting(self) -> list[Ask]:
        """Those of the next call. Who has waited for longer than one call may take is not kept waiting by those before."""
        late_at = self._clock() - self._timeout_s
        while self._waiting and self._waiting[0].asked_at < late_at:
            ask = self._waiting.popleft()
            _tell(ask, self._decide_alone(ask))
        return [self._waiting.popleft() for _ in range(min(MAX_BATCH, len(self._waiting)))]

    async def _exchange(self, asks: list[Ask]) -> None:
        corrections = self._corrections.take()
        self._num_calls += 1
        self._num_asked += len(asks)
        asked_at = self._clock()
        try:
            reply = await self._link.run(_SCRIPT, encode_call(self._seed, corrections, asks))
            assert isinstance(reply, bytes)
            answer = decode_answer(reply)
            verdicts = [self._read(ask, each, answer, asked_at) for ask, each in zip(asks, answer.verdicts, strict=True)]
        except BaseException as error:
            self._corrections.num_dropped += len(corrections)
            for ask in asks:
                _tell(ask, self._decide_alone(ask))
            if not isinstance(error, Exception):
                raise
            if not isinstance(error, RedisAway):
                # A bug; whoever asks next must not wait for ever for a task that ended by it.
                log.error("limits_failed", exc_info=error)
        else:
            for ask, verdict in zip(asks, verdicts, strict=True):
                _tell(ask, verdict)

    def _read(self, ask: Ask, verdict: list[Any], answer: Answer, asked_at: float) -> Verdict:
        if not is_admitted(verdict):
            self._end_asking(ask)
            refused = refusal(ask, verdict, answer)
            shown = ask.subjects[0].name if ask.is_first_shown else ""
            self._refusals.remember(refused, shown=shown, now=self._clock())
            return refused
        if ask.slices:
            self._take_slices(ask, verdict, answer, asked_at)
        return reservation(ask, verdict, answer)

    def _wanted(self, leases: Leases, ask: Ask) -> tuple[tuple[int, int], ...]:
        wanted = [leases.wanted(subject, ask.tokens, now=ask.asked_at) for subject in ask.subjects]
        self._corrections.add_remainders([remainder for _, remainder in wanted if remainder is not None])
        slices = tuple([each for each, _ in wanted])
        return slices if any(map(any, slices)) else ()

    def _take_slices(self, ask: Ask, verdict: list[Any], answer: Answer, asked_at: float) -> None:
        assert self._leases is not None
        for subject, asked, (granted, counted) in zip(ask.subjects, ask.slices, grants(verdict), strict=True):
            if any(asked):
                self._leases.taken(subject, granted, at=answer.second, epoch=answer.epoch, asked_at=asked_at, counted=counted)
        asyncio.get_running_loop().call_later(LEASE_S, self._end_old_leases)

    def _end_old_leases(self) -> None:
        if self._leases is not None and self._pump is not None:
            self._corrections.add_remainders(self._leases.end_old(now=self._clock()))
            self._send_later()

    def _end_asking(self, ask: Ask) -> None:
        if self._leases is not None and ask.slices:
            for subject, asked in zip(ask.subjects, ask.slices, strict=True):
                if any(asked):
                    self._leases.not_taken(subject)

    def _decide_alone(self, ask: Ask) -> Verdict:
        self._num_alone += 1
        self._end_asking(ask)
        if self._alone is None or self._pump is None:
            return StoreAway()
        verdict = self._alone.reserve(ask.subjects, ask.tokens, now=self._clock())
        return verdict if ask.is_first_shown else msgspec.structs.replace(verdict, standing=Standing())

    def _decide_waiting_alone(self) -> None:
        while self._waiting:
            ask = self._waiting.popleft()
            _tell(ask, self._decide_alone(ask))

    def _send_later(self) -> None:
        if self._delay is None and self._pump is not None:
            self._delay = asyncio.get_running_loop().call_later(_CORRECTION_DELAY_S, self._end_delay)

    def _end_delay(self) -> None:
        self._delay = None
        self._has_work.set()


def _tell(ask: Ask, verdict: Verdict) -> None:
    try:
        ask.on_verdict(verdict)
    except Exception as error:
        # One caller's fault must not take the verdicts of all others with it.
        log.error("verdict_not_taken", exc_info=error)
