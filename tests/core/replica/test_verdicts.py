"""After how long a refused caller is told to come back."""

from batcher.core.replica.verdicts import DrainRate
from batcher.errors import MAX_RETRY_AFTER_S, NO_WORKER_RETRY_AFTER_S
from tests.core.replica.fake_device import a_sequence, a_shell


def test_before_anybody_has_ended_nobody_knows() -> None:
    assert DrainRate().retry_after_s(100) == NO_WORKER_RETRY_AFTER_S


def test_bursts_of_ends_count_over_the_time_between_them() -> None:
    rate = DrainRate()
    rate.restart(now=0.0)
    for burst in range(1, 7):
        for _ in range(64):
            rate.observe_end(now=10.0 * burst)
        assert rate.retry_after_s(100) == 16


def test_an_idle_time_is_no_part_of_what_an_end_takes() -> None:
    rate = DrainRate()
    rate.restart(now=0.0)
    rate.observe_end(now=2.0)
    rate.restart(now=10_000.0)
    rate.observe_end(now=10_002.0)
    assert rate.retry_after_s(10) == 20


def test_a_slower_replica_is_followed() -> None:
    rate = DrainRate()
    for tenth in range(1, 1001):
        rate.observe_end(now=tenth / 10)
    for minute in range(1, 4):
        rate.observe_end(now=100.0 + 60.0 * minute)
    assert rate.retry_after_s(1) > 30
    assert rate.retry_after_s(100) == MAX_RETRY_AFTER_S


def test_those_that_end_together_do_not_hide_how_long_they_took() -> None:
    """Four end every four seconds, in one step, and four wait. A mean of the intervals between ends said one second."""
    shell = a_shell(max_num_seqs=4, max_waiting=4, tiers=("paid",))
    now = 0.0
    for first in range(1, 40, 4):
        for sequence_id in range(first, first + 4):
            shell.submit(a_sequence(sequence_id, 2, 1), now=now)
        shell.schedule(now=now)
        now += 4.0
        shell.update(now=now)
    for sequence_id in range(50, 55):
        shell.submit(a_sequence(sequence_id, 2, 1), now=now)
    assert shell.errors[54].retry_after_s == 4
