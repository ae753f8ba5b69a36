"""Prefixes in the scheduler: what is computed once, by whom it may be found, and what it costs the pool."""

import pytest

from batcher.types import Outcome
from tests.core.replica.fake_device import a_sequence, a_shell

LONG = list(range(1, 41))
"""Two full blocks and a half."""


def test_a_prefix_is_computed_once() -> None:
    shell = a_shell()
    shell.submit(a_sequence(1, LONG, 1))
    shell.run()
    second = a_sequence(2, LONG, 1)
    shell.submit(second)
    step = shell.step()
    assert step is not None
    assert (step.sequences[0].start, step.num_tokens) == (32, 8)
    assert second.num_cached_tokens == 32
    assert shell.scheduler.statistics().counters.num_cached_tokens == 32


@pytest.mark.parametrize("num", [16, 17, 32, 33, 48])
def test_of_a_prompt_that_is_all_cached_the_last_block_is_computed(num: int) -> None:
    """Its next token is drawn from logits, and a shared block is never written: so the last token's block is no hit."""
    shell = a_shell()
    prompt = list(range(1, num + 1))
    shell.submit(a_sequence(1, prompt, 4))
    shell.run()
    second = a_sequence(2, prompt, 4)
    shell.submit(second)
    shell.run()
    assert second.num_cached_tokens == (num - 1) // 16 * 16
    assert shell.outputs[1] == shell.outputs[2]
    shell.check_all_ended()


def test_a_long_prefix_is_found_whole() -> None:
    """It is named and looked up in strides of 64 blocks."""
    shell = a_shell(num_blocks=512, max_model_len=8192, prefill_chunk=1024)
    prompt = [n % 50 for n in range(150 * 16 + 3)]
    for sequence_id in (1, 2):
        shell.submit(a_sequence(sequence_id, prompt, 2))
        shell.run()
    shell.submit(a_sequence(3, [*prompt[: 70 * 16 + 5], 49, 49], 2))
    shell.run()
    assert [sequence.num_cached_tokens for sequence in shell.sequences.values()] == [0, 150 * 16, 70 * 16]
    shell.check_all_ended()


def test_what_was_said_is_cached_as_what_was_asked() -> None:
    """The next turn of a conversation finds the answer's blocks, too."""
    shell = a_shell()
    shell.submit(a_sequence(1, LONG, 30))
    shell.run()
    turn = a_sequence(2, LONG + shell.outputs[1] + [3, 4, 5], 4)
    shell.submit(turn)
    shell.run()
    assert turn.num_cached_tokens == 64, "69 tokens were computed: four full blocks"
    shell.check_all_ended()


def test_a_block_is_shared_only_after_its_step_is_updated() -> None:
    shell = a_shell(prefill_chunk=64)
    shell.submit(a_sequence(1, LONG, 30))
    shell.schedule()
    early = a_sequence(2, LONG, 4)
    shell.submit(early)
    shell.schedule()
    assert early.num_cached_tokens == 0, "the first step may still fail"
    shell.update()
    late = a_sequence(3, LONG, 4)
    shell.submit(late)
    shell.schedule()
    assert late.num_cached_tokens == 32
    shell.run(depth=2)
    shell.check_all_ended()


def test_one_prefix_twice_in_one_step() -> None:
    """B50: the first of the two ends and the third still hits the block of the second."""
    shell = a_shell(prefill_chunk=128)
    shell.submit(a_sequence(1, LONG, 1))
    shell.submit(a_sequence(2, LONG, 40))
    shell.step()
    assert 1 in shell.ends
    third = a_sequence(3, LONG, 2)
    shell.submit(third)
    shell.step()
    shell.scheduler.check()
    assert third.num_cached_tokens == 32
    shell.run()
    shell.check_all_ended()


def test_cached_blocks_cost_room_too() -> None:
    """B51: of four blocks one is in use, and three are the prefix of a prompt that needs five."""
    shell = a_shell(num_blocks=5, growth_blocks=0)
    shell.submit(a_sequence(1, list(range(1, 50)), 1))
    shell.run()
    assert shell.scheduler.statistics().num_cached_blocks == 3
    shell.submit(a_sequence(2, 4, 12))
    shell.step()
    shell.submit(a_sequence(3, list(range(1, 66)), 1))
    shell.step()
    shell.scheduler.check()
    statistics = shell.scheduler.statistics()
    assert (statistics.num_running, statistics.num_held_blocks) == (1, 1), "it was let in by half"
    shell.run()
    assert shell.ends[3] is Outcome.OK
    shell.check_all_ended()


def test_tenants_share_nothing_unless_they_mean_to() -> None:
    """B63."""
    shell = a_shell()
    ann, bob = a_sequence(1, LONG, 1, tenant="ann"), a_sequence(2, LONG, 1, tenant="bob")
    ann_again = a_sequence(3, LONG, 1, tenant="ann")
    cy, dan = a_sequence(4, LONG, 1, tenant="cy", salt=b""), a_sequence(5, LONG, 1, tenant="dan", salt=b"")
    for sequence in (ann, bob, ann_again, cy, dan):
        shell.submit(sequence)
        shell.run()
    assert [s.num_cached_tokens for s in (ann, bob, ann_again, cy, dan)] == [0, 0, 32, 0, 32]
