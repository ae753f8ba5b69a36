"""A device whose every token depends on every token before it, read back from the blocks it was told to read.

So a block that was given away too early, shared wrongly, published before it was computed or written twice shows itself as a
wrong token. `alone` is the plain model: what a sequence must get whatever else runs, however it is cut, preempted or cached.
"""

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Items

from batcher.config import ReplicaConfig, ReplicaPolicy
from batcher.core.effects import Emit, ReplicaEffects
from batcher.core.replica.scheduler import Scheduler
from batcher.core.replica.sequence import Sequence
from batcher.errors import ServerFault, ServiceError
from batcher.types import BLOCK_SIZE, GREEDY, PENDING, FinishReason, Outcome, Step

VOCAB_SIZE = 50
STOP_ID = 7
_POSITIONS = 1 << 14
"""A key is a token and its position in one number."""


def next_token(keys: Items[int]) -> int:
    return hash(tuple(keys)) % VOCAB_SIZE


def alone(prompt: Items[int], max_tokens: int, stop_ids: frozenset[int]) -> tuple[list[int], FinishReason]:
    keys = [token * _POSITIONS + position for position, token in enumerate(prompt)]
    output: list[int] = []
    while len(output) < max_tokens:
        output.append(next_token(keys))
        if output[-1] in stop_ids:
            return output, FinishReason.END_TURN
        keys.append(output[-1] * _POSITIONS + len(keys))
    return output, FinishReason.MAX_TOKENS


class FakeDevice:
    """Computes at launch and tells at collect, as if it ran behind. Steps take effect in the order of their launches."""

    def __init__(self, config: ReplicaConfig) -> None:
        self._keys = [-1] * (config.num_blocks * BLOCK_SIZE)
        self._last = [-1] * config.max_num_seqs
        self._launched: deque[tuple[Step, list[int]]] = deque()

    def launch(self, step: Step) -> None:
        written: set[int] = set()
        for part in step.sequences:
            assert part.tokens
            assert PENDING not in part.tokens or len(part.tokens) == 1
            for position, token in enumerate(part.tokens, part.start):
                place = part.block_table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
                assert place not in written, "two sequences write to one place in one step"
                written.add(place)
                known = self._last[part.slot] if token == PENDING else token
                self._keys[place] = known * _POSITIONS + position
        tokens = []
        for part in step.sequences:
            if part.is_sampled:
                tokens.append(next_token(self._read(part.block_table, part.start + len(part.tokens))))
                self._last[part.slot] = tokens[-1]
        assert len({part.slot for part in step.sequences}) == len(step.sequences), "two sequences have one slot"
        self._launched.append((step, tokens))

    def collect(self) -> tuple[Step, list[int]]:
        return self._launched.popleft()

    def forget(self) -> None:
        self._launched.clear()

    def _read(self, block_table: Iterable[int], num: int) -> list[int]:
        keys: list[int] = []
        for block in block_table:
            keys += self._keys[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE]
            if len(keys) >= num:
                break
        return keys[:num]


class Shell:
    """Drives a scheduler and a fake device, and doubts what it is told: one end for each, tokens in order and as alone."""

    def __init__(self, config: ReplicaConfig, *, model_version: str = "") -> None:
        self.config = config
        self.scheduler = Scheduler(config, model_version=model_version)
        self.device = FakeDevice(config)
        self.sequences: dict[int, Sequence] = {}
        self.outputs: dict[int, list[int]] = {}
        self.finishes: dict[int, FinishReason] = {}
        self.ends: dict[int, Outcome] = {}
        self.errors: dict[int, ServiceError] = {}
        self.num_inflight = 0
        self.steps: list[Step] = []
        self.keeps_steps = True

    def submit(self, sequence: Sequence, *, now: float = 0.0) -> ReplicaEffects:
        self.sequences[sequence.id] = sequence
        self.outputs[sequence.id] = []
        return self.perform(self.scheduler.submit(sequence, now=now))

    def schedule(self, *, now: float = 0.0) -> Step | None:
        step = self.scheduler.schedule(now=now)
        if step is not None:
            assert 0 < step.num_tokens == sum(len(part.tokens) for part in step.sequences) <= self.scheduler.max_step_tokens
            self.device.launch(step)
            self.num_inflight += 1
            if self.keeps_steps:
                self.steps.append(step)
        elif not self.num_inflight:
            statistics = self.scheduler.statistics()
            assert not statistics.num_running, "something runs and cannot go on"
            assert self.config.policy is ReplicaPolicy.STATIC or not statistics.num_live, (
                "something waits before an idle device"
            )
        return step

    def update(self, *, now: float = 0.0) -> ReplicaEffects:
        self.num_inflight -= 1
        step, tokens = self.device.collect()
        return self.perform(self.scheduler.update(step, tokens, now=now))

    def fail_step(self, *, now: float = 0.0) -> ReplicaEffects:
        self.num_inflight -= 1
        step, _ = self.device.collect()
        return self.perform(self.scheduler.fail_step(step, ServerFault("the step raised"), now=now))

    def fail_all(self, *, now: float = 0.0) -> ReplicaEffects:
        self.num_inflight = 0
        self.device.forget()
        return self.perform(self.scheduler.fail_all(ServerFault("the engine is gone"), now=now))

    def cancel(self, sequence_id: int, *, now: float = 0.0) -> None:
        self.scheduler.cancel(sequence_id, now=now)
        if sequence_id in self.live_ids():
            self.ends[sequence_id] = Outcome.CANCELLED

    def finish(self, sequence_id: int, *, now: float = 0.0) -> None:
        self.scheduler.finish(sequence_id, now=now)
        if sequence_id in self.live_ids():
            self.ends[sequence_id] = Outcome.OK
            self.finishes[sequence_id] = FinishReason.STOP_SEQUENCE

    def live_ids(self) -> list[int]:
        return [sequence_id for sequence_id in self.sequences if sequence_id not in self.ends]

    def step(self, *, now: float = 0.0) -> Step | None:
        """One step from end to end."""
        if (step := self.schedule(now=now)) is not None:
            self.update(now=now)
        return step

    def run(self, *, depth: int = 1, max_steps: int = 10_000, now: float = 0.0, checks: bool = True) -> int:
        """Until nothing is left to do; returns the number of steps."""
        num_steps = 0
        for _ in range(max_steps):
            while self.num_inflight < depth and self.schedule(now=now) is not None:
                num_steps += 1
            if not self.num_inflight:
                break
            self.update(now=now)
            if checks:
                self.scheduler.check()
        assert not self.num_inflight, "it does not come to an end"
        return num_steps

    def perform(self, effects: ReplicaEffects) -> ReplicaEffects:
        for effect in effects:
            assert effect.sequence_id not in self.ends, f"an effect after the end: {effect}"
            if isinstance(effect, Emit):
                self._emit(effect)
            else:
                self.ends[effect.sequence_id] = effect.outcome
                self.errors[effect.sequence_id] = effect.error
        return effects

    def _emit(self, effect: Emit) -> None:
        sequence = self.sequences[effect.sequence_id]
        output = self.outputs[effect.sequence_id]
        output.append(effect.token)
        if effect.finish is not None:
            self.ends[effect.sequence_id] = Outcome.OK
            self.finishes[effect.sequence_id] = effect.finish
            expected = alone(sequence.prompt, sequence.max_tokens, sequence.stop_ids)
            assert (output, effect.finish) == expected, f"{sequence!r} got other tokens than alone"

    def check_all_ended(self) -> None:
        """What is left when everything has ended: nothing."""
        assert not self.live_ids()
        statistics = self.scheduler.statistics()
        self.scheduler.check()
        assert not self.scheduler.has_work
        assert (statistics.num_live, statistics.num_held_blocks, statistics.num_inflight_steps) == (0, 0, 0)
        assert statistics.num_free_slots == statistics.num_slots
        assert statistics.num_free_blocks + statistics.num_cached_blocks == statistics.num_blocks


def a_sequence(
    sequence_id: int,
    prompt: Items[int] | int = 4,
    max_tokens: int = 4,
    *,
    tier: str = "paid",
    tenant: str = "ann",
    stop_ids: frozenset[int] = frozenset(),
    arrived_at: float = 0.0,
    deadline_at: float = 1000.0,
    salt: bytes | None = None,
) -> Sequence:
    """A number stands for a prompt of so many tokens that no other sequence has."""
    if isinstance(prompt, int):
        prompt = [100 + sequence_id, *range(prompt - 1)]
    return Sequence(
        id=sequence_id,
        tenant=tenant,
        tier=tier,
        prompt=prompt,
        max_tokens=max_tokens,
        sampling=GREEDY,
        stop_ids=stop_ids,
        arrived_at=arrived_at,
        deadline_at=deadline_at,
        salt=salt,
    )


def a_shell(**settings: object) -> Shell:
    """Small by default, so that a test reaches every limit."""
    small: dict[str, object] = {"num_blocks": 64, "max_num_seqs": 8, "max_model_len": 512, "prefill_chunk": 32}
    return Shell(ReplicaConfig(**(small | settings)))  # type: ignore[arg-type]
