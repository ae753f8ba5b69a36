"""What holds for every backend, whatever it is made of and wherever it lives (DESIGN D4, D9).

A backend that `backends.create` can name belongs in KINDS, except `generate`, which takes no orders that end it at a wrong
moment. What is true of one alone is tested in that one's own file.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import backends
from backends.base import BackendFactory, ContractBreach, WorkerBackend, WorkerLost
from batcher.types import MAX_BATCH_SIZE
from tests.backends.hosting import START_TIMEOUT_S, loaded

pytestmark = pytest.mark.anyio

SETTINGS = {"service_time_s": 0.02, "poison_prefix": "BOOM"}


class Kind(NamedTuple):
    name: str
    settings: dict[str, object] | None
    answer: Callable[[str], str]


KINDS = {
    "simulated": Kind("simulated", SETTINGS, lambda text: text),
    "function": Kind("tests.backends.faulty:run_batch", None, lambda text: f"<{text}>"),
    "coroutine": Kind("tests.backends.faulty:run_batch_async", None, lambda text: f"<{text}>"),
    "class": Kind("tests.backends.faulty:FaultyBackend", None, lambda text: f"<{text}>"),
}


class Host(NamedTuple):
    isolation: str
    use_uvloop: bool


HOSTS = {
    "inline-asyncio": Host("inline", use_uvloop=False),
    "inline-uvloop": Host("inline", use_uvloop=True),
    # The server's loop; test_process.py goes through both.
    "process-uvloop": Host("process", use_uvloop=True),
}


class Subject(NamedTuple):
    make: BackendFactory
    make_held: BackendFactory
    """Of one whose batch that is told to HOLD does not end by itself: the simulated GPU knows no orders, it hangs."""
    backend: WorkerBackend
    answer: Callable[[str], str]

    async def check(self, inputs: list[str]) -> None:
        assert await self.backend.run_batch(inputs) == [self.answer(text) for text in inputs]


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> Host:
    return HOSTS[request.param]


@pytest.fixture
def anyio_backend(host: Host) -> tuple[str, dict[str, Any]]:
    return ("asyncio", {"use_uvloop": host.use_uvloop})


@pytest.fixture(params=KINDS)
def subject(host: Host, request: pytest.FixtureRequest) -> Subject:
    """A fresh backend, not loaded."""
    kind = KINDS[request.param]
    hanging = kind.settings and {**kind.settings, "hang_rate": 1.0}
    make, make_held = (
        backends.create(kind.name, isolation=host.isolation, settings=settings, start_timeout_s=START_TIMEOUT_S)
        for settings in (kind.settings, hanging)
    )
    return Subject(make, make_held, make(0), kind.answer)


async def test_answers_each_input_in_order(subject: Subject) -> None:
    async with loaded(subject.backend):
        await subject.check([f"input {number}" for number in range(MAX_BATCH_SIZE)])
        await subject.check(["one"])
        inputs = ["the same", "the same"]
        await subject.check(inputs)
        assert inputs == ["the same", "the same"]
        assert subject.backend.last_run_s is not None
        assert subject.backend.last_run_s >= 0


async def test_any_text_comes_back_as_it_was(subject: Subject) -> None:
    async with loaded(subject.backend):
        await subject.check(["", " ", "\0", "a\nb\r\n", "żółć", "日本語", "🙂👩‍👩‍👧", "e\u0301", "\u202e", "\x7f\x1b[0m"])
        await subject.check(["x" * 1_000_000, "", "ü" * 500_000])


async def test_raising_fails_the_batch_and_not_the_worker(subject: Subject) -> None:
    async with loaded(subject.backend):
        for _ in range(2):
            with pytest.raises(Exception, match=r"BOOM|cannot take") as raised:
                await subject.backend.run_batch(["good", "BOOM secret"])
            assert not isinstance(raised.value, WorkerLost | ContractBreach)
            assert "secret" not in str(raised.value)
            await subject.check(["good"])


async def test_refuses_a_batch_of_the_wrong_size(subject: Subject) -> None:
    async with loaded(subject.backend):
        for num_inputs in (0, MAX_BATCH_SIZE + 1):
            with pytest.raises(ContractBreach, match=f"not {num_inputs}"):
                await subject.backend.run_batch(["x"] * num_inputs)
        await subject.check(["good"])


async def test_refuses_a_second_call_at_once(subject: Subject) -> None:
    async with loaded(subject.backend):
        first = asyncio.ensure_future(subject.backend.run_batch(["SLEEP:0.02"]))
        await asyncio.sleep(0)
        with pytest.raises(ContractBreach, match="another call"):
            await subject.backend.run_batch(["second"])
        assert await first == [subject.answer("SLEEP:0.02")]
        await subject.check(["third"])


async def test_a_cancelled_call_leaves_it_usable_once_the_batch_is_over(subject: Subject) -> None:
    async with loaded(subject.backend):
        while True:
            call = asyncio.ensure_future(subject.backend.run_batch(["SLEEP:0.02"]))
            await asyncio.sleep(0.005)
            if call.cancel():
                break  # Otherwise the machine was busy, and the batch was over before it.
        with pytest.raises(asyncio.CancelledError):
            await call
        while True:
            try:
                await subject.check(["after"])
                break
            except ContractBreach:
                await asyncio.sleep(0.002)
        await subject.check(["later"])


async def test_close_is_idempotent_and_final(subject: Subject) -> None:
    async with loaded(subject.backend):
        watch = asyncio.ensure_future(subject.backend.wait_lost())
        await subject.check(["before"])
        await asyncio.gather(subject.backend.close(), subject.backend.close())
        await subject.backend.close()
        assert "closed" in str(await watch)
        with pytest.raises(WorkerLost, match="closed"):
            await subject.backend.run_batch(["after"])
        with pytest.raises(WorkerLost, match="closed"):
            await subject.backend.load()


async def test_close_in_the_middle_of_a_batch_loses_it(subject: Subject, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with loaded(subject.make_held(0)) as backend:
        call = asyncio.ensure_future(backend.run_batch([f"HOLD:{gate}"]))
        await asyncio.sleep(0.001)
        closing = asyncio.ensure_future(backend.close())
        with pytest.raises(WorkerLost, match="closed"):
            await call
        gate.touch()
        await closing


async def test_close_before_load(subject: Subject) -> None:
    await subject.backend.close()
    with pytest.raises(WorkerLost):
        await subject.backend.load()


@pytest.mark.parametrize("num_turns", [0, 1, 2, 5])
async def test_close_during_load(subject: Subject, num_turns: int) -> None:
    loading = asyncio.ensure_future(subject.backend.load())
    for _ in range(num_turns):
        await asyncio.sleep(0)
    await subject.backend.close()
    await asyncio.wait({loading})
    assert loading.exception() is None or isinstance(loading.exception(), WorkerLost)
    with pytest.raises(WorkerLost):
        await subject.backend.run_batch(["after"])


async def test_a_restart_takes_a_fresh_instance(subject: Subject) -> None:
    async with loaded(subject.backend):
        pass
    async with loaded(subject.make(0)) as restarted:
        assert await restarted.run_batch(["again"]) == [subject.answer("again")]


async def test_lost_watch_waits_and_can_be_cancelled(subject: Subject) -> None:
    async with loaded(subject.backend):
        watch = asyncio.ensure_future(subject.backend.wait_lost())
        await subject.check(["a batch"])
        assert not watch.done()
        watch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watch
        await subject.check(["another"])
