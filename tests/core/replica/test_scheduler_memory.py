"""Blocks: who gets them, who gives way, and what is shared."""

import pytest

from batcher.config import KvMode
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


def test_small_ones_pass_a_large_one_that_does_not_fit() -> None:
    """B60: twenty small ones go on, though the head of the queue needs nearly the whole pool."""
    shell = a_shell(num_blocks=20, max_model_len=320, max_overtakes=64)
    shell.submit(a_sequence(1, 32, 100))
    shell.step()
    shell.submit(a_sequence(2, 300, 2))
    for sequence_id in range(3, 23):
        shell.submit(a_sequence(sequence_id, 8, 2))
    for _ in range(30):
        shell.step()
    assert all(sequence_id in shell.ends for sequence_id in range(3, 23))
    assert 2 not in shell.ends
    assert shell.sequences[2].num_overtaken == 20
    shell.run()
    assert shell.ends[2] is Outcome.OK
    shell.check_all_ended()


def test_a_large_one_is_passed_only_so_often() -> None:
    """B60, the other half: then its tier and lower ones wait, and a higher one does not."""
    shell = a_shell(num_blocks=20, max_model_len=320, max_overtakes=3, tiers=("gold", "paid", "free"))
    shell.submit(a_sequence(1, 32, 60, tier="paid"))
    shell.step()
    shell.submit(a_sequence(2, 300, 2, tier="paid"))
    for sequence_id in range(3, 9):
        shell.submit(a_sequence(sequence_id, 8, 2, tier="paid"))
        shell.submit(a_sequence(sequence_id + 10, 8, 2, tier="free"))
    for _ in range(5):
        shell.step()
    assert sorted(shell.ends) == [3, 4, 5]
    shell.submit(a_sequence(30, 8, 2, tier="gold"))
    shell.step()
    shell.step()
    assert 30 in shell.ends
    order = []
    while len(shell.ends) < len(shell.sequences):
        before = set(shell.ends)
        shell.step()
        order += sorted(set(shell.ends) - before)
    assert order[:2] == [1, 2]
    shell.check_all_ended()


def test_the_watermark_keeps_room_for_growth() -> None:
    shell = a_shell(num_blocks=16, growth_blocks=2, max_num_seqs=8)
    shell.submit(a_sequence(1, 16, 30))
    shell.step()
    shell.submit(a_sequence(2, 13 * 16, 2))
    shell.step()
    assert shell.scheduler.statistics().num_running == 1, "15 less 2 kept, less one that grew: 12 blocks"
    shell.submit(a_sequence(3, 12 * 16, 2))
    shell.step()
    assert shell.scheduler.statistics().num_running == 2


def test_contiguous_memory_is_reserved_to_the_end_and_shares_nothing() -> None:
    shell = a_shell(kv=KvMode.CONTIGUOUS, num_blocks=10)
    shell.submit(a_sequence(1, LONG, 40))
    shell.submit(a_sequence(2, LONG, 41))
    shell.submit(a_sequence(3, LONG, 42))
    shell.step()
    shell.step()
    statistics = shell.scheduler.statistics()
    assert (statistics.num_running, statistics.num_held_blocks) == (2, 10), "79 tokens are five blocks, and 80 too"
    shell.run()
    counters = shell.scheduler.statistics().counters
    assert (counters.num_cached_tokens, counters.num_preemptions) == (0, 0)
    shell.check_all_ended()


def test_paged_memory_holds_more_than_contiguous() -> None:
    """SPEC S11: the same pool and traffic."""
    running = {}
    for kv in KvMode:
        shell = a_shell(kv=kv, num_blocks=20, max_num_seqs=32)
        for sequence_id in range(1, 21):
            shell.submit(a_sequence(sequence_id, 4, 150))
        for _ in range(5):
            shell.step()
        running[kv] = shell.scheduler.statistics().num_running
    assert running[KvMode.CONTIGUOUS] == 2
    assert running[KvMode.PAGED] >= 10


def test_a_preempted_sequence_loses_no_token_in_flight() -> None:
    """Preempted while a step that samples it runs: the token comes late, is told, and is not sampled again."""
    shell = a_shell(num_blocks=4, growth_blocks=0, max_num_seqs=2)
    shell.submit(a_sequence(1, 30, 30))
    shell.submit(a_sequence(2, 30, 30))
    while not shell.sequences[2].num_preemptions:
        while shell.num_inflight < 2 and shell.schedule() is not None:
            pass
        shell.scheduler.check()
        if not shell.sequences[2].num_preemptions:
            shell.update()
    late = shell.sequences[2]
    assert late.num_pending == 1
    num_known = late.num_output_tokens
    shell.update()
    assert (late.num_pending, late.num_output_tokens) == (0, num_known + 1)
    shell.run(depth=2)
    shell.check_all_ended()


def test_a_preempted_sequence_outlives_the_failure_of_its_late_step() -> None:
    shell = a_shell(num_blocks=4, growth_blocks=0, max_num_seqs=2)
    shell.submit(a_sequence(1, 30, 30))
    shell.submit(a_sequence(2, 30, 30))
    while not shell.sequences[2].num_preemptions:
        while shell.num_inflight < 2 and shell.schedule() is not None:
            pass
        if not shell.sequences[2].num_preemptions:
            shell.update()
    shell.fail_step()
    assert shell.ends == {1: Outcome.FAILED}
    shell.run(depth=2)
    assert shell.ends[2] is Outcome.OK
    shell.check_all_ended()
