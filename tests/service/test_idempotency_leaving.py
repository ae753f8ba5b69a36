"""One key, one run, whoever leaves when: cancellation at every step, and nothing left of it."""

import asyncio
import random
import weakref

import pytest

from batcher.config import IdempotencyConfig
from batcher.errors import IdempotencyConflict, InvalidRequest, ServerFault
from batcher.service.wire.replies import Reply
from tests.service.idempotent import Bench, Work, reply

pytestmark = pytest.mark.anyio

IMPATIENT = IdempotencyConfig(wait_s=0.0)


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

    async def slow(question: str) -> Reply:
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

        async def holding(question: str) -> Reply:
            answer = await work(question)
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
