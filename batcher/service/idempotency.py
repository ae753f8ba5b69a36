"""One Idempotency-Key, one run, one bill (SPEC S4): whoever asks again is given the answer that was made, not another one.

A claim is taken in a store before any work, so two gateways that are asked the same at the same moment run it once. The work
runs in a task of its own, for whoever waits: to run it in the first caller's was refused, since all others would lose their
answer with that one's connection. When nobody is left to wait it is cancelled; nothing is computed for nobody.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from math import ceil
from typing import TypeAlias
from uuid import uuid4

import msgspec

from batcher.config import IdempotencyConfig
from batcher.errors import (
    MAX_RETRY_AFTER_S,
    IdempotencyConflict,
    IdempotencyMismatch,
    InvalidRequest,
    ServerFault,
    ServiceError,
)
from batcher.service.claims import CLAIM_S, Claimed, ClaimStore, Kept, Mismatch
from batcher.service.wire.replies import Reply

_RENEW_S = CLAIM_S / 3
"""A claim outlives two renewals that fail."""

_FIRST_POLL_S = 0.02
_LONGEST_POLL_S = 0.5
"""While another gateway answers the store is asked after the first, twice that, and so on; the last bounds what a caller may
get its answer late, against two questions a second for each that waits."""

_KEY = re.compile(rb"[ -~]{1,255}")
REPLAYED = (b"idempotent-replayed", b"true")

Work: TypeAlias = Callable[[str], Awaitable[Reply]]
"""Makes the answer to a question, of which it is told the digest: of tenant, key and all that is asked. What it bills bears
that, so that a key which comes to mean another question is another bill."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Reply)


class IdempotencyStatistics(msgspec.Struct, frozen=True):
    """All but the first count up."""

    num_running: int
    num_replayed: int
    """Callers who were given an answer that was not made for them."""
    num_conflicts: int
    num_mismatches: int
    num_unkept: int
    """Answers that were given and that the store, being away, did not keep."""


class _Attempt:
    """A request that is being answered here. `task` is None when it is over: an error refers to the frames that it came by, and
    these to the attempt; a cycle would keep the request's body until the collector comes."""

    __slots__ = ("body", "holder", "is_answered", "is_kept", "num_waiting", "scope", "task", "tenant")

    def __init__(self, tenant: str, scope: str, body: str) -> None:
        self.tenant = tenant
        self.scope = scope
        self.body = body
        self.holder = uuid4().hex
        self.num_waiting = 0
        self.is_answered = False
        """The work is done, so it is not undone when everybody leaves: whoever comes back finds its answer."""
        self.is_kept = False
        """The answer is from the store."""
        self.task: asyncio.Task[Reply] | None = None


class Idempotency:
    """For answers that are not streamed. Lives on one event loop.

    `_attempts` has one entry for each scope that somebody here waits for, so callers bound it; `_tasks` also has those that
    were given up and are ending, bounded by what the store may take for its last answer.
    """

    def __init__(self, config: IdempotencyConfig, store: ClaimStore) -> None:
        self._wait_s = config.wait_s
        self._store = store
        self._attempts: dict[str, _Attempt] = {}
        self._tasks: set[asyncio.Task[Reply]] = set()
        self._num_replayed = 0
        self._num_conflicts = 0
        self._num_mismatches = 0
        self._num_unkept = 0

    async def answer(self, tenant: str, key: bytes, body: bytes, route: str, work: Work) -> Reply:
        """The reply to this request: `work`'s, which runs once for all who ask the same, or the one kept of before.

        `key` is the Idempotency-Key; `route` names route and dialect, as both shape the answer. Of `work`'s replies those with
        status 200 are kept, whole: what tells of one call (its id, what is left of its limit) is to be written anew. The same
        request waits for `wait_s` while it is answered elsewhere or for another caller; the last one here that waits stays.
        Raises InvalidRequest, IdempotencyMismatch, IdempotencyConflict or the store's ServiceError, all before any work, and
        what `work` raises.
        """
        if not _KEY.fullmatch(key):
            raise InvalidRequest("Idempotency-Key must have 1 to 255 printable ASCII characters")
        scope, body_digest = digest(tenant, key), _digest(route.encode(), body)
        attempt = self._attempts.get(scope)
        if attempt is not None and attempt.body != body_digest:
            raise self._mismatch()
        is_first = attempt is None
        try:
            if attempt is None:
                attempt = self._start(_Attempt(tenant, scope, body_digest), work)
            return await self._wait(attempt, is_first=is_first)
        finally:
            del attempt

    def statistics(self) -> IdempotencyStatistics:
        return IdempotencyStatistics(
            num_running=len(self._tasks),
            num_replayed=self._num_replayed,
            num_conflicts=self._num_conflicts,
            num_mismatches=self._num_mismatches,
            num_unkept=self._num_unkept,
        )

    def _start(self, attempt: _Attempt, work: Work) -> _Attempt:
        task = asyncio.get_running_loop().create_task(self._run(attempt, work))
        attempt.task = task
        self._attempts[attempt.scope] = attempt
        self._tasks.add(task)

        def end(task: asyncio.Task[Reply]) -> None:
            # Here and not in the task itself, which never begins if it is cancelled at once.
            attempt.task = None
            self._tasks.discard(task)
            self._forget(attempt)
            if not task.cancelled():
                task.exception()  # Nobody may be left to look at it.

        task.add_done_callback(end)
        return attempt

    def _forget(self, attempt: _Attempt) -> None:
        if self._attempts.get(attempt.scope) is attempt:
            del self._attempts[attempt.scope]

    async def _wait(self, attempt: _Attempt, *, is_first: bool) -> Reply:
        task = attempt.task
        assert task is not None, "an attempt that is over was found"
        attempt.num_waiting += 1
        try:
            await asyncio.wait({task}, timeout=None if is_first else self._wait_s)
            if not task.done():
                if attempt.num_waiting > 1:
                    raise self._conflict()
                # The last one stays: its leaving would end the work, and it would come back for nothing.
                await asyncio.wait({task})
            if task.cancelled():
                raise ServerFault("the request was given up while it was answered")
            reply = task.result()
            if is_first and not attempt.is_kept:
                return reply
            self._num_replayed += 1
            return msgspec.structs.replace(reply, headers=[*reply.headers, REPLAYED])
        finally:
            attempt.num_waiting -= 1
            if not (attempt.num_waiting or attempt.is_answered or task.done()):
                # From now on others start anew; they find the claim until this one has given it back.
                self._forget(attempt)
                task.cancel()
            del attempt, task

    async def _run(self, attempt: _Attempt, work: Work) -> Reply:
        try:
            kept = await self._claim(attempt)
        except asyncio.CancelledError:
            # The store may have made the claim that it was being asked for.
            await self._release(attempt)
            raise
        if kept is not None:
            return kept
        try:
            reply = await self._work(attempt, work)
        except BaseException:
            await self._release(attempt)
            raise
        attempt.is_answered = True
        if reply.status == 200:
            await self._keep(attempt, reply)
        else:
            await self._release(attempt)
        return reply

    async def _claim(self, attempt: _Attempt) -> Reply | None:
        """Returns None when the claim is ours, else the answer kept."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._wait_s
        poll_s = _FIRST_POLL_S
        while True:
            match await self._store.claim(attempt.scope, attempt.body, attempt.holder):
                case Claimed():
                    return None
                case Kept(reply=encoded):
                    attempt.is_kept = True
                    return _decode(encoded)
                case Mismatch():
                    raise self._mismatch()
            left_s = until - loop.time()
            if left_s <= 0:
                raise self._conflict()
            await asyncio.sleep(min(poll_s, left_s))
            poll_s = min(2 * poll_s, _LONGEST_POLL_S)

    async def _work(self, attempt: _Attempt, work: Work) -> Reply:
        renewer = asyncio.get_running_loop().create_task(self._renew(attempt))
        try:
            return await work(_digest(attempt.scope.encode(), attempt.body.encode()))
        finally:
            renewer.cancel()

    async def _renew(self, attempt: _Attempt) -> None:
        while True:
            await asyncio.sleep(_RENEW_S)
            with suppress(ServiceError):
                await self._store.renew(attempt.scope, attempt.holder)

    async def _keep(self, attempt: _Attempt, reply: Reply) -> None:
        try:
            await self._store.keep(attempt.scope, attempt.holder, _encoder.encode(reply), tenant=attempt.tenant)
        except ServiceError:
            # The answer exists and is billed: it is given, and only asking again would run it anew.
            self._num_unkept += 1

    async def _release(self, attempt: _Attempt) -> None:
        # Without the store the claim ends by itself.
        with suppress(ServiceError):
            await self._store.release(attempt.scope, attempt.holder)

    def _mismatch(self) -> IdempotencyMismatch:
        self._num_mismatches += 1
        return IdempotencyMismatch("this Idempotency-Key was used with another request")

    def _conflict(self) -> IdempotencyConflict:
        self._num_conflicts += 1
        # As long again as it has waited: how long the work will take nobody knows.
        after_s = min(max(1, ceil(self._wait_s)), MAX_RETRY_AFTER_S)
        return IdempotencyConflict("the same request is still being answered", retry_after_s=after_s)


def digest(tenant: str, key: bytes) -> str:
    """The scope of an Idempotency-Key, in hexadecimal: one for each tenant and key; neither can be told from it by looking."""
    return _digest(tenant.encode(), key)


def _digest(first: bytes, second: bytes) -> str:
    # The length of the first tells where it ends: no two pairs are the same bytes.
    hashed = sha256(len(first).to_bytes(8, "big"))
    hashed.update(first)
    hashed.update(second)
    return hashed.hexdigest()


def _decode(encoded: bytes) -> Reply:
    try:
        return msgspec.structs.replace(_decoder.decode(encoded), closes=False)
    except msgspec.DecodeError as error:
        raise ServerFault("the answer that was kept cannot be read") from error
