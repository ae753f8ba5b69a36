"""`run_batch` by static generation: its answers, its limits, and that a batch's longest answer is everybody's wait."""

from typing import Any

import pytest

from backends.base import StepBackend, WorkerLost
from backends.generate import DEFAULT_MAX_TOKENS, GenerateBackend, GenerateSettings
from backends.generate_wire import GenerateInput, GenerateOutput, decode_input, decode_output, encode_input, encode_output
from backends.simulated_steps import SimulatedStepBackend
from batcher.config import Dtype
from batcher.errors import ConfigError
from batcher.types import GREEDY, MAX_BATCH_SIZE, FinishReason, Message, Sampling, Step, Usage

QUICK = {"time_scale": 0.0}


def backend(**model_settings: Any) -> GenerateBackend:
    made = GenerateBackend(GenerateSettings(model="simulated", model_settings={**QUICK, **model_settings}))
    made.load()
    return made


def wanted(content: str, max_tokens: int = 100, stops: tuple[str, ...] = ()) -> str:
    return encode_input(GenerateInput((Message("user", content),), max_tokens, GREEDY, stops))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """The steps that were launched."""
    launched: list[Step] = []
    original = SimulatedStepBackend.launch

    def launch(self: SimulatedStepBackend, step: Step) -> None:
        launched.append(step)
        original(self, step)

    monkeypatch.setattr(SimulatedStepBackend, "launch", launch)
    return launched


# Answers


def test_plain_text_is_answered_with_plain_text() -> None:
    texts = [f"input {number} ü\U0001f600" for number in range(MAX_BATCH_SIZE)]
    assert backend().run_batch(texts) == texts
    assert backend().run_batch(["x" * 1_000, ""]) == ["x" * DEFAULT_MAX_TOKENS, ""]


def test_an_answer_may_go_on_past_the_model_s_own_end_of_it() -> None:
    asked = GenerateInput((Message("user", "hi"),), 5, GREEDY, ignores_stop=True)
    answer = decode_output(backend().run_batch([encode_input(asked)])[0])
    assert (answer.text[:2], answer.finish, answer.usage) == ("hi", FinishReason.MAX_TOKENS, Usage(5, 5))


def test_a_conversation_is_answered_with_text_reason_and_usage() -> None:
    outputs = backend().run_batch(
        [wanted("hello"), "plain", wanted("hello", 3), wanted("hello world", 100, ("zz", "o w", "lo w"))]
    )
    assert outputs[1] == "plain"
    assert [decode_output(outputs[index]) for index in (0, 2, 3)] == [
        GenerateOutput("hello", FinishReason.END_TURN, Usage(8, 6)),
        GenerateOutput("hel", FinishReason.MAX_TOKENS, Usage(8, 3)),
        GenerateOutput("hel", FinishReason.STOP_SEQUENCE, Usage(14, 7), "lo w"),
    ]


@pytest.mark.parametrize(("max_tokens", "reason"), [(4, "max_tokens"), (5, "max_tokens"), (6, "end_turn"), (7, "end_turn")])
def test_max_tokens_is_exact(max_tokens: int, reason: str) -> None:
    (output,) = map(decode_output, backend().run_batch([wanted("hello", max_tokens)]))
    assert output.finish == reason
    assert output.usage.output_tokens == min(max_tokens, 6)


def test_a_character_that_is_cut_is_shown_as_such() -> None:
    (output,) = map(decode_output, backend().run_batch([wanted("a\U0001f600", 3)]))
    assert output.text == "a\ufffd"


@pytest.mark.parametrize("stop", ["aab", "abaab", "\U0001f600", "end"])
def test_a_stop_sequence_is_found_wherever_it_begins(stop: str) -> None:
    text = f"aaabaaabab \U0001f600{'x' * 40} abaab end."
    (output,) = map(decode_output, backend().run_batch([wanted(text, 200, (stop,))]))
    assert (output.text, output.finish) == (text[: text.index(stop)], FinishReason.STOP_SEQUENCE)


# How it runs


def test_a_batch_runs_until_its_longest_answer_ends(steps: list[Step]) -> None:
    backend().run_batch([wanted("x" * 30), wanted("y" * 3), wanted("z")])
    assert [len(step.sequences) for step in steps] == [3] * 2 + [2] * 2 + [1] * 27
    assert [step.step_id for step in steps] == list(range(1, 32))
    assert {sequence.slot for step in steps for sequence in step.sequences} == {0, 1, 2}


def test_prompts_are_computed_first_in_pieces_that_a_step_can_take(steps: list[Step]) -> None:
    contents = ["x" * 3_000, "y" * 1_500, "z"]
    outputs = backend().run_batch([wanted(content, 2) for content in contents])
    assert [decode_output(output).text for output in outputs] == ["xx", "yy", "z"]
    assert [step.num_tokens for step in steps[:4]] == [2048, 955 + 1093, 410 + 4, 3]
    assert [step.num_sampled for step in steps[:4]] == [0, 1, 2, 3]


def test_what_does_not_fit_into_memory_together_runs_one_after_another(steps: list[Step]) -> None:
    small = backend(kv_bytes=10 * 16 * 327_680)  # 10 blocks
    outputs = small.run_batch([wanted("x" * 40, 20), wanted("y" * 40, 20), wanted("z" * 40, 20), "plain"])
    assert [text if text == "plain" else decode_output(text).text[0] for text in outputs] == ["x", "y", "z", "plain"]
    assert {len(step.sequences) for step in steps} == {1, 2}
    assert all(max(sequence.block_table) < 10 for step in steps for sequence in step.sequences)


def test_no_two_sequences_of_a_batch_share_a_block(steps: list[Step]) -> None:
    backend().run_batch([wanted("x" * number, number + 1) for number in range(1, 50)])
    tables = [sequence.block_table for sequence in steps[0].sequences]
    blocks = [block for table in tables for block in table]
    assert len(blocks) == len(set(blocks))


# What cannot be


@pytest.mark.parametrize(
    "text",
    ["\0generate\n", "\0generate\n{}", '\0generate\n{"messages": [], "max_tokens": 1, "sampling": {}, "other": 1}'],
)
def test_a_mark_without_a_document_fails_before_anything_runs(steps: list[Step], text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        backend().run_batch(["good", text])
    assert steps == []


def test_what_is_over_the_context_fails_before_anything_runs(steps: list[Step]) -> None:
    small = backend(kv_bytes=10 * 16 * 327_680)
    for text in (wanted("x" * 100, 100), "x" * 158):
        with pytest.raises(ValueError, match="more than 160"):
            small.run_batch(["good", text])
    assert steps == []
    assert small.run_batch(["x" * 156]) == ["x"]  # One token is left for the answer.


def test_a_step_that_raises_fails_the_batch_and_not_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    made = backend()
    with monkeypatch.context() as patch:

        def collect(self: StepBackend) -> list[int]:
            original(self)  # type: ignore[arg-type]
            raise WorkerLost("the device is gone")

        original = SimulatedStepBackend.collect
        patch.setattr(SimulatedStepBackend, "collect", collect)
        with pytest.raises(WorkerLost):
            made.run_batch(["a"])
    assert made.run_batch(["a"]) == ["a"]
    made.close()


def test_a_model_that_cannot_be_is_refused_at_birth() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        GenerateBackend(GenerateSettings(model="nosuch", dtype=Dtype.FLOAT32))
    with pytest.raises(ConfigError, match="no memory"):
        backend(kv_bytes=1)


# The words between


def test_documents_come_back_as_they_were() -> None:
    asked = GenerateInput((Message("user", "\0ü\U0001f600"),), 7, Sampling(0.5, 0.9, 3, 2**63 - 1), ("a", "b"))
    assert decode_input(encode_input(asked)) == asked
    answered = GenerateOutput("ü", FinishReason.STOP_SEQUENCE, Usage(0, 0), "\0")
    assert decode_output(encode_output(answered)) == answered


@pytest.mark.parametrize("text", ["", "hello", "\0", "generate\n{}", "{}", '{"messages": []}', "\0generate"])
def test_plain_text_is_no_document(text: str) -> None:
    assert decode_input(text) is None
