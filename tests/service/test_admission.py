"""Who may enter, asked by the shells of both modes: before the body, at submission, and how it is counted."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from backends.base import WorkerLost
from batcher.config import DEFAULT_TIERS, DispatchConfig, ReplicaConfig, ReplicaPolicy, TierConfig
from batcher.core.admission.gate import Gate
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.core.effects import Refuse
from batcher.errors import Overloaded, ShuttingDown
from batcher.service import late, start_gate
from batcher.service.auth import Caller
from batcher.service.driver import Driver, End
from batcher.service.meters import Meters
from batcher.service.replica import Replica
from batcher.service.start_gate import StartGate, start_gate_of
from batcher.types import Outcome
from tests.service.scripted import ScriptedModel, Transcript, ask
from tests.service.serving import until

pytestmark = pytest.mark.anyio

PAID, FREE = Caller("ann", "paid", "key_ann"), Caller("ben", "free", "key_ben")


class Held:
    """A worker whose batches end when it is let go."""

    last_run_s: float | None = None

    def __init__(self) -> None:
        self.is_let_go = asyncio.Event()
        self.is_closed = asyncio.Event()

    async def load(self) -> None: ...

    async def run_batch(self, inputs: list[str]) -> object:
        await self.is_let_go.wait()
        return inputs

    async def close(self) -> None:
        self.is_let_go.set()
        self.is_closed.set()

    async def wait_lost(self) -> WorkerLost:
        await self.is_closed.wait()
        return WorkerLost("closed")


@asynccontextmanager
async def a_driver() -> AsyncIterator[tuple[Driver, Held, Meters]]:
    """One worker that serves two in 0.2 s; it is busy, and free may wait for 0.15 s."""
    config = DispatchConfig(num_workers=1, max_batch_size=2, service_time_s=0.2, batch_timeout_s=0.0)
    worker, meters = Held(), Meters(config.tiers)
    driver = Driver(
        dispatcher=Dispatcher(config, now=time.monotonic()),
        gate=Gate(DEFAULT_TIERS, secret=b"secret"),
        factory=lambda index: worker,
        meters=meters,
        request_timeout_s=30.0,
    )
    driver.start()
    await until(lambda: driver.is_ready)
    ended: list[End] = []
    driver.submit(PAID, "runs", 1, lambda end, _: ended.append(end))
    yield driver, worker, meters
    worker.is_let_go.set()
    await until(lambda: driver.num_live == 0)
    await driver.close()


async def test_a_driver_refuses_before_the_body_what_it_would_refuse_after_it() -> None:
    async with a_driver() as (driver, _, meters):
        ended: list[End] = []
        assert driver.refuse_early(FREE) is None
        for _ in range(2):
            driver.submit(FREE, "waits", 1, lambda end, _: ended.append(end))
        error = driver.refuse_early(FREE)
        assert isinstance(error, Overloaded)
        assert error.retry_after_s == 1
        assert meters.tiers["free"].outcomes[Outcome.REJECTED_CAPACITY] == 1
        driver.submit(FREE, "is refused", 1, lambda end, _: ended.append(end))
        assert len(ended) == 1
        assert meters.tiers["free"].outcomes[Outcome.REJECTED_CAPACITY] == 2
        assert driver.refuse_early(PAID) is None


async def test_a_driver_that_drains_refuses_early_as_a_shutdown() -> None:
    async with a_driver() as (driver, _, meters):
        driver.drain()
        assert isinstance(driver.refuse_early(PAID), ShuttingDown)
        assert meters.tiers["paid"].outcomes[Outcome.REJECTED_SHUTDOWN] == 1


async def test_limits_are_whole_while_nobody_waits() -> None:
    async with a_driver() as (driver, _, _):
        assert driver.limit_factor("free") == driver.limit_factor("paid") == 1.0


async def test_free_that_was_let_in_and_finds_no_place_is_told_before_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """B59, in batch mode: its place is gone; what paid was let in for stays, and so does what runs."""
    monkeypatch.setattr(late, "MIN_LATE_S", 0.05)
    monkeypatch.setattr(late, "WATCH_S", 0.01)
    async with a_driver() as (driver, _, meters):
        ended: dict[str, End] = {}
        for number, caller in enumerate((FREE, PAID, FREE)):
            driver.submit(caller, "waits", 1, lambda end, _, name=f"{caller.tier} {number}": ended.update({name: end}))  # type: ignore[misc]
        await until(lambda: len(ended) == 2)
        assert set(ended) == {"free 0", "free 2"}
        told = ended["free 0"]
        assert isinstance(told, Refuse)
        assert told.outcome is Outcome.REJECTED_CAPACITY
        assert "no place became free" in told.error.message
        assert told.error.retry_after_s == 1
        assert meters.tiers["free"].outcomes[Outcome.REJECTED_CAPACITY] == 2
        assert driver.num_live == 2


# Continuous mode: two slots, of which the second is paid's; steps stand still while the model's gate is shut.

CONFIG = ReplicaConfig(num_blocks=64, max_num_seqs=2, max_model_len=1024)


@asynccontextmanager
async def a_replica(
    model: ScriptedModel, *, tiers: tuple[TierConfig, ...] = DEFAULT_TIERS
) -> AsyncIterator[tuple[Replica, StartGate]]:
    """Afterwards nothing may be left in its books."""
    gate = StartGate(tiers, CONFIG, secret=b"secret")
    replica = Replica(model, CONFIG, start_gate=gate)
    replica.start()
    await replica.wait_ready()
    yield replica, gate
    if model.gate is not None:
        model.gate.set()
    await until(lambda: replica.num_live == 0)
    gate.catch_up(replica.statistics(), now=time.monotonic())
    assert len(gate.backlog) == 0
    assert gate.backlog.num_running() == [0, 0]
    gate.backlog.check()
    gate.gate.check()
    await replica.close()


def is_held(replica: Replica, num: int) -> bool:
    return replica.statistics().num_waiting == num


async def test_who_would_wait_too_long_for_a_first_step_is_refused_at_once() -> None:
    """Paid too: it waited for ten seconds and more (SPEC S8.1)."""
    model = ScriptedModel()
    async with a_replica(model) as (replica, _):
        model.gate = threading.Event()
        running = [Transcript() for _ in range(3)]
        for told in running:
            replica.submit(ask("x" * 50), told)
        await asyncio.sleep(0)
        refused: list[Transcript] = []

        def asks_again() -> bool:
            told = Transcript()
            replica.submit(ask("y" * 50), told, key_id="key")
            if told.end is not None:
                refused.append(told)
            return bool(refused)

        await until(asks_again)
        assert refused[0].failed.outcome is Outcome.REJECTED_CAPACITY
        assert refused[0].failed.error.status == 529
        seconds = refused[0].failed.error.retry_after_s
        assert seconds is not None
        assert 1 <= seconds <= 60
        assert "estimated wait" in refused[0].failed.error.message
        early = replica.refuse_early(Caller("t", "paid", "key"))
        assert isinstance(early, Overloaded)
        assert replica.outcomes["paid"][Outcome.REJECTED_CAPACITY] == 2


async def test_an_idle_replica_refuses_nobody() -> None:
    """A burst that fits the slots starts at once, whatever was learned before."""
    model = ScriptedModel()
    async with a_replica(model) as (replica, gate):
        for _ in range(20):
            told = [Transcript(), Transcript()]
            for each in told:
                assert replica.refuse_early(PAID) is None
                replica.submit(ask("z" * 20), each)
            await until(lambda told=told: all(each.end is not None for each in told))  # type: ignore[misc]
            assert all(each.finished for each in told)
        assert replica.limit_factor("free") == 1.0
        assert gate.backlog.work_of(10, 1000) == pytest.approx(31, abs=1)


async def test_free_is_told_when_paid_took_its_place_after_it_was_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """B59: it does not wait for its own deadline."""
    monkeypatch.setattr(start_gate, "MAX_LATE", 2.0)
    model = ScriptedModel()
    tiers = (TierConfig("paid", start_budget_s=3600.0), TierConfig("free", start_budget_s=0.1))
    async with a_replica(model, tiers=tiers) as (replica, _):
        model.gate = threading.Event()
        free = Transcript()
        for _ in range(2):
            replica.submit(ask("x" * 50), Transcript())
        replica.submit(ask("y", tier="free"), free)
        await until(lambda: free.end is not None)
        assert free.failed.outcome is Outcome.REJECTED_CAPACITY
        assert "no place became free" in free.failed.error.message
        assert free.failed.error.retry_after_s is not None


async def test_while_paid_callers_are_to_come_back_free_is_promised_nothing() -> None:
    """What is left when they are back nobody knows: of promises from the rates of late three quarters were broken."""
    gate = StartGate(DEFAULT_TIERS, CONFIG, secret=b"secret")
    engine = Replica(ScriptedModel(), CONFIG)
    for second in range(20):  # 300 tokens of work start in a second, and 200 are decoded.
        gate.backlog.starts.advance(is_held=True, num_decoded=200 * second, now=float(second))
        gate.backlog.starts.observe(300.0)
    for number in range(10):
        gate.add(number, ask("x" * 50, tier="paid", max_tokens=100), now=20.0)

    def num_promised_to_free() -> int:
        assert gate.judge("free", "ben", "key_ben", None, engine.statistics(), now=20.0) is not None
        return gate.gate.statistics(now=20.0)[1].promises.num_made

    assert num_promised_to_free() == 1
    assert gate.judge("paid", "t", "key_t", None, engine.statistics(), now=20.0) is not None
    assert num_promised_to_free() == 1
    await engine.close()


def test_one_that_started_and_ended_between_two_looks_counts_as_a_start() -> None:
    """Short answers: the end took it out of the backlog before its start was read, and nobody was sure of any rate."""
    gate = StartGate(DEFAULT_TIERS, CONFIG, secret=b"secret")
    for second in range(2):
        gate.backlog.starts.advance(is_held=True, now=float(second))
    gate.add(1, ask("x" * 50, max_tokens=100), now=1.0)
    gate.starts.append(1)
    gate.end(1, 5)
    assert gate.backlog.starts.sure_rate > 0.0
    assert (len(gate.backlog), gate.backlog.num_running()) == (0, [0, 0])


async def test_a_replica_that_cannot_serve_refuses_early_and_counts_it() -> None:
    replica = Replica(ScriptedModel(), CONFIG, start_gate=start_gate_of(DEFAULT_TIERS, CONFIG))
    error = replica.refuse_early(FREE)
    assert isinstance(error, Overloaded)
    assert error.retry_after_s == 2
    assert replica.outcomes["free"][Outcome.REJECTED_CAPACITY] == 1
    replica.start()
    await replica.wait_ready()
    replica.drain()
    assert isinstance(replica.refuse_early(FREE), ShuttingDown)
    await replica.close()


@pytest.mark.parametrize("policy", [ReplicaPolicy.STATIC, ReplicaPolicy.SINGLE])
def test_the_policies_that_are_there_to_be_compared_have_no_gate(policy: ReplicaPolicy) -> None:
    assert start_gate_of(DEFAULT_TIERS, ReplicaConfig(policy=policy)) is None
