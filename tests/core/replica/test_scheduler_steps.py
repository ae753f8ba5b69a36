"""What a step holds, and what an update says."""

import pytest

from batcher.core.effects import Emit, EndSequence
from batcher.core.replica.scheduler import max_step_tokens
from batcher.core.replica.sequence import SequenceState
from batcher.errors import InvalidRequest, ServerFault
from batcher.types import PENDING, FinishReason, Outcome, Step
from tests.core.replica.fake_device import a_sequence, a_shell, alone


def parts(step: Step | None) -> list[tuple[int, int, int, bool]]:
    """Of each sequence of a step: id, start, number of tokens, whether it is sampled."""
    assert step is not None
    return [(part.sequence_id, part.start, len(part.tokens), part.is_sampled) for part in step.sequences]


def test_a_prompt_is_computed_and_then_each_token() -> None:
    shell = a_shell()
    assert shell.submit(a_sequence(1, 4, 3)) == []

    assert parts(shell.step()) == [(1, 0, 4, True)]
    assert parts(shell.step()) == [(1, 4, 1, True)]
    assert parts(shell.step()) == [(1, 5, 1, True)]
    assert shell.step() is None
    assert shell.finishes == {1: FinishReason.MAX_TOKENS}
    shell.check_all_ended()


def test_nothing_to_do_is_no_step() -> None:
    shell = a_shell()
    assert shell.schedule() is None
    assert not shell.scheduler.has_work
    assert shell.scheduler.next_deadline() is None


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 15, 16, 17, 31, 32, 33])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_prompt", [1, 15, 16, 17, 32, 33, 70])
def test_max_tokens_is_exact(max_tokens: int, depth: int, num_prompt: int) -> None:
    """B42, around the size of a block and of a chunk, with one step in flight and with two."""
    shell = a_shell()
    shell.submit(a_sequence(1, num_prompt, max_tokens))

    shell.run(depth=depth)

    assert len(shell.outputs[1]) == max_tokens
    assert sum(step.num_sampled for step in shell.steps) == max_tokens, "a token was computed for nobody"
    shell.check_all_ended()


def test_a_stop_token_ends_the_turn_even_as_the_last_allowed() -> None:
    """B42: the reason is end_turn when both fall together."""
    prompt = [1, 2, 3]
    output, _ = alone(prompt, 5, frozenset())
    for num in range(1, 6):
        stop_ids = frozenset({output[num - 1]})
        expected = alone(prompt, num, stop_ids)
        shell = a_shell()
        shell.submit(a_sequence(1, prompt, num, stop_ids=stop_ids))
        shell.run()
        assert (shell.outputs[1], shell.finishes[1]) == expected
        assert shell.finishes[1] is FinishReason.END_TURN


def test_decodes_go_first_and_a_long_prompt_rides_along_in_chunks() -> None:
    """B61: eight streams get a token in every step while a prompt of 300 tokens is computed."""
    shell = a_shell(max_num_seqs=16, prefill_chunk=32)
    for sequence_id in range(1, 9):
        shell.submit(a_sequence(sequence_id, 2, 100))
    shell.step()
    shell.submit(a_sequence(9, 300, 1))

    for index in range(10):
        step = parts(shell.step())
        num = min(32, 300 - 32 * index)
        assert [part[0] for part in step[:8]] == list(range(1, 9))
        assert step[8:] == [(9, 32 * index, num, index == 9)]
    assert 9 in shell.ends


def test_prompts_share_the_budget_in_order_of_start() -> None:
    shell = a_shell(prefill_chunk=32)
    for sequence_id, num in [(1, 20), (2, 20), (3, 20)]:
        shell.submit(a_sequence(sequence_id, num, 2))

    assert parts(shell.step()) == [(1, 0, 20, True), (2, 0, 12, False)]
    assert parts(shell.step()) == [(1, 20, 1, True), (2, 12, 8, True), (3, 0, 20, True)]


def test_without_chunks_a_prompt_is_computed_whole() -> None:
    shell = a_shell(prefill_chunk=0, max_model_len=300)
    shell.submit(a_sequence(1, 250, 2))
    shell.submit(a_sequence(2, 100, 2))
    shell.submit(a_sequence(3, 50, 2))

    assert parts(shell.step()) == [(1, 0, 250, True)]
    assert parts(shell.step()) == [(1, 250, 1, True), (2, 0, 100, True), (3, 0, 50, True)]
    assert max_step_tokens(shell.config) == 300 + 8


def test_with_a_step_in_flight_the_next_token_is_named_pending() -> None:
    shell = a_shell()
    shell.submit(a_sequence(1, 4, 3))

    shell.schedule()
    second = shell.schedule()
    assert second is not None
    assert second.sequences[0].tokens == (PENDING,)
    assert second.sequences[0].start == 4
    assert shell.schedule() is None, "two are in flight"
    shell.update()
    third = shell.schedule()
    assert third is not None
    assert third.sequences[0].tokens == (PENDING,)
    shell.update()
    assert shell.schedule() is None, "all its tokens are in flight"
    shell.update()
    assert shell.finishes[1] is FinishReason.MAX_TOKENS


def test_what_ends_in_flight_gives_its_place_to_the_next_at_once() -> None:
    """The late token of the first is dropped, and the second takes slot and blocks before it comes."""
    prompt = [1, 2, 3]
    output, _ = alone(prompt, 1, frozenset())
    shell = a_shell(max_num_seqs=1, num_blocks=2, has_prefix_cache=False)
    shell.submit(a_sequence(1, prompt, 10, stop_ids=frozenset(output)))
    shell.submit(a_sequence(2, 20, 4))
    shell.schedule()
    shell.schedule()
    shell.update()
    assert shell.finishes[1] is FinishReason.END_TURN

    assert parts(shell.schedule()) == [(2, 0, 20, True)]
    shell.update()
    assert shell.scheduler.statistics().counters.num_late_tokens == 1
    shell.run(depth=2)
    shell.check_all_ended()


@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_cancelled_sequence_gives_everything_back(is_waiting: bool) -> None:
    """B24: within the same call, whether it waits, computes its prompt or decodes."""
    shell = a_shell()
    shell.submit(a_sequence(1, 40, 400))
    if not is_waiting:
        shell.step()
        shell.schedule()

    shell.cancel(1)

    statistics = shell.scheduler.statistics()
    assert (statistics.num_live, statistics.num_held_blocks, statistics.num_free_slots) == (0, 0, 8)
    shell.run()
    shell.cancel(1)
    shell.scheduler.cancel(99, now=0.0)
    assert statistics.counters.num_cancelled == 1
    shell.check_all_ended()


def test_the_shell_ends_one_by_its_stop_string() -> None:
    shell = a_shell()
    shell.submit(a_sequence(1, 4, 50))
    shell.step()
    shell.schedule()
    shell.finish(1)
    shell.scheduler.finish(1, now=0.0)
    shell.update()
    assert shell.scheduler.statistics().counters.num_stopped == 1
    shell.check_all_ended()


def test_a_failed_step_ends_its_sequences_and_no_other() -> None:
    shell = a_shell(max_num_seqs=2)
    shell.submit(a_sequence(1, 20, 5))
    shell.submit(a_sequence(2, 20, 5))
    shell.submit(a_sequence(3, 20, 5))
    shell.schedule()
    shell.schedule()
    shell.fail_step()

    assert shell.ends == {1: Outcome.FAILED, 2: Outcome.FAILED}
    assert isinstance(shell.errors[1], ServerFault)
    assert shell.scheduler.statistics().num_cached_blocks == 0, "what a failed step wrote was published"
    shell.run(depth=2)
    assert shell.ends[3] is Outcome.OK
    shell.check_all_ended()


def test_when_the_engine_is_gone_all_end() -> None:
    shell = a_shell(max_num_seqs=2)
    for sequence_id in range(1, 6):
        shell.submit(a_sequence(sequence_id, 20, 5))
    shell.schedule()
    shell.schedule()
    shell.fail_all()
    assert set(shell.ends.values()) == {Outcome.FAILED}
    shell.check_all_ended()


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(98, 1), (99, 1), (1, 99), (99, 2), (100, 1), (101, 1), (1, 100)])
def test_the_context_is_a_sharp_limit(num_prompt: int, max_tokens: int) -> None:
    """B75: at exactly the context it works; above, a 400 with the numbers."""
    shell = a_shell(max_model_len=100)
    shell.submit(a_sequence(1, num_prompt, max_tokens))
    shell.run()

    if num_prompt + max_tokens <= 100:
        assert len(shell.outputs[1]) == max_tokens
    else:
        assert isinstance(shell.errors[1], InvalidRequest)
        assert all(str(n) in shell.errors[1].message for n in (num_prompt, max_tokens, num_prompt + max_tokens, 100))
    shell.check_all_ended()


@pytest.mark.parametrize("max_tokens", [1, 17, 18])
def test_what_never_fits_the_pool_is_refused_at_once(max_tokens: int) -> None:
    """Three blocks hold 48 tokens, and the last token that is sampled needs no place."""
    shell = a_shell(num_blocks=3)
    shell.submit(a_sequence(1, 32, max_tokens))
    shell.run()
    if max_tokens <= 17:
        assert len(shell.outputs[1]) == max_tokens
    else:
        assert isinstance(shell.errors[1], InvalidRequest)
        assert "48" in shell.errors[1].message
    shell.check_all_ended()


def test_an_illegal_event_raises_and_changes_nothing() -> None:
    shell = a_shell()
    shell.submit(a_sequence(1, 4, 4))
    step = shell.schedule()
    second = shell.schedule()
    assert step is not None
    assert second is not None
    before = shell.scheduler.statistics()

    with pytest.raises(ValueError, match="live id"):
        shell.scheduler.submit(a_sequence(1), now=0.0)
    with pytest.raises(ValueError, match="unknown tier"):
        shell.scheduler.submit(a_sequence(2, tier="gold"), now=0.0)
    with pytest.raises(ValueError, match="oldest"):
        shell.scheduler.update(second, [1], now=0.0)
    with pytest.raises(ValueError, match="samples 1 tokens, not 2"):
        shell.scheduler.update(step, [1, 2], now=0.0)
    with pytest.raises(ValueError, match="oldest"):
        shell.scheduler.fail_step(second, ServerFault("no"), now=0.0)
    with pytest.raises(ValueError, match="at least 1"):
        a_sequence(3, [], 4)
    with pytest.raises(ValueError, match="at least 1"):
        a_sequence(3, [1], 0)

    assert shell.scheduler.statistics() == before
    shell.run(depth=2)
    shell.check_all_ended()


def test_a_sequence_remembers_when_things_happened() -> None:
    shell = a_shell()
    sequence = a_sequence(1, 4, 2, arrived_at=1.0)
    shell.submit(sequence, now=1.0)
    states = [sequence.state]
    shell.schedule(now=2.0)
    shell.update(now=3.0)
    states.append(sequence.state)
    shell.step(now=4.0)
    states.append(sequence.state)
    assert states == [SequenceState.WAITING, SequenceState.DECODING, SequenceState.FINISHED]
    assert (sequence.first_scheduled_at, sequence.first_token_at, sequence.finished_at) == (2.0, 3.0, 4.0)
    assert (sequence.prompt, len(sequence.output)) == ([101, 0, 1, 2], 2)


def test_update_says_one_thing_for_each_that_was_sampled() -> None:
    shell = a_shell()
    shell.submit(a_sequence(1, 4, 1))
    shell.submit(a_sequence(2, 4, 9))
    shell.submit(a_sequence(3, 90, 9))
    shell.schedule()
    first, second = shell.update()
    assert isinstance(first, Emit)
    assert isinstance(second, Emit)
    assert (first.sequence_id, first.finish) == (1, FinishReason.MAX_TOKENS)
    assert (second.sequence_id, second.finish) == (2, None)
    assert not isinstance(first, EndSequence)
