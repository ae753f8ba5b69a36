"""A replica whose backend raises, dies, hangs or does not start: every caller is told, and it comes back or says why not."""

import asyncio
import logging
import threading
import time

import pytest

from backends.base import WorkerLost
from batcher.config import ReplicaConfig
from batcher.errors import ConfigError, Expired, Overloaded, ServerFault
from batcher.service import replica as replica_module
from batcher.service.engine import MAX_FAILED_STEPS
from batcher.service.replica import Replica
from batcher.service.replica_state import ReplicaState
from batcher.types import Outcome, Step
from tests.service.scripted import CONFIG, ScriptedModel, Transcript, ask, running
from tests.service.serving import until

pytestmark = pytest.mark.anyio

FATAL = pytest.mark.parametrize(
    "fault",
    [WorkerLost("gone"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError()],
    ids=lambda fault: type(fault).__name__,
)


def ask_many(replica: Replica, num: int, text: str = "hello" * 10) -> list[Transcript]:
    told = [Transcript() for _ in range(num)]
    for transcript in told:
        replica.submit(ask(text), transcript)
    return told


async def until_told(told: list[Transcript]) -> None:
    await until(lambda: all(transcript.end is not None for transcript in told))


async def assert_serves(replica: Replica) -> None:
    await until(lambda: replica.is_ready)
    told = ask_many(replica, 3, "still here")
    await until_told(told)
    assert [transcript.text for transcript in told] == ["still here"] * 3


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("fault", [ValueError("no"), MemoryError()], ids=lambda fault: type(fault).__name__)
async def test_a_step_that_raises_is_an_error_for_those_in_it(fault: Exception, depth: int) -> None:
    model = ScriptedModel(depth=depth)
    async with running(model) as replica:
        model.step_faults = [None] * 5 + [fault]
        told = ask_many(replica, 40)
        await until_told(told)
        failed = [transcript for transcript in told if transcript.text != "hello" * 10]
        assert 1 <= len(failed) <= 2 * CONFIG.max_num_seqs
        assert {transcript.failed.outcome for transcript in failed} == {Outcome.FAILED}
        assert all(isinstance(transcript.failed.error, ServerFault) for transcript in failed)
        assert all(transcript.failed.usage.output_tokens == transcript.num_tokens for transcript in failed)
        assert len(model.backends) == 1
        await assert_serves(replica)


@FATAL
@pytest.mark.parametrize("depth", [1, 2])
async def test_a_lost_backend_is_replaced_and_nobody_waits_for_it(fault: BaseException, depth: int) -> None:
    model = ScriptedModel(depth=depth)
    async with running(model) as replica:
        model.step_faults = [None] * 5 + [fault]
        told = ask_many(replica, 40)
        await until_told(told)
        assert {transcript.failed.outcome for transcript in told if transcript.text != "hello" * 10} == {Outcome.FAILED}
        await until(lambda: len(model.backends) == 2)
        assert model.backends[0].is_closed
        assert replica.meters.num_losses == 1
        await assert_serves(replica)


async def test_failures_in_a_row_are_a_loss() -> None:
    model = ScriptedModel(depth=1)
    async with running(model) as replica:
        model.step_faults = [ValueError("no")] * MAX_FAILED_STEPS
        told = ask_many(replica, CONFIG.max_num_seqs * MAX_FAILED_STEPS)
        await until_told(told)
        await until(lambda: len(model.backends) == 2)
        await assert_serves(replica)


async def test_while_the_backend_is_down_callers_are_refused_at_once() -> None:
    model = ScriptedModel()
    async with running(model) as replica:
        model.load_gate = threading.Event()
        model.step_faults = [WorkerLost("gone")]
        first = ask_many(replica, 1)
        await until_told(first)
        await until(lambda: replica.state is ReplicaState.RESTARTING)
        (late,) = ask_many(replica, 1)
        assert late.failed.outcome is Outcome.REJECTED_CAPACITY
        assert late.failed.error.retry_after_s == 2
        model.load_gate.set()
        await assert_serves(replica)


async def test_who_comes_between_the_loss_and_its_news_is_refused_as_soon_as_it_is_known() -> None:
    """Such a request sits in the inbox, and nobody looks there while a model loads."""
    model = ScriptedModel()
    async with running(model) as replica:
        model.load_gate = threading.Event()
        model.gate = threading.Event()
        model.step_faults = [WorkerLost("gone")]
        first = ask_many(replica, 1)
        await until(lambda: bool(model.steps))
        late = ask_many(replica, 3)
        model.gate.set()
        time.sleep(0.05)  # noqa: ASYNC251  The loop hears nothing meanwhile.
        late += ask_many(replica, 3)
        await until_told(first + late)
        assert {transcript.failed.outcome for transcript in late} <= {Outcome.REJECTED_CAPACITY, Outcome.FAILED}
        assert not model.load_gate.is_set()
        model.load_gate.set()
        await assert_serves(replica)


async def test_a_backend_that_does_not_start_is_tried_again() -> None:
    model = ScriptedModel()
    model.load_faults = [MemoryError(), WorkerLost("gone"), SystemExit(3)]
    async with running(model) as replica:
        assert len(model.backends) == 4
        model.step_faults = [WorkerLost("gone")]
        model.load_faults = [ConfigError("the device was taken meanwhile"), RuntimeError("not yet")]
        await until_told(ask_many(replica, 1))
        await until(lambda: len(model.backends) == 7)
        await assert_serves(replica)


async def test_a_backend_that_cannot_ever_start_says_so() -> None:
    model = ScriptedModel()
    model.load_faults = [ConfigError("no such device")]
    replica = Replica(model, CONFIG)
    replica.start()
    with pytest.raises(ConfigError, match="no such device"):
        await replica.wait_ready()
    assert replica.config_error is not None
    assert not replica.is_ready
    (told,) = ask_many(replica, 1)
    assert told.failed.outcome is Outcome.FAILED
    await replica.close()
    assert len(model.backends) == 1


async def test_a_step_that_hangs_is_an_error_and_not_a_silence() -> None:
    """A thread cannot be killed: its callers are answered without it, and if it comes back it serves again."""
    model = ScriptedModel()
    config = ReplicaConfig(num_blocks=256, max_num_seqs=4, max_model_len=1024)
    async with running(model, config, stall_s=0.5) as replica:
        model.gate = threading.Event()
        told = ask_many(replica, 10)
        await until(lambda: bool(model.steps))
        hasty = Transcript()
        replica.submit(ask("hasty", deadline_at=time.monotonic() + 0.01), hasty)
        await until(lambda: hasty.end is not None)
        assert isinstance(hasty.failed.error, Expired)
        await until_told(told)
        assert not replica.is_ready
        assert {transcript.failed.outcome for transcript in told} == {Outcome.FAILED}
        (late,) = ask_many(replica, 1)
        assert isinstance(late.failed.error, Overloaded)
        model.gate.set()
        await assert_serves(replica)
        assert sum(replica.outcomes["paid"].values()) == 10 + 2 + 3


async def test_a_process_that_was_stopped_has_no_hanging_engine(caplog: pytest.LogCaptureFixture) -> None:
    """Stopped for a minute (a debugger, a machine that is moved) and woken, it took its own sleep for a step that hangs, and
    failed every stream that would have gone on."""
    model = ScriptedModel()
    async with running(model, CONFIG, stall_s=2.0) as replica:
        model.gate = threading.Event()
        told = ask_many(replica, 3)
        await until(lambda: bool(model.steps))
        awake = replica._clock
        replica._clock = lambda: awake() + 100.0
        watched_at = replica._stuck_time._asked_at
        await until(lambda: replica._stuck_time._asked_at > watched_at + 100.0)
        assert replica.is_ready
        model.gate.set()
        await until_told(told)
        assert [transcript.finished.usage.output_tokens for transcript in told] == [51] * 3
    assert "engine_stalled" not in caplog.text


async def test_closing_does_not_wait_for_a_step_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "CLOSE_S", 0.05)
    model = ScriptedModel()
    replica = Replica(model, CONFIG)
    replica.start()
    await replica.wait_ready()
    model.gate = threading.Event()
    told = ask_many(replica, 3)
    await until(lambda: bool(model.steps))
    await replica.close()
    assert {transcript.failed.outcome for transcript in told} == {Outcome.REJECTED_SHUTDOWN}
    assert replica.num_live == 0
    model.gate.set()
    await until(lambda: replica._thread.join(0.0))


async def test_a_bug_in_the_scheduler_ends_everybody_and_the_replica(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica(ScriptedModel(), CONFIG)
    replica.start()
    await replica.wait_ready()

    def schedule(*, now: float) -> Step | None:
        raise AssertionError("a block has two owners")

    replica._engine._scheduler.schedule = schedule  # type: ignore[method-assign]
    told = ask_many(replica, 20)
    await until_told(told)
    assert {transcript.failed.outcome for transcript in told} == {Outcome.FAILED}
    assert replica.state is ReplicaState.ENDED
    assert not replica.is_ready
    assert "engine_failed" in [record.message for record in caplog.records]
    (late,) = ask_many(replica, 1)
    assert late.failed.error.message == "internal error"
    assert replica.num_live == 0
    await replica.close()


async def test_a_failed_check_is_told_and_drains_but_does_not_kill(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica(ScriptedModel(), CONFIG)

    def check(*, is_deep: bool = False) -> None:
        raise AssertionError("a page is counted twice")

    replica._engine.check = check  # type: ignore[method-assign]
    with caplog.at_level(logging.ERROR):
        replica.start()
        await replica.wait_ready()
        await until(lambda: not replica.is_ready)
    assert replica.num_failed_checks == 1
    assert "engine_check_failed" in [record.message for record in caplog.records]
    assert replica.state is ReplicaState.READY
    (late,) = ask_many(replica, 1)
    assert late.failed.outcome is Outcome.REJECTED_SHUTDOWN
    await replica.wait_idle()
    await replica.close()
