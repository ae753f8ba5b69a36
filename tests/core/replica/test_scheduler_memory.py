"""Room: who is let in when blocks are short, and who may pass one that does not fit."""

from batcher.config import KvMode
from batcher.types import Outcome
from tests.core.replica.fake_device import a_sequence, a_shell

LONG = list(range(1, 41))
"""Two full blocks and a half."""


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
