"""What a decision costs: microseconds of `schedule` and `update` together, for each step.

The device waits for them, so at 256 sequences of 2,000 tokens they must be small beside a step of about 11 ms (SPEC S10), and
must grow neither with the pool nor with the queue: `python -m benchmarks.scheduler`.
"""

from statistics import median
from time import perf_counter

from batcher.config import ReplicaConfig
from batcher.core.replica.scheduler import Scheduler
from batcher.core.replica.sequence import Sequence
from batcher.types import GREEDY

NUM_RUNNING = 256
NUM_PROMPT_TOKENS = 2_000
NUM_STEPS = 1_000
NUM_WARM_STEPS = 50
BUDGET_US = 400.0
_NEVER_ENDS = 100_000


def measure(*, num_blocks: int, num_waiting: int, depth: int) -> list[float]:
    """Microseconds of each of NUM_STEPS steps that decode NUM_RUNNING sequences."""
    config = ReplicaConfig(
        num_blocks=num_blocks,
        max_num_seqs=NUM_RUNNING,
        max_model_len=NUM_PROMPT_TOKENS + _NEVER_ENDS,
        prefill_chunk=8 * NUM_PROMPT_TOKENS,
        reserved_slot_share=0.0,
    )
    scheduler = Scheduler(config)
    for sequence_id in range(1, NUM_RUNNING + num_waiting + 1):
        prompt = [sequence_id, *range(NUM_PROMPT_TOKENS - 1)]
        scheduler.submit(_sequence(sequence_id, prompt), now=0.0)
    while scheduler.statistics().num_decoding < NUM_RUNNING:
        step = scheduler.schedule(now=0.0)
        assert step is not None
        scheduler.update(step, range(step.num_sampled), now=0.0)
    return _time_steps(scheduler, depth=depth)


def _sequence(sequence_id: int, prompt: list[int]) -> Sequence:
    return Sequence(
        id=sequence_id,
        tenant=f"tenant-{sequence_id % 50}",
        tier="paid",
        prompt=prompt,
        max_tokens=_NEVER_ENDS,
        sampling=GREEDY,
        stop_ids=frozenset({1_000_000}),
        arrived_at=0.0,
    )


def _time_steps(scheduler: Scheduler, *, depth: int) -> list[float]:
    durations = []
    flights = [scheduler.schedule(now=0.0) for _ in range(depth - 1)]
    tokens = list(range(NUM_RUNNING))
    for _ in range(NUM_WARM_STEPS + NUM_STEPS):
        begin = perf_counter()
        flights.append(scheduler.schedule(now=0.0))
        step = flights.pop(0)
        assert step is not None
        scheduler.update(step, tokens, now=0.0)
        durations.append((perf_counter() - begin) * 1e6)
        assert len(step.sequences) == NUM_RUNNING
    return durations[NUM_WARM_STEPS:]


def main() -> None:
    print(f"{NUM_RUNNING} sequences of {NUM_PROMPT_TOKENS} tokens, {NUM_STEPS} steps, microseconds of schedule + update a step")
    print(f"{'blocks':>8} {'waiting':>8} {'depth':>6} {'median':>8} {'p99':>8} {'max':>8}   within {BUDGET_US:.0f}")
    for num_blocks in (50_000, 400_000):
        for num_waiting in (0, 1_000):
            for depth in (1, 2):
                durations = sorted(measure(num_blocks=num_blocks, num_waiting=num_waiting, depth=depth))
                p99 = durations[int(0.99 * len(durations))]
                verdict = "yes" if median(durations) < BUDGET_US else "NO"
                counts = f"{num_blocks:>8} {num_waiting:>8} {depth:>6}"
                print(f"{counts} {median(durations):8.0f} {p99:8.0f} {durations[-1]:8.0f}   {verdict}")


if __name__ == "__main__":
    main()
