"""What idempotent requests are tried with: work that is let go when the test says so, and a store that takes its time."""

import asyncio
from collections.abc import Awaitable, Callable

from batcher.config import IdempotencyConfig
from batcher.errors import Overloaded, ServiceError
from batcher.service.claims import Claimed, InFlight, Kept, MemoryClaimsStatistics, Mismatch
from batcher.service.idempotency import Idempotency
from batcher.service.stores.memory_claims import MemoryClaims
from batcher.service.wire.replies import Reply

CONFIG = IdempotencyConfig(wait_s=30.0)


def reply(number: int = 1, *, status: int = 200) -> Reply:
    return Reply(status, b'{"n": %d}' % number, f"req_{number}", [(b"x-made", b"%d" % number)])


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0)


class Work:
    """Answers when it is `open`; counts how it was called and how it ended."""

    def __init__(self, answer: Reply | ServiceError | None = None, *, is_open: bool = True) -> None:
        self.answer = answer or reply()
        self.open = asyncio.Event()
        if is_open:
            self.open.set()
        self.begun = asyncio.Event()
        self.num_calls = 0
        self.num_cancelled = 0

    async def __call__(self, question: str) -> Reply:
        self.num_calls += 1
        self.begun.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        if isinstance(self.answer, ServiceError):
            raise self.answer
        return self.answer


class SlowStore:
    """A MemoryClaims whose every call takes turns of the loop before and after it acts, and may be away."""

    def __init__(self, memory: MemoryClaims, *, num_turns: int = 2) -> None:
        self.memory = memory
        self.num_turns = num_turns
        self.away: set[str] = set()
        self.num_renewed = 0

    async def _turns(self, name: str = "") -> None:
        if name in self.away:
            raise Overloaded("the store is away", retry_after_s=1)
        for _ in range(self.num_turns):
            await asyncio.sleep(0)

    async def claim(self, scope: str, body: str, holder: str) -> Claimed | InFlight | Mismatch | Kept:
        await self._turns("claim")
        verdict = await self.memory.claim(scope, body, holder)
        await self._turns()
        return verdict

    async def renew(self, scope: str, holder: str) -> None:
        self.num_renewed += 1
        await self._turns("renew")

    async def keep(self, scope: str, holder: str, reply: bytes, *, tenant: str) -> None:
        await self._turns("keep")
        await self.memory.keep(scope, holder, reply, tenant=tenant)
        await self._turns()

    async def release(self, scope: str, holder: str) -> None:
        await self._turns("release")
        await self.memory.release(scope, holder)
        await self._turns()

    def statistics(self) -> MemoryClaimsStatistics:
        return self.memory.statistics()

    async def start(self) -> None:
        await self.memory.start()

    async def close(self) -> None:
        await self.memory.close()


class Bench:
    def __init__(self, config: IdempotencyConfig = CONFIG) -> None:
        self.before = asyncio.all_tasks()
        self.memory = MemoryClaims(config)
        self.store = SlowStore(self.memory)
        self.one = Idempotency(config, self.store)
        self.other = Idempotency(config, self.store)
        """Another gateway with the same store."""

    def ask(self, work: Callable[[str], Awaitable[Reply]], *, key: bytes = b"k", body: bytes = b"b") -> "asyncio.Task[Reply]":
        return asyncio.ensure_future(self.one.answer("tenant", key, body, "/v1/messages", work))

    async def settled(self) -> None:
        """Waits until nothing runs any more, and asserts that nothing is left of it."""
        await until(lambda: asyncio.all_tasks() <= self.before)
        await asyncio.sleep(0)  # A task that is done tells so a turn later.
        assert self.memory.statistics().num_claims == 0
        for gateway in (self.one, self.other):
            assert gateway.statistics().num_running == 0
            assert gateway._attempts == {}
