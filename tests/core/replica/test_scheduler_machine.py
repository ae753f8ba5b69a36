"""The scheduler against the plain model, by rules: each sequence's tokens are those that it gets alone.

The shell compares them at each end; the laws are checked after every rule; and whatever was submitted has one end in the end.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from batcher.config import KvMode, ReplicaConfig, ReplicaPolicy
from tests.core.replica.fake_device import STOP_ID, Shell, a_sequence, alone

SHARED = [5, 1, 4, 2] * 20
DURATIONS_S = st.sampled_from([0.0, 0.001, 0.01, 10.0])
"""Of steps: chunks beside decodes follow them."""


class SchedulerMachine(RuleBasedStateMachine):
    shell: Shell

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.next_id = 1

    @initialize(
        num_blocks=st.integers(5, 24),
        max_num_seqs=st.integers(1, 5),
        prefill_chunk=st.sampled_from([0, 16, 17, 40, 100]),
        prefill_stretch=st.sampled_from([0.0, 1.1, 2.0]),
        policy=st.sampled_from([ReplicaPolicy.CONTINUOUS] * 4 + list(ReplicaPolicy)),
        kv=st.sampled_from([KvMode.PAGED, KvMode.PAGED, KvMode.CONTIGUOUS]),
        has_prefix_cache=st.booleans(),
        growth_blocks=st.integers(0, 2),
        max_preemptions=st.integers(0, 3),
        max_overtakes=st.integers(0, 3),
        max_waiting=st.integers(1, 8),
    )
    def begin(self, **choices: object) -> None:
        self.shell = Shell(ReplicaConfig(max_model_len=160, static_timeout_s=1.0, **choices))  # type: ignore[arg-type]
        self.shell.keeps_steps = False

    @rule(
        num_shared=st.sampled_from([0, 0, 16, 17, 40, 80]),
        own=st.lists(st.integers(0, 49), min_size=1, max_size=40),
        max_tokens=st.sampled_from([1, 2, 15, 16, 17, 40]),
        tier=st.sampled_from(["paid", "free"]),
        tenant=st.sampled_from(["ann", "bob"]),
        stops=st.booleans(),
        patience_s=st.sampled_from([0.5, 3.0, 1000.0]),
        salt=st.sampled_from([None, b""]),
    )
    def submit(
        self,
        num_shared: int,
        own: list[int],
        max_tokens: int,
        tier: str,
        tenant: str,
        stops: bool,
        patience_s: float,
        salt: bytes | None,
    ) -> None:
        sequence = a_sequence(
            self.next_id,
            SHARED[:num_shared] + own,
            max_tokens,
            tier=tier,
            tenant=tenant,
            stop_ids=frozenset({STOP_ID}) if stops else frozenset(),
            arrived_at=self.now,
            deadline_at=self.now + patience_s,
            salt=salt,
        )
        self.next_id += 1
        self.shell.submit(sequence, now=self.now)

    @rule(num=st.integers(1, 12), depth=st.integers(1, 2), durations_s=st.lists(DURATIONS_S, min_size=1, max_size=3))
    def run_steps(self, num: int, depth: int, durations_s: list[float]) -> None:
        for index in range(num):
            while self.shell.num_inflight < depth and self.shell.schedule(now=self.now) is not None:
                pass
            if self.shell.num_inflight:
                self.now += durations_s[index % len(durations_s)]
                self.shell.update(now=self.now)

    @rule()
    def schedule(self) -> None:
        self.shell.schedule(now=self.now)

    @precondition(lambda self: self.shell.num_inflight)
    @rule()
    def fail_step(self) -> None:
        self.shell.fail_step(now=self.now)

    @precondition(lambda self: self.shell.live_ids())
    @rule(data=st.data(), is_cancelled=st.booleans())
    def drop(self, data: st.DataObject, is_cancelled: bool) -> None:
        sequence_id = data.draw(st.sampled_from(self.shell.live_ids()))
        (self.shell.cancel if is_cancelled else self.shell.finish)(sequence_id, now=self.now)

    @rule(after_s=st.sampled_from([0.1, 1.0, 5.0]))
    def wait(self, after_s: float) -> None:
        self.now += after_s
        self.shell.perform(self.shell.scheduler.tick(now=self.now))
        deadline = self.shell.scheduler.next_deadline()
        is_batch_due = self.shell.config.policy is ReplicaPolicy.STATIC
        assert deadline is None or deadline > self.now or is_batch_due

    @invariant()
    def laws(self) -> None:
        if hasattr(self, "shell"):
            self.shell.scheduler.check()
            self.shell.scheduler.check(deep=False)

    @invariant()
    def tokens_so_far_are_the_models(self) -> None:
        if hasattr(self, "shell"):
            for sequence_id, output in self.shell.outputs.items():
                sequence = self.shell.sequences[sequence_id]
                expected, _ = alone(sequence.prompt, sequence.max_tokens, sequence.stop_ids)
                assert output == expected[: len(output)]
                assert len(output) >= sequence.num_output_tokens

    def teardown(self) -> None:
        if not hasattr(self, "shell"):
            return
        for _ in range(3):
            self.now += 1.0
            self.shell.perform(self.shell.scheduler.tick(now=self.now))
            self.shell.run(depth=2, now=self.now)
        self.shell.check_all_ended()


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
