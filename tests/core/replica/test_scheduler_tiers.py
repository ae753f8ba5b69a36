"""Who waits, who goes first, and who is refused."""

import pytest

from batcher.core.effects import ReplicaEffects
from batcher.errors import Expired, Overloaded, ShuttingDown
from batcher.types import Outcome
from tests.core.replica.fake_device import Shell, a_sequence, a_shell


def running(shell: Shell) -> list[int]:
    return sorted(sequence.id for sequence in shell.sequences.values() if sequence.is_running)


def test_paid_takes_the_slot_of_the_newest_free_one() -> None:
    """B58: all slots run long free work. It goes on after the paid one, with no token lost or doubled (the shell checks)."""
    shell = a_shell(max_num_seqs=4, num_blocks=256, max_model_len=512)
    shell.submit(a_sequence(1, 4, 10))
    for sequence_id in range(2, 6):
        shell.submit(a_sequence(sequence_id, 4, 400, tier="free"))
    shell.step()
    assert running(shell) == [1, 2, 3, 4], "one slot is the first tier's own"
    shell.submit(a_sequence(6, 4, 10))
    step = shell.step()

    assert step is not None
    assert step.sequences[-1].sequence_id == 6
    assert running(shell) == [1, 2, 3, 6]
    assert shell.sequences[4].num_preemptions == 1
    shell.run()
    assert set(shell.ends.values()) == {Outcome.OK}
    shell.check_all_ended()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_flood_of_paid_lets_free_work_end_some_day(depth: int) -> None:
    """A free sequence is preempted so often and no more; then it runs to its end beside what comes."""
    shell = a_shell(max_num_seqs=2, max_preemptions=3, num_blocks=64)
    shell.submit(a_sequence(1, 4, 60, tier="free"))
    for sequence_id in range(2, 60):
        shell.submit(a_sequence(sequence_id, 4, 3))
        shell.submit(a_sequence(sequence_id + 100, 4, 3))
        for _ in range(2):
            while shell.num_inflight < depth and shell.schedule() is not None:
                pass
            shell.update()
            shell.scheduler.check()
    shell.run(depth=depth)
    assert shell.sequences[1].num_preemptions <= 3
    assert set(shell.ends.values()) == {Outcome.OK}
    shell.check_all_ended()


def test_each_lower_tier_that_has_started_gets_on_under_a_flood_of_higher_ones() -> None:
    """What the highest tier left for started prompts was left by the next one, too: the lowest got all of it."""
    shell = a_shell(
        tiers=("paid", "free", "batch"), num_blocks=512, max_num_seqs=64, max_model_len=2048, has_prefix_cache=False
    )
    shell.submit(a_sequence(1, 600, 4, tier="batch"))
    shell.step()
    shell.submit(a_sequence(2, 300, 4, tier="free"))
    shell.step()
    before = [shell.sequences[sequence_id].num_computed for sequence_id in (1, 2)]
    for sequence_id in range(3, 43):
        shell.submit(a_sequence(sequence_id, 32, 1))
        shell.step()
    after = [shell.sequences[sequence_id].num_computed for sequence_id in (1, 2)]
    assert [after[0] - before[0], after[1] - before[1]] == [40, 120]


def test_preempted_work_does_not_starve_behind_a_flood_of_paid() -> None:
    """B59: it has started, so it does not expire. Paid always waits for the slots; after five seconds it goes first."""
    shell = a_shell(max_num_seqs=2)
    shell.submit(a_sequence(1, 4, 100, tier="free"))
    shell.step(now=0.0)
    now = 0.0
    for sequence_id in range(2, 200):
        shell.submit(a_sequence(sequence_id, 4, 4), now=now)
        shell.submit(a_sequence(sequence_id + 1000, 4, 4), now=now)
        now += 0.1
        shell.step(now=now)
        shell.scheduler.check()
        if sequence_id == 5:
            assert shell.sequences[1].num_preemptions == 1
        if now < 5.0:
            assert not shell.sequences[1].is_running
    assert shell.sequences[1].num_preemptions == 1
    assert shell.ends[1] is Outcome.OK, "it ran to its end in the flood"
    assert shell.sequences[1].finished_at is not None
    assert shell.sequences[1].finished_at < 5.0 + 0.1 * 110


def test_slots_of_the_first_tier_are_kept_for_it() -> None:
    shell = a_shell(max_num_seqs=8, reserved_slot_share=0.25)
    for sequence_id in range(1, 11):
        shell.submit(a_sequence(sequence_id, 2, 50, tier="free"))
    shell.step()
    assert running(shell) == [1, 2, 3, 4, 5, 6]
    shell.submit(a_sequence(11, 2, 50))
    shell.submit(a_sequence(12, 2, 50))
    shell.step()
    assert running(shell) == [1, 2, 3, 4, 5, 6, 11, 12]
    assert shell.scheduler.statistics().counters.num_preemptions == 0


def test_paid_waits_for_no_prompt_of_the_free_tier_that_has_started() -> None:
    """Nor does it stop that prompt: an eighth of the budget stays for it."""
    shell = a_shell(prefill_chunk=32, num_blocks=256, max_model_len=2000)
    shell.submit(a_sequence(1, 1000, 2, tier="free"))
    shell.step()
    shell.submit(a_sequence(2, 100, 2))
    step = shell.step()
    assert step is not None
    assert [(part.sequence_id, len(part.tokens)) for part in step.sequences] == [(2, 28), (1, 4)]


def test_tenants_take_turns() -> None:
    """One tenant's burst does not stand before the others."""
    shell = a_shell(max_num_seqs=1, tiers=("only",))
    for sequence_id in range(1, 7):
        shell.submit(a_sequence(sequence_id, 2, 1, tier="only", tenant="flood"))
    shell.submit(a_sequence(7, 2, 1, tier="only", tenant="ann"))
    shell.submit(a_sequence(8, 2, 1, tier="only", tenant="bob"))
    shell.run()
    assert list(shell.ends) == [1, 7, 8, 2, 3, 4, 5, 6]


def test_paid_goes_before_free() -> None:
    shell = a_shell(max_num_seqs=2)
    for sequence_id in range(1, 4):
        shell.submit(a_sequence(sequence_id, 2, 1, tier="free"))
    shell.submit(a_sequence(4, 2, 1))
    shell.run()
    assert list(shell.ends) == [4, 1, 2, 3]


def refused(effects: ReplicaEffects) -> list[int]:
    return [effect.sequence_id for effect in effects]


def test_a_full_queue_refuses_with_an_honest_time() -> None:
    shell = a_shell(max_num_seqs=1, max_waiting=2)
    shell.submit(a_sequence(1, 2, 50))
    shell.step()
    shell.submit(a_sequence(2))
    shell.submit(a_sequence(3))
    assert refused(shell.submit(a_sequence(4))) == [4]
    assert shell.ends[4] is Outcome.REJECTED_CAPACITY
    error = shell.errors[4]
    assert isinstance(error, Overloaded)
    assert error.retry_after_s is not None
    assert 1 <= error.retry_after_s <= 60


def test_the_time_to_come_back_is_from_the_rate_of_ends() -> None:
    """A sequence ends every four seconds, and four wait."""
    shell = a_shell(max_num_seqs=1, max_waiting=4)
    now = 0.0
    for sequence_id in range(1, 5):
        shell.submit(a_sequence(sequence_id, 2, 1), now=now)
    for sequence_id in range(5, 11):
        now += 4.0
        shell.step(now=now)
        shell.submit(a_sequence(sequence_id, 2, 1), now=now)
    shell.submit(a_sequence(99), now=now)
    assert shell.errors[99].retry_after_s == 16


def test_a_higher_tier_takes_the_room_of_the_newest_of_the_lowest() -> None:
    shell = a_shell(max_num_seqs=1, max_waiting=3, tiers=("gold", "paid", "free"))
    shell.submit(a_sequence(1, 2, 50))
    shell.step()
    shell.submit(a_sequence(2, tier="free"))
    shell.submit(a_sequence(3, tier="free", tenant="bob"))
    shell.submit(a_sequence(4, tier="paid"))
    assert refused(shell.submit(a_sequence(5, tier="free"))) == [5]
    assert refused(shell.submit(a_sequence(6, tier="paid"))) == [3]
    assert refused(shell.submit(a_sequence(7, tier="gold"))) == [2]
    assert refused(shell.submit(a_sequence(8, tier="gold"))) == [6]
    assert refused(shell.submit(a_sequence(9, tier="free"))) == [9]
    assert shell.scheduler.statistics().counters.num_displaced == 3
    shell.run()
    shell.check_all_ended()


def test_room_is_bounded_in_tokens_too() -> None:
    shell = a_shell(max_num_seqs=1, max_waiting_tokens=100)
    shell.submit(a_sequence(1, 2, 50))
    shell.step()
    shell.submit(a_sequence(2, 40, tier="free"))
    shell.submit(a_sequence(3, 40, tier="free"))
    assert refused(shell.submit(a_sequence(4, 30, tier="free"))) == [4]
    assert refused(shell.submit(a_sequence(5, 70))) == [3, 2]
    assert refused(shell.submit(a_sequence(6, 40))) == [6]


def test_a_flood_gives_its_room_to_other_tenants() -> None:
    shell = a_shell(max_num_seqs=1, max_waiting=4)
    shell.submit(a_sequence(1, 2, 50))
    shell.step()
    for sequence_id in range(2, 6):
        assert shell.submit(a_sequence(sequence_id, tenant="flood")) == []
    assert refused(shell.submit(a_sequence(6, tenant="flood"))) == [6]
    assert refused(shell.submit(a_sequence(7, tenant="ann"))) == [5]
    assert refused(shell.submit(a_sequence(8, tenant="ann"))) == [4]
    assert refused(shell.submit(a_sequence(9, tenant="ann"))) == [9]


def test_what_is_dropped_from_the_queue_leaves_nothing_behind() -> None:
    """B25: fifty with one prefix on a queue of four; half of what waits expires, some are cancelled."""
    shell = a_shell(max_num_seqs=2, max_waiting=4)
    prefix = list(range(1, 40))
    for sequence_id in range(1, 51):
        shell.submit(a_sequence(sequence_id, [*prefix, sequence_id], 20, deadline_at=float(5 + sequence_id % 2 * 100)))
        if sequence_id % 10 == 0:
            shell.step(now=1.0)
    waiting = [s.id for s in shell.sequences.values() if s.id in shell.live_ids() and not s.is_running]
    shell.cancel(waiting[-1], now=2.0)
    shell.perform(shell.scheduler.tick(now=10.0))
    shell.run(now=11.0)
    assert set(shell.ends.values()) == {Outcome.OK, Outcome.CANCELLED, Outcome.EXPIRED, Outcome.REJECTED_CAPACITY}
    shell.check_all_ended()


def test_free_work_that_never_gets_a_place_is_told_at_its_deadline() -> None:
    """B59: paid fills the replica. What waits ends with an error that says so, and at its deadline, no later."""
    shell = a_shell(max_num_seqs=2)
    for sequence_id in range(1, 40):
        shell.submit(a_sequence(sequence_id, 2, 10, deadline_at=1000.0))
    shell.submit(a_sequence(99, 2, 1, tier="free", deadline_at=5.0))
    for _ in range(20):
        shell.step(now=1.0)
    assert shell.scheduler.next_deadline() == 5.0
    assert shell.perform(shell.scheduler.tick(now=4.9)) == []
    assert refused(shell.perform(shell.scheduler.tick(now=5.0))) == [99]
    assert isinstance(shell.errors[99], Expired)
    assert shell.scheduler.next_deadline() == 1000.0


def test_what_has_expired_never_starts_though_the_tick_comes_late() -> None:
    shell = a_shell()
    shell.submit(a_sequence(1, deadline_at=5.0))
    assert shell.scheduler.schedule(now=6.0) is None
    deadline = shell.scheduler.next_deadline()
    assert deadline is not None
    assert deadline <= 6.0
    assert refused(shell.perform(shell.scheduler.tick(now=6.0))) == [1]
    shell.check_all_ended()


def test_what_has_started_does_not_expire_even_preempted() -> None:
    shell = a_shell(max_num_seqs=2)
    shell.submit(a_sequence(1, 4, 20, tier="free", deadline_at=5.0))
    shell.step(now=1.0)
    for sequence_id in (2, 3):
        shell.submit(a_sequence(sequence_id, 4, 20))
    shell.step(now=2.0)
    assert shell.sequences[1].num_preemptions == 1
    assert shell.scheduler.tick(now=50.0) == []
    shell.run(now=50.0)
    assert shell.ends[1] is Outcome.OK


def test_while_it_drains_new_ones_are_refused_and_old_ones_end_well() -> None:
    shell = a_shell(max_num_seqs=1)
    shell.submit(a_sequence(1))
    shell.submit(a_sequence(2))
    shell.scheduler.drain(now=1.0)
    shell.submit(a_sequence(3))
    assert shell.ends == {3: Outcome.REJECTED_SHUTDOWN}
    assert isinstance(shell.errors[3], ShuttingDown)
    shell.run()
    assert shell.ends[1] is shell.ends[2] is Outcome.OK
    assert shell.scheduler.statistics().is_draining


def test_statistics_say_what_there_is() -> None:
    shell = a_shell(max_num_seqs=2, prefill_chunk=16)
    shell.submit(a_sequence(1, 4, 9))
    shell.submit(a_sequence(2, 40, 9))
    shell.submit(a_sequence(3, 30, 9))
    shell.submit(a_sequence(4, 20, 9, tier="free"))
    shell.schedule()
    statistics = shell.scheduler.statistics()
    assert [(t.name, t.num_waiting, t.num_waiting_tokens, t.num_running) for t in statistics.tiers] == [
        ("paid", 1, 30, 2),
        ("free", 1, 20, 0),
    ]
    assert (statistics.num_live, statistics.num_waiting, statistics.num_running) == (4, 2, 2)
    assert (statistics.num_prefilling, statistics.num_decoding, statistics.num_inflight_steps) == (1, 1, 1)
    assert (statistics.num_held_blocks, statistics.num_free_blocks, statistics.num_cached_blocks) == (4, 60, 0)
    assert (statistics.counters.num_steps, statistics.counters.num_prefill_tokens) == (1, 16)
    assert repr(shell.scheduler) == ("<Scheduler waiting=2 running=2 inflight=1 <BlockPool 60 free, 4 held, 0 cached, of 64>>")
