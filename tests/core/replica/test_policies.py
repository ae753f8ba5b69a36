"""The batching policies, each on its own (SPEC S11)."""

from batcher.config import ReplicaPolicy
from tests.core.replica.fake_device import Shell, a_sequence, a_shell


def a_static_shell() -> Shell:
    return a_shell(policy=ReplicaPolicy.STATIC, max_num_seqs=3, static_timeout_s=0.5)


def ids_of_step(shell: Shell, *, now: float) -> list[int]:
    step = shell.step(now=now)
    return [part.sequence_id for part in step.sequences] if step is not None else []


def test_a_static_batch_leaves_when_it_is_full() -> None:
    shell = a_static_shell()
    shell.submit(a_sequence(1, tier="free"))
    shell.submit(a_sequence(2, tier="free"))
    assert ids_of_step(shell, now=0.1) == []
    shell.submit(a_sequence(3, tier="free"))
    assert ids_of_step(shell, now=0.2) == [1, 2, 3]


def test_a_static_batch_leaves_when_its_oldest_has_waited() -> None:
    shell = a_static_shell()
    shell.submit(a_sequence(1, arrived_at=1.0), now=1.0)
    shell.submit(a_sequence(2, arrived_at=1.4), now=1.4)
    assert shell.scheduler.next_deadline() == 1.5
    assert ids_of_step(shell, now=1.4) == []
    assert ids_of_step(shell, now=1.5) == [1, 2]


def test_a_static_batch_runs_until_its_longest_ends() -> None:
    """The short one leaves its slot empty, and the fourth waits for the next batch."""
    shell = a_static_shell()
    for sequence_id, max_tokens in [(1, 1), (2, 2), (3, 4), (4, 1)]:
        shell.submit(a_sequence(sequence_id, 2, max_tokens))
    assert [ids_of_step(shell, now=1.0) for _ in range(5)] == [[1, 2, 3], [2, 3], [3], [3], [4]]


def test_a_static_batch_keeps_its_size_until_its_last_sequence_ends() -> None:
    shell = a_shell(policy=ReplicaPolicy.STATIC, max_num_seqs=3)
    for sequence_id, max_tokens in ((1, 2), (2, 4), (3, 5)):
        shell.submit(a_sequence(sequence_id, max_tokens=max_tokens))
    shell.run()
    assert [(len(step.sequences), step.num_padding) for step in shell.steps] == [(3, 0), (3, 0), (2, 1), (2, 1), (1, 2)]
    shell.submit(a_sequence(4), now=10.0)
    shell.schedule(now=20.0)
    assert shell.steps[-1].num_padding == 0


def test_a_continuous_batch_computes_nothing_for_nobody() -> None:
    shell = a_shell(max_num_seqs=3)
    for sequence_id, max_tokens in ((1, 2), (2, 4)):
        shell.submit(a_sequence(sequence_id, max_tokens=max_tokens))
    shell.run()
    assert {step.num_padding for step in shell.steps} == {0}


def test_a_static_batch_starts_together_though_its_prompts_take_several_steps() -> None:
    shell = a_static_shell()
    for sequence_id in range(1, 5):
        shell.submit(a_sequence(sequence_id, 30, 2))
    shell.step(now=0.0)
    statistics = shell.scheduler.statistics()
    assert (statistics.num_running, statistics.num_waiting) == (3, 1)
    shell.run(now=1.0)
    shell.check_all_ended()


def test_no_deadline_is_told_while_a_static_batch_runs() -> None:
    shell = a_static_shell()
    for sequence_id in range(1, 5):
        shell.submit(a_sequence(sequence_id, 2, 9))
    shell.step(now=0.0)
    assert shell.scheduler.next_deadline() == 1000.0, "the fourth's own"


def test_a_draining_replica_waits_for_no_full_batch() -> None:
    shell = a_static_shell()
    shell.submit(a_sequence(1))
    shell.scheduler.drain(now=0.0)
    assert ids_of_step(shell, now=0.0) == [1]


def test_static_and_paged_ends_under_a_shortage_of_memory() -> None:
    shell = a_shell(policy=ReplicaPolicy.STATIC, max_num_seqs=8, num_blocks=10, static_timeout_s=0.0)
    for sequence_id in range(1, 17):
        shell.submit(a_sequence(sequence_id, 4, 70, tier="free" if sequence_id % 2 else "paid"))
    shell.run(depth=2)
    assert shell.scheduler.statistics().counters.num_preemptions > 0
    shell.check_all_ended()


def test_single_runs_one_at_a_time() -> None:
    shell = a_shell(policy=ReplicaPolicy.SINGLE)
    for sequence_id in (1, 2):
        shell.submit(a_sequence(sequence_id, 40, 2, tier="free"))
    shell.submit(a_sequence(3, 2, 1))
    assert [ids_of_step(shell, now=0.0) for _ in range(8)] == [[3], [1], [1], [1], [2], [2], [2], []]


def test_continuous_fills_a_slot_in_the_next_step() -> None:
    shell = a_shell(max_num_seqs=3)
    for sequence_id, max_tokens in [(1, 1), (2, 2), (3, 4), (4, 1)]:
        shell.submit(a_sequence(sequence_id, 2, max_tokens))
    assert [ids_of_step(shell, now=1.0) for _ in range(4)] == [[1, 2, 3], [2, 3, 4], [3], [3]]
