"""What a scheduler's check looks at between steps, and what only in tests."""

from collections.abc import Callable

import pytest

from batcher.core.replica.scheduler import Scheduler
from tests.core.replica.fake_device import a_sequence, a_shell


def miscount_waiting_tokens(scheduler: Scheduler) -> None:
    scheduler._queue.tiers[0].num_tokens += 1


def hold_a_block_twice(scheduler: Scheduler) -> None:
    block = next(iter(scheduler._running)).block_table[0]
    scheduler._memory.pool._refcounts[block] += 1


def put_a_free_block_twice_on_the_stack(scheduler: Scheduler) -> None:
    free = scheduler._memory.pool._free
    free[0] = free[1]


@pytest.mark.parametrize("damage", [miscount_waiting_tokens, hold_a_block_twice, put_a_free_block_twice_on_the_stack])
def test_a_check_that_is_not_deep_looks_at_no_block_and_at_nobody_who_waits(damage: Callable[[Scheduler], None]) -> None:
    """CASES B99: it is made again and again while idle, and must not grow with the cache or the queue."""
    shell = a_shell(max_num_seqs=1)
    for sequence_id in (1, 2):
        shell.submit(a_sequence(sequence_id))
    shell.schedule()
    shell.scheduler.check()
    damage(shell.scheduler)

    shell.scheduler.check(deep=False)
    with pytest.raises(AssertionError):
        shell.scheduler.check()
