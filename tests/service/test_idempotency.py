"""One key, one run, whoever leaves when: races, cancellation at every await, and a store that is away."""

import asyncio
import gc
import random
import weakref
from collections.abc import Awaitable, Callable, Iterator

import pytest

from batcher.config import IdempotencyConfig
from batcher.errors import IdempotencyConflict, IdempotencyMismatch, InvalidRequest, Overloaded, ServerFault, ServiceError
from batcher.service.claims import Claimed, InFlight, Kept, Mismatch
from batcher.service.idempotency import Idempotency, digest
from batcher.service.stores.memory_claims import MemoryClaims
from batcher.service.wire.replies import Reply

pytestmark = pytest.mark.anyio

CONFIG = IdempotencyConfig(wait_s=30.0)
IMPATIENT = IdempotencyConfig(wait_s=0.0)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


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

    async def __call__(self) -> Reply:
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

    async def keep(self, scope: str, holder: str, reply: bytes) -> None:
        await self._turns("keep")
        await self.memory.keep(scope, holder, reply)
        await self._turns()

    async def release(self, scope: str, holder: str) -> None:
        await self._turns("release")
        await self.memory.release(scope, holder)
        await self._turns()

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

    def ask(self, work: Callable[[], Awaitable[Reply]], *, key: bytes = b"k", body: bytes = b"b") -> "asyncio.Task[Reply]":
        return asyncio.ensure_future(self.one.answer("tenant", key, body, "/v1/messages", work))

    async def settled(self) -> None:
        """Waits until nothing runs any more, and asserts that nothing is left of it."""
        await until(lambda: asyncio.all_tasks() <= self.before)
        await asyncio.sleep(0)  # A task that is done tells so a turn later.
        assert self.memory.statistics().num_claims == 0
        for gateway in (self.one, self.other):
            assert gateway.statistics().num_running == 0
            assert gateway._attempts == {}


async def test_an_answer_is_kept_whole_and_replayed() -> None:
    bench, work = Bench(), Work(reply(7))
    assert await bench.ask(work) == reply(7)
    again = await bench.ask(work)
    assert (again.status, again.body, again.request_id) == (200, b'{"n": 7}', "req_7")
    assert again.headers == [(b"x-made", b"7"), (b"idempotent-replayed", b"true")]
    assert (await bench.ask(work)).headers == again.headers  # Not one header more each time.
    assert work.num_calls == 1
    assert bench.one.statistics().num_replayed == 2
    await bench.settled()


async def test_a_replay_does_not_close_the_connection() -> None:
    bench = Bench()
    made = Reply(200, b"{}", "req_1", [], closes=True)
    assert await bench.ask(Work(made)) == made
    assert not (await bench.ask(Work())).closes


@pytest.mark.parametrize("status", [201, 400, 429, 499, 500, 529])
async def test_a_reply_other_than_200_is_not_kept(status: int) -> None:
    bench = Bench()
    assert (await bench.ask(Work(reply(1, status=status)))).status == status
    assert await bench.ask(Work(reply(2))) == reply(2)
    assert bench.memory.statistics().num_answers == 1


@pytest.mark.parametrize("key", [b"", b"x" * 256, "é".encode("latin-1"), b"a\tb", b"a\r\nb", b"\x7f", b"k\n"])
async def test_a_key_that_is_none(key: bytes) -> None:
    bench, work = Bench(), Work()
    with pytest.raises(InvalidRequest):
        await bench.ask(work, key=key)
    assert work.num_calls == 0
    assert await bench.ask(work, key=b"~ " * 127) == reply()


async def test_another_body_is_refused_before_and_after_the_answer() -> None:
    bench, work = Bench(), Work(is_open=False)
    first = bench.ask(work)
    await work.begun.wait()
    with pytest.raises(IdempotencyMismatch):
        await bench.ask(work, body=b"other")
    with pytest.raises(IdempotencyMismatch):
        await bench.other.answer("tenant", b"k", b"other", "/v1/messages", work)
    work.open.set()
    assert await first == reply()
    with pytest.raises(IdempotencyMismatch):
        await bench.ask(work, body=b"other")
    with pytest.raises(IdempotencyMismatch):
        await bench.one.answer("tenant", b"k", b"b", "/v1/messages anthropic", work)
    assert work.num_calls == 1
    assert bench.one.statistics().num_mismatches == 3
    await bench.settled()


async def test_keys_are_a_tenants_own() -> None:
    bench = Bench()
    mine = await bench.one.answer("a", b"bc", b"b", "r", Work(reply(1)))
    assert await bench.one.answer("ab", b"c", b"b", "r", Work(reply(2))) == reply(2)
    assert mine == reply(1)
    assert digest("a", b"bc") != digest("ab", b"c")
    assert len(digest("a", b"bc")) == 64


async def test_fifty_at_once_by_two_gateways_are_one_run() -> None:
    bench, work = Bench(), Work(reply(3), is_open=False)
    callers = [
        asyncio.ensure_future(gateway.answer("tenant", b"k", b"b", "/v1/messages", work))
        for _ in range(25)
        for gateway in (bench.one, bench.other)
    ]
    await work.begun.wait()
    work.open.set()
    replies = await asyncio.gather(*callers)
    assert {answer.body for answer in replies} == {b'{"n": 3}'}
    assert work.num_calls == 1
    assert sum((b"idempotent-replayed", b"true") not in answer.headers for answer in replies) == 1
    await bench.settled()


async def test_the_first_to_leave_takes_nothing_from_the_others() -> None:
    bench, work = Bench(), Work(is_open=False)
    first, second = bench.ask(work), bench.ask(work)
    await work.begun.wait()
    first.cancel()
    await asyncio.sleep(0)
    work.open.set()
    assert (await second).body == reply().body
    assert (work.num_calls, work.num_cancelled) == (1, 0)
    assert bench.memory.statistics().num_answers == 1
    await bench.settled()


async def test_when_all_leave_the_work_ends_and_the_next_runs_it() -> None:
    bench, work = Bench(), Work(is_open=False)
    callers = [bench.ask(work) for _ in range(3)]
    await work.begun.wait()
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    # At once, while the claim is still being given back.
    assert await bench.ask(Work(reply(2))) == reply(2)
    assert (work.num_calls, work.num_cancelled) == (1, 1)
    await bench.settled()


async def test_an_error_reaches_all_who_wait_and_is_not_kept() -> None:
    bench, work = Bench(), Work(Overloaded("full", retry_after_s=3), is_open=False)
    callers = [bench.ask(work) for _ in range(3)]
    await work.begun.wait()
    work.open.set()
    assert await asyncio.gather(*callers, return_exceptions=True) == [work.answer] * 3
    assert await bench.ask(Work(reply(2))) == reply(2)
    await bench.settled()


async def test_work_that_is_cancelled_by_others_cancels_no_caller() -> None:
    bench, work = Bench(), Work(is_open=False)
    caller = bench.ask(work)
    await work.begun.wait()
    (task,) = bench.one._tasks
    task.cancel()
    with pytest.raises(ServerFault):
        await caller
    await bench.settled()


async def test_whoever_joins_is_told_to_come_back_and_the_last_one_stays() -> None:
    bench, work = Bench(IMPATIENT), Work(is_open=False)
    first, second = bench.ask(work), bench.ask(work)
    with pytest.raises(IdempotencyConflict) as caught:
        await second
    assert caught.value.retry_after_s == 1
    third = bench.ask(work)
    first.cancel()  # Leaves before the third one's wait is over.
    await asyncio.wait([first])
    for _ in range(20):
        await asyncio.sleep(0)
    work.open.set()
    assert (await third).body == reply().body
    assert work.num_calls == 1
    await bench.settled()


async def test_answered_elsewhere_for_too_long_is_a_conflict() -> None:
    bench, work = Bench(IdempotencyConfig(wait_s=0.03)), Work(is_open=False)
    elsewhere = asyncio.ensure_future(bench.other.answer("tenant", b"k", b"b", "/v1/messages", work))
    await work.begun.wait()
    callers = [bench.ask(work), bench.ask(work)]
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(answer) for answer in answers] == [IdempotencyConflict] * 2
    work.open.set()
    assert await elsewhere == reply()
    assert (await bench.ask(work)).body == reply().body
    assert work.num_calls == 1
    await bench.settled()


async def test_without_the_store_nothing_runs() -> None:
    bench, work = Bench(), Work()
    bench.store.away = {"claim"}
    with pytest.raises(Overloaded):
        await bench.ask(work)
    assert work.num_calls == 0
    await bench.settled()


async def test_an_answer_that_cannot_be_kept_is_given() -> None:
    bench = Bench()
    bench.store.away = {"keep"}
    assert await bench.ask(Work()) == reply()
    assert bench.one.statistics().num_unkept == 1
    assert bench.memory.statistics().num_claims == 1  # Of a store that shares: until it ends by itself.


async def test_what_cannot_be_released_hides_no_error() -> None:
    bench = Bench()
    bench.store.away = {"release"}
    with pytest.raises(InvalidRequest, match="no"):
        await bench.ask(Work(InvalidRequest("no")))


async def test_a_claim_is_renewed_while_the_work_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batcher.service.idempotency._RENEW_S", 0.001)
    bench, work = Bench(), Work(is_open=False)
    caller = bench.ask(work)
    await until(lambda: bench.store.num_renewed >= 2)
    bench.store.away = {"renew"}  # It goes on trying.
    seen = bench.store.num_renewed
    await until(lambda: bench.store.num_renewed >= seen + 2)
    work.open.set()
    await caller
    await bench.settled()


async def test_an_answer_of_another_version_is_our_fault() -> None:
    bench = Bench()
    scope = digest("tenant", b"k")
    work = Work(is_open=False)
    caller = bench.ask(work)
    await work.begun.wait()
    await bench.memory.keep(scope, bench.one._attempts[scope].holder, b"\x00nonsense")
    work.open.set()
    assert await caller == reply()
    with pytest.raises(ServerFault):
        await bench.ask(work)


async def num_steps(bench: Bench) -> int:
    """Turns of the loop from the first call to the answer."""
    caller = bench.ask(Work())
    number = 0
    while not caller.done():
        await asyncio.sleep(0)
        number += 1
    return number


async def test_leaving_at_every_step_leaves_nothing_and_harms_nobody() -> None:
    steps = await num_steps(Bench())
    assert steps > 8
    for step in range(steps + 2):
        bench, work = Bench(), Work()
        alone = bench.ask(work)
        for _ in range(step):
            await asyncio.sleep(0)
        alone.cancel()
        await asyncio.wait([alone])
        assert (await bench.ask(work)).body == reply().body
        await bench.settled()
        # A run that was finished is not done again: one bill.
        assert work.num_calls - work.num_cancelled == 1
        assert bench.memory.statistics().num_answers == 1


async def test_the_first_leaves_at_every_step_and_the_second_is_answered() -> None:
    for step in range(await num_steps(Bench()) + 2):
        bench, work = Bench(), Work()
        first, second = bench.ask(work), bench.ask(work)
        for _ in range(step):
            await asyncio.sleep(0)
        first.cancel()
        assert (await second).body == reply().body
        assert (work.num_calls, work.num_cancelled) == (1, 0)
        await bench.settled()


async def test_two_thousand_that_leave_at_random_leave_nothing() -> None:
    rng = random.Random(1)
    bench = Bench()
    bench.store.num_turns = 4

    async def slow() -> Reply:
        for _ in range(6):
            await asyncio.sleep(0)
        return reply()

    async def leaves(number: int) -> None:
        caller = bench.ask(slow, key=b"%d" % (number % 700), body=b"x" * 1000)
        for _ in range(rng.randrange(20)):
            await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])

    await asyncio.gather(*(leaves(number) for number in range(2000)))
    await bench.settled()
    assert await bench.ask(slow, key=b"fresh") == reply()


class Body:
    """Stands for what a request's work holds."""


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("end", ["answered", "error", "left"])
async def test_nothing_of_a_request_waits_for_the_collector(end: str) -> None:
    bench = Bench()
    work = Work(is_open=end != "left")

    def asked() -> "tuple[asyncio.Task[Reply], weakref.ref[Body]]":
        body = Body()

        async def holding() -> Reply:
            answer = await work()
            if end == "error":
                raise InvalidRequest(f"no, {body}")
            return answer

        return bench.ask(holding), weakref.ref(body)

    caller, body = asked()
    await work.begun.wait()
    if end == "left":
        caller.cancel()
    await asyncio.wait([caller])
    if not caller.cancelled():
        caller.exception()
    del caller
    await bench.settled()
    assert body() is None
