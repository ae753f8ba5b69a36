"""What a decision costs: microseconds of `schedule` and `update` together, for each step.

The device waits for them, so at 256 sequences of 2,000 tokens they must be small beside a step of about 11 ms (SPEC S10), and
must grow neither with the pool nor with the queue: `python -m benchmarks.scheduler`. It is this thread's time on the CPU, so
that what else the machine does is not in it.

Two states are measured. In `decoding` nothing starts or ends. In `turnover` answers of 300 to 450 tokens end and others start;
where it is `short` the pool holds fewer than there are slots, so that sequences are preempted and do not fit.
"""

from collections.abc import Iterator
from itertools import count
from statistics import median
from time import thread_time

import msgspec

from batcher.config import ReplicaConfig
from batcher.core.replica.scheduler import Scheduler
from batcher.core.replica.sequence import Sequence
from batcher.types import GREEDY

NUM_RUNNING = 256
NUM_PROMPT_TOKENS = 2_000
NUM_STEPS = 400
NUM_WARM_STEPS = 50
BUDGET_US = 400.0
NUM_TENANTS = 50
_NEVER_ENDS = 100_000
_ANSWER_TOKENS = 300


class Case(msgspec.Struct, frozen=True):
    name: str
    num_blocks: int
    num_waiting: int
    depth: int
    max_tokens: int = _NEVER_ENDS
    num_slots: int = NUM_RUNNING


CASES = (
    *(Case("decoding", blocks, waiting, depth) for blocks in (40_000, 400_000) for waiting in (0, 1_000) for depth in (1, 2)),
    Case("turnover", 40_000, 1_000, 2, max_tokens=_ANSWER_TOKENS),
    Case("turnover, short", 30_000, 1_000, 2, max_tokens=_ANSWER_TOKENS),
)


def measure(case: Case) -> list[float]:
    """Microseconds of each of NUM_STEPS steps."""
    config = ReplicaConfig(
        num_blocks=case.num_blocks,
        max_num_seqs=case.num_slots,
        max_model_len=NUM_PROMPT_TOKENS + 2 * _NEVER_ENDS,
        prefill_chunk=8 * NUM_PROMPT_TOKENS,
        reserved_slot_share=0.0,
        max_waiting=2 * max(case.num_waiting, NUM_RUNNING),
    )
    scheduler = Scheduler(config)
    ids = count(1)
    for _ in range(NUM_RUNNING + case.num_waiting):
        scheduler.submit(_sequence(next(ids), case), now=0.0)
    while scheduler.statistics().num_waiting > case.num_waiting and scheduler.statistics().num_free_slots:
        step = scheduler.schedule(now=0.0)
        assert step is not None
        scheduler.update(step, range(step.num_sampled), now=0.0)
        if scheduler.statistics().counters.num_preemptions:
            break
    return _time_steps(scheduler, case, ids)


def _sequence(sequence_id: int, case: Case) -> Sequence:
    """Prompts differ in length by up to a block, so that not all need their next one in the same step; answers differ too."""
    spread = sequence_id % 16
    return Sequence(
        id=sequence_id,
        tenant=f"tenant-{sequence_id % NUM_TENANTS}",
        tier="paid",
        prompt=[sequence_id, *range(NUM_PROMPT_TOKENS - 1 - spread)],
        max_tokens=case.max_tokens + (sequence_id * 37) % (case.max_tokens // 2),
        sampling=GREEDY,
        stop_ids=frozenset({1_000_000}),
        arrived_at=0.0,
    )


def _time_steps(scheduler: Scheduler, case: Case, ids: Iterator[int]) -> list[float]:
    """Whoever ends is followed by a newcomer, outside of what is timed."""
    durations = []
    flights = [scheduler.schedule(now=0.0) for _ in range(case.depth - 1)]
    num_live = scheduler.num_live
    for _ in range(NUM_WARM_STEPS + NUM_STEPS):
        tokens = list(range(flights[0].num_sampled)) if flights and flights[0] is not None else None
        begin = thread_time()
        flights.append(scheduler.schedule(now=0.0))
        scheduled_at = thread_time()
        step = flights.pop(0)
        assert step is not None
        if tokens is None:
            tokens = list(range(step.num_sampled))
        resumed_at = thread_time()
        scheduler.update(step, tokens, now=0.0)
        durations.append((thread_time() - resumed_at + scheduled_at - begin) * 1e6)
        while scheduler.num_live < num_live:
            scheduler.submit(_sequence(next(ids), case), now=0.0)
    return durations[NUM_WARM_STEPS:]


def main() -> None:
    print(f"{NUM_RUNNING} sequences of {NUM_PROMPT_TOKENS} tokens, {NUM_STEPS} steps: CPU microseconds of schedule + update")
    heads = f"{'blocks':>8} {'waiting':>8} {'depth':>6} {'median':>8} {'p99':>8} {'max':>8}"
    print(f"{'':18} {heads}   median within {BUDGET_US:.0f}")
    for case in CASES:
        durations = sorted(measure(case))
        p99 = durations[int(0.99 * len(durations))]
        verdict = "yes" if median(durations) < BUDGET_US else "NO"
        counts = f"{case.name:18} {case.num_blocks:>8} {case.num_waiting:>8} {case.depth:>6}"
        print(f"{counts} {median(durations):8.0f} {p99:8.0f} {durations[-1]:8.0f}   {verdict}", flush=True)


if __name__ == "__main__":
    main()
