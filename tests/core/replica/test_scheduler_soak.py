"""A hundred thousand random inputs on a small pool, with every law checked after each: one seed draws them all."""

import random
from math import inf

import pytest

from batcher.config import KvMode, ReplicaConfig, ReplicaPolicy
from tests.core.replica.fake_device import STOP_ID, Shell, a_sequence

NUM_OPERATIONS = 100_000


class Soak:
    def __init__(self, seed: int, config: ReplicaConfig) -> None:
        print(f"seed {seed}")
        self.random = random.Random(seed)
        self.shell = Shell(config)
        self.shell.keeps_steps = False
        self.now = 0.0
        self.next_id = 0
        self.prefix = [self.random.randrange(50) for _ in range(200)]
        self.num_by_outcome: dict[str, int] = {}

    def submit(self) -> None:
        draw = self.random
        self.next_id += 1
        num_shared = draw.choice([0, 0, 5, 16, 32, 33, 64])
        num_own = draw.choice([1, 1, 2, 15, 16, 17, 30, 60])
        self.shell.submit(
            a_sequence(
                self.next_id,
                self.prefix[:num_shared] + [draw.randrange(50) for _ in range(num_own)],
                draw.choice([1, 2, 15, 16, 17, 40, 70, 100]),
                tier=draw.choice(["paid", "free", "free"]),
                tenant=draw.choice(["ann", "bob", "cy"]),
                stop_ids=frozenset({STOP_ID}) if draw.random() < 0.5 else frozenset(),
                arrived_at=self.now,
                deadline_at=self.now + draw.choice([0.5, 5.0, 50.0]),
                salt=draw.choice([None, b"shared"]),
            ),
            now=self.now,
        )

    def drop_ended(self) -> None:
        """Keeps the books as short as what is live."""
        shell = self.shell
        for sequence_id in [sequence_id for sequence_id in shell.sequences if sequence_id in shell.ends]:
            outcome = shell.ends.pop(sequence_id)
            self.num_by_outcome[outcome.value] = self.num_by_outcome.get(outcome.value, 0) + 1
            del shell.sequences[sequence_id], shell.outputs[sequence_id]

    def act(self) -> None:
        shell = self.shell
        roll = self.random.random()
        self.now += self.random.choice([0.0, 0.001, 0.01, 0.05])
        if roll < 0.11:
            self.submit()
        elif roll < 0.54 or (roll < 0.96 and not shell.num_inflight):
            shell.schedule(now=self.now)
        elif roll < 0.96:
            shell.update(now=self.now)
        elif roll < 0.97 and shell.sequences:
            shell.cancel(self.random.choice(list(shell.sequences)), now=self.now)
        elif roll < 0.975 and shell.sequences:
            shell.finish(self.random.choice(list(shell.sequences)), now=self.now)
        elif roll < 0.978 and shell.num_inflight:
            shell.fail_step(now=self.now)
        elif roll < 0.9781:
            shell.fail_all(now=self.now)
        else:
            shell.perform(shell.scheduler.tick(now=self.now))

    def run(self, num_operations: int) -> None:
        for _ in range(num_operations):
            self.act()
            self.shell.scheduler.check()
            self.drop_ended()
            num_untold = len(self.shell.sequences) - self.shell.scheduler.num_live
            assert num_untold == 0 or (num_untold > 0 and self.shell.scheduler.next_deadline() == -inf), "an end was not told"
        for _ in range(100):
            self.now += 1.0
            self.shell.perform(self.shell.scheduler.tick(now=self.now))
            self.shell.run(depth=2, now=self.now)
            self.drop_ended()
        self.shell.check_all_ended()


@pytest.mark.parametrize(
    ("seed", "share", "settings"),
    [
        (1, 0.6, {}),
        (2, 0.1, {"max_preemptions": 1, "max_overtakes": 1, "growth_blocks": 0}),
        (3, 0.1, {"prefill_chunk": 0, "has_prefix_cache": False}),
        (4, 0.1, {"policy": ReplicaPolicy.STATIC, "static_timeout_s": 0.1}),
        (5, 0.05, {"policy": ReplicaPolicy.SINGLE}),
        (6, 0.05, {"kv": KvMode.CONTIGUOUS}),
        (7, 0.05, {"prefill_chunk": 128, "prefill_stretch": 1.5}),
    ],
)
def test_random_inputs(seed: int, share: float, settings: dict[str, object]) -> None:
    config = ReplicaConfig(
        **({"num_blocks": 40, "max_num_seqs": 8, "max_model_len": 220, "prefill_chunk": 24, "max_waiting": 12} | settings)  # type: ignore[arg-type]
    )
    soak = Soak(seed, config)
    soak.run(int(NUM_OPERATIONS * share))
    counters = soak.shell.scheduler.statistics().counters
    print(soak.num_by_outcome, counters)
    assert {"ok", "expired", "cancelled", "failed"} <= set(soak.num_by_outcome), "the soak reaches too little"
    if not settings:
        reached = counters.num_preemptions, counters.num_overtakes, counters.num_late_tokens, counters.num_displaced
        assert min(reached) >= 5, "the soak reaches too little"
