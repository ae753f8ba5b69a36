"""Preemption: who gives its blocks back when the pool is full, how often, and that nothing is lost by it."""

import pytest

from batcher.core.replica.sequence import Sequence
from batcher.types import Outcome
from tests.core.replica.fake_device import Shell, a_sequence, a_shell


def test_the_newest_of_the_lowest_tier_gives_way() -> None:
    shell = a_shell(num_blocks=8, growth_blocks=0, max_num_seqs=5)
    shell.submit(a_sequence(1, 16, 30, tier="free"))
    shell.submit(a_sequence(2, 16, 30))
    shell.submit(a_sequence(3, 10, 30, tier="free"))
    shell.submit(a_sequence(4, 10, 30))
    while not shell.scheduler.statistics().counters.num_preemptions:
        shell.step()

    assert [sequence_id for sequence_id, sequence in shell.sequences.items() if sequence.num_preemptions] == [3]
    shell.run()
    shell.check_all_ended()


@pytest.mark.parametrize("depth", [1, 2])
def test_overload_of_memory_ends_with_everybody_served(depth: int) -> None:
    """B55: a pool for five and ten that run; each is preempted a bounded number of times, and every step makes a token."""
    shell = a_shell(num_blocks=20, max_num_seqs=10, max_preemptions=8)
    for sequence_id in range(1, 41):
        shell.submit(a_sequence(sequence_id, 17, 45, tier="free" if sequence_id % 3 else "paid"))

    shell.run(depth=depth)

    assert set(shell.ends.values()) == {Outcome.OK}
    assert shell.scheduler.statistics().counters.num_preemptions > 0
    assert max(sequence.num_preemptions for sequence in shell.sequences.values()) <= 8
    assert all(step.num_tokens for step in shell.steps)
    shell.check_all_ended()


@pytest.mark.parametrize("max_preemptions", [0, 1, 2])
def test_what_was_preempted_often_enough_is_let_alone(max_preemptions: int) -> None:
    shell = a_shell(num_blocks=8, max_num_seqs=8, growth_blocks=0, max_preemptions=max_preemptions)
    for sequence_id in range(1, 13):
        shell.submit(a_sequence(sequence_id, 4, 60))
    shell.run(depth=2)
    assert set(shell.ends.values()) == {Outcome.OK}
    assert max(sequence.num_preemptions for sequence in shell.sequences.values()) == max_preemptions
    shell.check_all_ended()


def test_half_computed_prompts_give_way_to_a_higher_tier() -> None:
    """B56: prompts of the free tier hold all blocks, half computed, when a paid one comes that needs them all."""
    shell = a_shell(num_blocks=20, max_model_len=320, prefill_chunk=16)
    shell.submit(a_sequence(1, 150, 2, tier="free"))
    shell.submit(a_sequence(2, 150, 2, tier="free"))
    shell.step()
    shell.submit(a_sequence(3, 310, 2))

    step = shell.step()

    assert step is not None
    assert [part.sequence_id for part in step.sequences] == [3]
    shell.run()
    assert set(shell.ends.values()) == {Outcome.OK}
    shell.check_all_ended()


def test_half_computed_prompts_of_one_tier_get_on() -> None:
    """B56: whatever has started has blocks for its whole prompt, so nothing parks."""
    shell = a_shell(num_blocks=20, max_model_len=320, prefill_chunk=16, growth_blocks=0)
    for sequence_id in range(1, 5):
        shell.submit(a_sequence(sequence_id, 150, 2))
    shell.submit(a_sequence(5, 310, 2))
    shell.run(depth=2)
    assert set(shell.ends.values()) == {Outcome.OK}
    shell.check_all_ended()


def preempt_the_second(shell: Shell) -> Sequence:
    """Two that outgrow four blocks, with two steps in flight; the second gives way while a step that samples it runs."""
    shell.submit(a_sequence(1, 30, 30))
    second = a_sequence(2, 30, 30)
    shell.submit(second)
    while not second.num_preemptions:
        while shell.num_inflight < 2 and shell.schedule() is not None:
            pass
        shell.scheduler.check()
        if not second.num_preemptions:
            shell.update()
    return second


def test_a_preempted_sequence_loses_no_token_in_flight() -> None:
    """Preempted while a step that samples it runs: the token comes late, is told, and is not sampled again."""
    shell = a_shell(num_blocks=4, growth_blocks=0, max_num_seqs=2)
    late = preempt_the_second(shell)
    assert late.num_pending == 1
    num_known = late.num_output_tokens
    shell.update()
    assert (late.num_pending, late.num_output_tokens) == (0, num_known + 1)
    shell.run(depth=2)
    shell.check_all_ended()


def test_a_preempted_sequence_outlives_the_failure_of_its_late_step() -> None:
    shell = a_shell(num_blocks=4, growth_blocks=0, max_num_seqs=2)
    preempt_the_second(shell)
    shell.fail_step()
    assert shell.ends == {1: Outcome.FAILED}
    shell.run(depth=2)
    assert shell.ends[2] is Outcome.OK
    shell.check_all_ended()
