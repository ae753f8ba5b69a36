"""A replica with its real thread: many callers at once, cancels at any moment, full queues, draining and closing."""

import random
import threading
import time

import anyio
import pytest

from batcher.config import ReplicaConfig, ReplicaPolicy
from batcher.errors import ServerFault, ShuttingDown
from batcher.service.generation import NO_USAGE, Event
from batcher.service.replica import Replica
from batcher.service.replica_state import ReplicaState
from batcher.types import FinishReason, Outcome, Usage
from tests.service.scripted import CONFIG, ScriptedModel, Transcript, ask, running
from tests.service.serving import until

pytestmark = pytest.mark.anyio

BOTH_DEPTHS = pytest.mark.parametrize("depth", [1, 2])


async def test_it_is_ready_when_the_model_is_loaded_and_not_before() -> None:
    replica = Replica(ScriptedModel(), CONFIG)
    told = Transcript()
    replica.submit(ask("early"), told)
    assert told.failed.outcome is Outcome.REJECTED_CAPACITY
    assert told.failed.error.retry_after_s == 2
    assert not replica.is_ready
    replica.start()
    await replica.wait_ready()
    assert replica.state is ReplicaState.READY
    await replica.close()
    with pytest.raises(ServerFault):
        await replica.wait_ready()


@BOTH_DEPTHS
async def test_it_answers_many_at_once_as_each_alone(depth: int) -> None:
    texts = [f"{number}: " + "añ€🙂" * (number % 20) for number in range(200)]
    async with running(ScriptedModel(depth=depth)) as replica:
        told = [Transcript() for _ in texts]
        for text, transcript in zip(texts, told, strict=True):
            replica.submit(ask(text), transcript)
        await until(lambda: all(transcript.end is not None for transcript in told))
        assert [transcript.text for transcript in told] == texts
        assert {transcript.finished.finish for transcript in told} == {FinishReason.END_TURN}
        assert replica.outcomes["paid"][Outcome.OK] == 200
        assert sum(replica.meters.tiers["paid"].e2e_s.counts) == 200


@BOTH_DEPTHS
@pytest.mark.parametrize("seed", range(2))
async def test_nothing_is_left_of_those_that_leave_at_any_moment(depth: int, seed: int) -> None:
    """2,000 in all: before the first step, in the middle of a prompt or an answer, just at the end; some from a callback."""
    print(f"{seed=}")
    rng = random.Random(seed)
    async with running(ScriptedModel(depth=depth)) as replica:
        stayed: list[tuple[str, Transcript]] = []
        num_left, usages = 0, list[Usage]()
        for number in range(600):
            text, told = f"{number} " + "abc" * rng.randrange(60), Transcript()
            max_tokens, stop = rng.randrange(1, 200), "abcabca" if rng.random() < 0.1 else "never"
            expected = text[:max_tokens].partition(stop)[0]
            tier = rng.choice(["paid", "free"])
            sequence_id = replica.submit(ask(text, tier=tier, max_tokens=max_tokens, stop=(stop,)), told)
            if rng.random() < 0.15:
                stayed.append((expected, told))
                continue
            if rng.random() < 0.7:
                await anyio.sleep(rng.choice([0.0, 0.0, 0.001, 0.003]))
            if told.end is not None:
                stayed.append((expected, told))
            else:
                num_left += 1
                told.is_deaf = True
                replica.cancel(sequence_id, usages.append)
                replica.cancel(sequence_id, usages.append)  # Twice is once.
        await until(lambda: all(told.end is not None for _, told in stayed) and replica.num_live == 0)
        assert num_left == len(usages) > 300
        assert [told.text for _, told in stayed] == [expected for expected, _ in stayed]
        outcomes = [replica.outcomes[tier] for tier in CONFIG.tiers]
        assert sum(sum(each.values()) for each in outcomes) == 600
        assert sum(each[Outcome.CANCELLED] for each in outcomes) == num_left


async def test_one_who_leaves_from_its_own_callback_hears_nothing_more() -> None:
    async with running(ScriptedModel(repeats=True)) as replica:
        heard: list[Event] = []
        usages: list[Usage] = []

        def on_event(event: Event) -> None:
            heard.append(event)
            replica.cancel(sequence_id, usages.append)

        sequence_id = replica.submit(ask("x" * 50, max_tokens=900), on_event)
        await until(lambda: bool(usages))
        assert len(heard) == 1
        assert usages[0].input_tokens == 53
        assert 1 <= usages[0].output_tokens <= 900  # All of them, if this thread stood still meanwhile.


async def test_usage_of_one_who_leaves_is_what_was_sampled() -> None:
    model = ScriptedModel(repeats=True, depth=1, pace_s=0.005)
    async with running(model) as replica:
        told, usages = Transcript(), list[Usage]()
        sequence_id = replica.submit(ask("x" * 50, max_tokens=900), told)
        await until(lambda: told.num_tokens >= 3)
        told.is_deaf = True
        replica.cancel(sequence_id, usages.append)
        await until(lambda: bool(usages))
        sampled = sum(step.num_sampled for step in model.steps)
        assert usages[0].output_tokens == sampled


async def test_a_callback_that_raises_costs_nobody_else() -> None:
    async with running() as replica:

        def on_event(event: Event) -> None:
            raise ConnectionError("the socket is gone")

        told = Transcript()
        replica.submit(ask("unlucky"), on_event)
        replica.submit(ask("lucky"), told)
        await until(lambda: told.end is not None)
        assert told.text == "lucky"
        await until(lambda: replica.num_live == 0)
        assert replica.outcomes["paid"][Outcome.CANCELLED] == 1


async def test_a_stalled_engine_lets_nothing_pile_up() -> None:
    model = ScriptedModel()
    config = ReplicaConfig(num_blocks=256, max_num_seqs=2, max_model_len=1024, max_waiting=5)
    async with running(model, config) as replica:
        model.gate = threading.Event()
        first = Transcript()
        replica.submit(ask("first"), first)
        await until(lambda: bool(model.steps))
        told = [Transcript() for _ in range(50)]
        for transcript in told:
            replica.submit(ask("next"), transcript)
        refused = [transcript for transcript in told if transcript.end]
        assert len(refused) == 45
        assert {transcript.failed.error.retry_after_s for transcript in refused} == {1}
        assert {transcript.failed.outcome for transcript in refused} == {Outcome.REJECTED_CAPACITY}
        model.gate.set()
        await until(lambda: first.end is not None and all(transcript.end is not None for transcript in told))
        assert [transcript.text for transcript in told] == ["next"] * 5 + [""] * 45


async def test_a_full_queue_of_one_tier_keeps_no_higher_one_out() -> None:
    """The replica counted all that waited and refused paid requests at once, before the scheduler could let free ones give way:
    at three times the capacity half of the paid traffic was turned away that alone would have been served."""
    config = ReplicaConfig(num_blocks=256, max_num_seqs=1, max_model_len=4096, max_waiting=2)
    model = ScriptedModel(repeats=True, pace_s=0.005)
    async with running(model, config) as replica:
        replica.submit(ask("runs", max_tokens=3000), Transcript())
        await until(lambda: replica.statistics().num_running == 1)
        free = [Transcript() for _ in range(2)]
        for transcript in free:
            replica.submit(ask("waits", tier="free"), transcript)
        await until(lambda: replica.statistics().num_waiting == 2)
        paid = [Transcript() for _ in range(3)]
        for transcript in paid:
            replica.submit(ask("waits"), transcript)
        await until(lambda: all(transcript.end is not None for transcript in [*free, paid[2]]))
        assert {transcript.failed.outcome for transcript in [*free, paid[2]]} == {Outcome.REJECTED_CAPACITY}
        assert (paid[0].end, paid[1].end) == (None, None)
        model.pace_s = 0.0


async def test_who_is_refused_or_too_late_is_told_before_the_next_step_and_not_after_it() -> None:
    """A step may take a second where a long prompt is computed, and what it had found in its inbox was answered at its end."""
    model = ScriptedModel(depth=1, repeats=True)
    config = ReplicaConfig(num_blocks=256, max_num_seqs=1, max_model_len=1024)
    async with running(model, config) as replica:
        this_step, next_step = threading.Event(), threading.Event()
        model.gate = this_step
        replica.submit(ask("runs", max_tokens=5), Transcript())
        await until(lambda: model.num_held == 1)
        late, refused = Transcript(), Transcript()
        replica.submit(ask("late", deadline_at=time.monotonic()), late)
        replica.submit(ask("too long", max_tokens=5000), refused)
        model.gate = next_step
        this_step.set()
        await until(lambda: late.end is not None and refused.end is not None)
        assert "no place became free" in str(late.failed.error), "the engine's own word, before anybody looks after it"
        assert "5000" in str(refused.failed.error)
        model.gate = this_step
        next_step.set()


async def test_a_stalled_engine_takes_a_tier_however_many_of_a_lower_one_came_before() -> None:
    model = ScriptedModel()
    config = ReplicaConfig(num_blocks=256, max_num_seqs=2, max_model_len=1024, max_waiting=5)
    async with running(model, config) as replica:
        model.gate = threading.Event()
        replica.submit(ask("first"), Transcript())
        await until(lambda: bool(model.steps))
        free, paid = [[Transcript() for _ in range(7)] for _ in range(2)]
        for transcript in free:
            replica.submit(ask("free", tier="free"), transcript)
        for transcript in paid:
            replica.submit(ask("paid"), transcript)
        assert [transcript.end is None for transcript in free] == [True] * 5 + [False] * 2
        assert [transcript.end is None for transcript in paid] == [True] * 5 + [False] * 2
        model.gate.set()
        await until(lambda: all(transcript.end is not None for transcript in [*free, *paid]))
        assert [transcript.text for transcript in paid] == ["paid"] * 5 + [""] * 2
        assert {transcript.text for transcript in free} == {""}


async def test_a_router_is_told_what_waits_and_what_is_free() -> None:
    model = ScriptedModel(depth=1)
    config = ReplicaConfig(num_blocks=64, max_num_seqs=1, max_model_len=512)
    async with running(model, config) as replica:
        model.gate = threading.Event()
        told = [Transcript() for _ in range(3)]
        replica.submit(ask("x" * 30), told[0])
        await until(lambda: bool(model.steps))
        for transcript in told[1:]:
            replica.submit(ask("y" * 97, tier="free"), transcript)
        load = replica.load()
        assert (load["ready"], load["live"], load["waiting_tokens"]) == (True, 3, {"paid": 0, "free": 200})
        model.gate.set()
        await until(lambda: all(transcript.end is not None for transcript in told))
        await until(lambda: replica.load()["running"] == 0)
        load = replica.load()
        assert (load["live"], load["waiting"], load["held_blocks"]) == (0, {"paid": 0, "free": 0}, 0)
        assert (load["free_blocks"], load["cached_blocks"]) == (49, 15)


async def test_prompts_that_wait_are_bounded_in_tokens_too() -> None:
    model = ScriptedModel()
    config = ReplicaConfig(num_blocks=256, max_num_seqs=2, max_model_len=1024, max_waiting_tokens=1000)
    async with running(model, config) as replica:
        model.gate = threading.Event()
        replica.submit(ask("first"), Transcript())
        await until(lambda: bool(model.steps))
        told = [Transcript() for _ in range(5)]
        for transcript in told:
            replica.submit(ask("x" * 297), transcript)
        assert [transcript.end is not None for transcript in told] == [False, False, False, True, True]
        model.gate.set()
        await until(lambda: all(transcript.end is not None for transcript in told))


async def test_one_that_waits_in_vain_expires_though_nothing_else_happens() -> None:
    """The thread sleeps until the deadline: under the static policy one request waits for another to make a batch."""
    config = ReplicaConfig(
        policy=ReplicaPolicy.STATIC, num_blocks=256, max_num_seqs=2, max_model_len=1024, static_timeout_s=60.0
    )
    async with running(config=config) as replica:
        told = Transcript()
        replica.submit(ask("x", deadline_at=time.monotonic() + 0.02), told)
        await until(lambda: told.end is not None)
        assert told.failed.outcome is Outcome.EXPIRED
        assert told.failed.usage == NO_USAGE


async def test_draining_ends_what_was_accepted_and_refuses_the_rest() -> None:
    async with running() as replica:
        accepted, late = Transcript(), Transcript()
        replica.submit(ask("accepted" * 20), accepted)
        replica.drain()
        replica.submit(ask("late"), late)
        assert not replica.is_ready
        assert late.failed.outcome is Outcome.REJECTED_SHUTDOWN
        await replica.wait_idle()
        assert accepted.text == "accepted" * 20


async def test_closing_ends_live_streams_and_the_thread() -> None:
    model = ScriptedModel(repeats=True, pace_s=0.005)
    replica = Replica(model, CONFIG)
    replica.start()
    await replica.wait_ready()
    told = [Transcript() for _ in range(20)]
    for transcript in told:
        replica.submit(ask("x" * 50, max_tokens=900), transcript)
    await until(lambda: told[0].num_tokens > 3)
    await replica.close()
    assert {transcript.failed.outcome for transcript in told} == {Outcome.REJECTED_SHUTDOWN}
    assert all(isinstance(transcript.failed.error, ShuttingDown) for transcript in told)
    assert told[0].failed.usage == Usage(53, told[0].num_tokens)
    assert replica.num_live == 0
    assert replica._thread.join(0.0)
    assert model.backends[0].is_closed
    late = Transcript()
    replica.submit(ask("late"), late)
    assert late.failed.outcome is Outcome.REJECTED_SHUTDOWN


async def test_closing_one_that_never_started_is_quick() -> None:
    replica = Replica(ScriptedModel(), CONFIG)
    await replica.close()
    assert replica.state is ReplicaState.ENDED
