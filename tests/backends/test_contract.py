"""What holds for every backend, whatever it is made of and wherever it lives (DESIGN D4, D9).

A backend that `backends.create` can name belongs in KINDS. What is true of one alone is tested in that one's own file.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import backends
from backends.base import ContractBreach, WorkerBackend, WorkerLost
from batcher.types import MAX_BATCH_SIZE
from tests.backends.hosting import loaded

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


class Subject(NamedTuple):
    backend: WorkerBackend
    answer: Callable[[str], str]

    async def check(self, inputs: list[str]) -> None:
        assert await self.backend.run_batch(inputs) == [self.answer(text) for text in inputs]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(params=backends.ISOLATIONS)
def subject(kind: Kind, request: pytest.FixtureRequest) -> Subject:
    """A fresh backend, not loaded."""
    return Subject(backends.create(kind.name, isolation=request.param, settings=kind.settings)(0), kind.answer)


async def test_answers_each_input_in_order(subject: Subject) -> None:
    async with loaded(subject.backend):
        await subject.check([f"input {number}" for number in range(MAX_BATCH_SIZE)])
        await subject.check(["one"])
        await subject.check(["the same", "the same"])
        assert subject.backend.last_run_s is not None
        assert subject.backend.last_run_s >= 0


async def test_any_text_comes_back_as_it_was(subject: Subject) -> None:
    async with loaded(subject.backend):
        await subject.check(["", " ", "\0", "a\nb\r\n", "żółć", "日本語", "🙂👩‍👩‍👧", "e\u0301", "\u202e", "\x7f\x1b[0m"])
        await subject.check(["x" * 1_000_000, "", "ü" * 500_000])


async def test_does_not_change_the_callers_list(subject: Subject) -> None:
    async with loaded(subject.backend):
        inputs = ["a", "b"]
        outputs = await subject.backend.run_batch(inputs)
        assert inputs == ["a", "b"]
        assert outputs is not inputs


async def test_raising_fails_the_batch_and_not_the_worker(subject: Subject) -> None:
    async with loaded(subject.backend):
        for _ in range(2):
            with pytest.raises(Exception, match=r"BOOM|cannot take") as raised:
                await subject.backend.run_batch(["good", "BOOM secret"])
            assert not isinstance(raised.value, WorkerLost | ContractBreach)
            assert "secret" not in str(raised.value)
            await subject.check(["good"])


@pytest.mark.parametrize("num_inputs", [0, MAX_BATCH_SIZE + 1])
async def test_refuses_a_batch_of_the_wrong_size(subject: Subject, num_inputs: int) -> None:
    async with loaded(subject.backend):
        with pytest.raises(ContractBreach, match=str(num_inputs)):
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
        call = asyncio.ensure_future(subject.backend.run_batch(["SLEEP:0.02"]))
        await asyncio.sleep(0.005)
        call.cancel()
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
    async with loaded(subject.backend):
        call = asyncio.ensure_future(subject.backend.run_batch([f"HOLD:{gate}"]))
        await asyncio.sleep(0.001)
        closing = asyncio.ensure_future(subject.backend.close())
        with pytest.raises(WorkerLost, match="closed"):
            await call
        gate.touch()
        await closing


async def test_close_without_or_during_load(kind: Kind) -> None:
    for isolation in backends.ISOLATIONS:
        backend = backends.create(kind.name, isolation=isolation, settings=kind.settings)(0)
        await backend.close()
        with pytest.raises(WorkerLost):
            await backend.load()
        backend = backends.create(kind.name, isolation=isolation, settings=kind.settings)(0)
        loading = asyncio.ensure_future(backend.load())
        await asyncio.sleep(0)
        await backend.close()
        await asyncio.wait({loading})
        assert loading.exception() is None or isinstance(loading.exception(), WorkerLost)
        with pytest.raises(WorkerLost):
            await backend.run_batch(["after"])


async def test_lost_watch_waits_and_can_be_cancelled(subject: Subject) -> None:
    async with loaded(subject.backend):
        watch = asyncio.ensure_future(subject.backend.wait_lost())
        await subject.check(["a batch"])
        assert not watch.done()
        watch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watch
        await subject.check(["another"])
