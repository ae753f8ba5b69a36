"""The engine alone, on this thread: texts, usage, stop strings, depth, and what a failing backend costs whom."""

import asyncio
from collections import defaultdict

import pytest

from backends.base import KvLayout, WorkerLost
from batcher.config import ReplicaConfig
from batcher.errors import ConfigError, ServerFault, WorkerFailed
from batcher.service.engine import MAX_FAILED_STEPS, Engine
from batcher.service.generation import NO_USAGE, Cancelled, Delta, Events, GenerationRequest
from batcher.types import FinishReason, Outcome, Usage
from tests.service.scripted import CONFIG, ScriptedModel, Transcript, ask

BOTH_DEPTHS = pytest.mark.parametrize("depth", [1, 2])


class Bench:
    """An engine and what its callers were told. The clock stands still until a test moves it."""

    def __init__(self, model: ScriptedModel | None = None, config: ReplicaConfig = CONFIG) -> None:
        self.model = model or ScriptedModel()
        self.now = 100.0
        self.engine = Engine(self.model, config, clock=lambda: self.now)
        self.engine.load()
        self.told: dict[int, Transcript] = defaultdict(Transcript)

    def take(self, events: Events) -> Events:
        for sequence_id, event in events:
            self.told[sequence_id](event)
        return events

    def submit(self, sequence_id: int, request: GenerationRequest) -> None:
        self.take(self.engine.submit(sequence_id, request, now=self.now))

    def step(self) -> Events:
        return self.take(self.engine.step())

    def run(self) -> None:
        self.take(list(self.engine.run()))
        self.assert_empty()

    def assert_empty(self) -> None:
        assert self.engine.num_live == 0
        self.engine.check(is_deep=True)


@BOTH_DEPTHS
def test_it_answers_many_at_once_as_each_alone(depth: int) -> None:
    bench = Bench(ScriptedModel(depth=depth))
    texts = {number: f"{number}: " + "xyz" * number for number in range(1, 31)}
    for number, text in texts.items():
        bench.submit(number, ask(text))
    bench.run()
    for number, text in texts.items():
        told = bench.told[number]
        assert told.text == text
        assert told.finished.finish is FinishReason.END_TURN
        assert told.finished.usage == Usage(len(text) + 3, len(text) + 1)


def test_characters_come_whole_and_their_tokens_are_counted() -> None:
    bench = Bench()
    bench.submit(1, ask("añ€🙂!"))
    events = [event for _, event in bench.engine.run()]
    assert [(event.text, event.num_tokens) for event in events if isinstance(event, Delta)] == [
        ("a", 1),
        ("ñ", 2),
        ("€", 3),
        ("🙂", 4),
        ("!", 1),
    ]


def test_a_character_that_max_tokens_cuts_is_shown_as_replaced() -> None:
    bench = Bench()
    bench.submit(1, ask("a🙂", max_tokens=3))
    bench.run()
    assert bench.told[1].text == "a\ufffd"
    assert bench.told[1].finished.finish is FinishReason.MAX_TOKENS
    assert bench.told[1].finished.usage.output_tokens == 3


@BOTH_DEPTHS
def test_a_stop_string_ends_the_answer_before_it_and_its_tokens_are_billed(depth: int) -> None:
    bench = Bench(ScriptedModel(depth=depth))
    bench.submit(1, ask("one STO two STOP three", stop=("STOP", "never")))
    bench.submit(2, ask("one STO two STOP three"))
    bench.run()
    assert bench.told[1].text == "one STO two "
    finished = bench.told[1].finished
    assert finished.finish is FinishReason.STOP_SEQUENCE
    assert finished.stop_sequence == "STOP"
    assert finished.usage.output_tokens == len("one STO two STOP")
    assert bench.told[2].text == "one STO two STOP three"
    assert bench.told[2].finished.stop_sequence is None


def test_a_stop_string_in_the_very_last_token_counts() -> None:
    bench = Bench()
    bench.submit(1, ask("abc", stop=("c",), max_tokens=3))
    bench.run()
    assert bench.told[1].text == "ab"
    assert bench.told[1].finished.finish is FinishReason.STOP_SEQUENCE


def test_what_was_held_back_for_a_stop_string_comes_with_the_end() -> None:
    bench = Bench()
    bench.submit(1, ask("abST", stop=("STOP",)))
    bench.run()
    assert bench.told[1].text == "abST"
    assert bench.told[1].finished.text == "ST"


def test_stop_tokens_may_be_ignored() -> None:
    bench = Bench()
    bench.submit(1, ask("hi", max_tokens=5, ignores_stop=True))
    bench.run()
    assert bench.told[1].finished.finish is FinishReason.MAX_TOKENS
    assert bench.told[1].finished.usage.output_tokens == 5


def test_a_device_that_queues_has_the_next_step_before_the_last_is_collected() -> None:
    bench = Bench(ScriptedModel(depth=2))
    bench.submit(1, ask("hello"))
    bench.step()
    assert len(bench.model.steps) == 2
    bench.step()
    assert len(bench.model.steps) == 3
    assert bench.told[1].text == "he"


@BOTH_DEPTHS
def test_a_cancelled_one_gives_back_all_it_held_within_two_steps(depth: int) -> None:
    bench = Bench(ScriptedModel(depth=depth, repeats=True))
    bench.submit(1, ask("x" * 100, max_tokens=800))
    for _ in range(10):
        bench.step()
    num_tokens = bench.told[1].num_tokens
    (event,) = bench.take(bench.engine.cancel(1, now=bench.now))
    assert event == (1, Cancelled(Usage(103, num_tokens)))
    bench.step()
    bench.step()
    assert bench.engine.wait_s() is None
    bench.assert_empty()
    assert bench.engine.cancel(1, now=bench.now) == []


def test_one_that_waits_expires_and_one_that_runs_does_not() -> None:
    bench = Bench(config=ReplicaConfig(num_blocks=64, max_num_seqs=1, max_model_len=256))
    bench.submit(1, ask("x" * 30, deadline_at=bench.now + 1))
    bench.step()
    bench.submit(2, ask("y", deadline_at=bench.now + 1))
    bench.now += 2
    bench.step()
    assert bench.told[2].failed.outcome is Outcome.EXPIRED
    assert bench.told[2].failed.usage == NO_USAGE
    bench.run()
    assert bench.told[1].text == "x" * 30


@BOTH_DEPTHS
@pytest.mark.parametrize("fault", [ValueError("no"), MemoryError()], ids=repr)
def test_a_step_that_raises_costs_its_sequences_and_nobody_else(depth: int, fault: Exception) -> None:
    model = ScriptedModel(depth=depth)
    bench = Bench(model)
    bench.submit(1, ask("hello"))
    bench.step()
    model.step_faults = [fault]
    bench.step()
    assert bench.told[1].failed.outcome is Outcome.FAILED
    assert isinstance(bench.told[1].failed.error, ServerFault)
    assert bench.told[1].failed.usage.output_tokens == bench.told[1].num_tokens
    assert bench.engine.is_up
    bench.submit(2, ask("after"))
    bench.run()
    assert bench.told[2].text == "after"
    assert len(model.backends) == 1


@BOTH_DEPTHS
def test_a_launch_that_raises_costs_the_same(depth: int) -> None:
    model = ScriptedModel(depth=depth)
    model.launch_faults = [ValueError("no")]
    bench = Bench(model)
    bench.submit(1, ask("hello"))
    bench.submit(2, ask("there"))
    bench.step()
    assert {bench.told[number].failed.outcome for number in (1, 2)} == {Outcome.FAILED}
    bench.submit(3, ask("after"))
    bench.run()
    assert bench.told[3].text == "after"


@pytest.mark.parametrize(
    "fault",
    [WorkerLost("gone"), SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()],
    ids=lambda fault: type(fault).__name__,
)
@BOTH_DEPTHS
def test_a_lost_backend_ends_everything_and_another_one_takes_over(fault: BaseException, depth: int) -> None:
    model = ScriptedModel(depth=depth)
    bench = Bench(model)
    for number in range(12):
        bench.submit(number, ask("hello" * 5))
    bench.step()
    model.step_faults = [fault]
    bench.step()
    assert bench.engine.lost is fault
    for number in range(12):
        assert isinstance(bench.told[number].failed.error, WorkerFailed)
    bench.assert_empty()
    bench.submit(20, ask("now?"))
    assert bench.told[20].failed.outcome is Outcome.REJECTED_CAPACITY
    assert bench.told[20].failed.error.retry_after_s is not None
    bench.engine.load()
    assert model.backends[0].is_closed
    bench.submit(21, ask("hello" * 5))
    bench.run()
    assert bench.told[21].text == "hello" * 5


def test_a_backend_that_fails_again_and_again_is_given_up() -> None:
    model = ScriptedModel(depth=1)
    model.step_faults = [ValueError("no")] * MAX_FAILED_STEPS
    bench = Bench(model)
    for number in range(MAX_FAILED_STEPS):
        assert bench.engine.is_up
        bench.submit(number, ask("hello"))
        bench.step()
    assert isinstance(bench.engine.lost, ValueError)


def test_run_raises_what_the_backend_was_lost_to() -> None:
    bench = Bench()
    bench.model.step_faults = [None, WorkerLost("gone")]
    bench.submit(1, ask("hello"))
    with pytest.raises(WorkerLost, match="gone"):
        bench.run()


def test_the_wrong_number_of_tokens_is_a_failed_step() -> None:
    bench = Bench(ScriptedModel(depth=1))
    bench.model.backends[0].change_tokens = lambda tokens: [*tokens, 1]
    bench.submit(1, ask("hello"))
    bench.step()
    assert bench.told[1].failed.outcome is Outcome.FAILED
    assert bench.engine.meters.num_failed_steps == 1


def test_a_token_that_is_no_text_ends_its_sequence_only() -> None:
    bench = Bench()
    bench.submit(1, ask("good"))
    bench.step()
    bench.submit(2, ask("bad"))
    bench.model.backends[0].change_tokens = lambda tokens: [*tokens[:-1], -7] if len(tokens) == 2 else tokens
    bench.engine._answers._token_bytes = _strict_bytes
    bench.run()
    assert bench.told[1].text == "good"
    assert bench.told[2].failed.outcome is Outcome.FAILED


def _strict_bytes(token: int) -> bytes:
    if token < 0:
        raise IndexError(token)
    return bytes((token,))


def test_a_backend_that_cannot_start_says_so_and_may_be_tried_again() -> None:
    model = ScriptedModel()
    model.load_faults = [ConfigError("no such device")]
    engine = Engine(model, CONFIG)
    with pytest.raises(ConfigError):
        engine.load()
    assert isinstance(engine.lost, ConfigError)
    engine.load()
    assert engine.is_up
    assert model.backends[0].is_closed


def test_measures_count_from_the_arrival() -> None:
    bench = Bench(ScriptedModel(depth=1))
    bench.take(bench.engine.submit(1, ask("abc"), now=bench.now, arrived_at=bench.now - 0.5))
    while bench.engine.num_live:
        bench.now += 0.25
        bench.step()
    meters = bench.engine.meters
    tier = meters.tiers["paid"]
    assert tier.queue_s.sum == tier.ttft_s.sum == 0.75
    assert tier.tpot_s.sum == 0.25
    assert tier.e2e_s.sum == 1.5
    assert (meters.num_input_tokens, meters.num_output_tokens) == (6, 4)
    assert sum(meters.step_s.counts) == sum(meters.step_sequences.counts) == 4


def test_a_layout_has_room_for_a_full_step() -> None:
    layout = Bench().engine.layout
    assert layout == KvLayout(num_blocks=256, max_num_seqs=8, max_model_len=1024, max_step_tokens=64 + 8)
