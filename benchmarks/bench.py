"""Our engine alone: no HTTP, no thread, no event loop, so that what is measured is scheduling and computing."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from backends.base import Model
from batcher.config import KvMode, ReplicaConfig, ReplicaPolicy
from batcher.service.engine import Engine
from batcher.service.generation import Failed, GenerationRequest
from batcher.types import BLOCK_SIZE, GREEDY
from benchmarks.recorder import CLOCK, RecordedModel, Recorder, StepRecord
from benchmarks.runs import Run

_SPARE_BLOCKS = 1.25
"""Of what all that run need at once: memory is not what is measured unless a benchmark says so."""


class Ask(NamedTuple):
    """One answer of `num_output` tokens. If `max_tokens` is larger, the engine does not know that it will be so short."""

    prompt: list[int]
    num_output: int
    max_tokens: int


def exactly(prompts: Sequence[list[int]], num_output: int) -> list[Ask]:
    return [Ask(prompt, num_output, num_output) for prompt in prompts]


def num_blocks_of(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK_SIZE)


def roomy(num_blocks: int) -> int:
    """Blocks for a pool of which so many are needed at once, and nobody waits for one."""
    return int(num_blocks * _SPARE_BLOCKS) + 2


def make_config(
    *,
    at_a_time: int,
    max_len: int,
    prefill_chunk: int,
    prefill_stretch: float = ReplicaConfig().prefill_stretch,
    num_blocks: int | None = None,
    policy: ReplicaPolicy = ReplicaPolicy.CONTINUOUS,
    kv: KvMode = KvMode.PAGED,
    has_prefix_cache: bool = True,
) -> ReplicaConfig:
    """A replica for `at_a_time` sequences of at most `max_len` tokens; without `num_blocks` there is room for all."""
    return ReplicaConfig(
        policy=policy,
        kv=kv,
        num_blocks=num_blocks or roomy(at_a_time * num_blocks_of(max_len)),
        max_num_seqs=at_a_time,
        max_model_len=max_len,
        prefill_chunk=prefill_chunk,
        prefill_stretch=prefill_stretch,
        has_prefix_cache=has_prefix_cache,
        reserved_slot_share=0.0,
    )


class Bench:
    """A loaded engine and its recorder. Also a `Contender`."""

    name = "ours"

    def __init__(self, model: Model, config: ReplicaConfig) -> None:
        self._model = RecordedModel(model)
        self.engine = Engine(self._model, config, clock=CLOCK)
        self.engine.load()
        self._next_id = 1

    @property
    def recorder(self) -> Recorder:
        assert self._model.recorder is not None
        return self._model.recorder

    @property
    def steps(self) -> list[StepRecord]:
        """Of the last run."""
        return self.recorder.steps

    def run(self, prompts: list[list[int]], num_output: int) -> Run:
        return self.answer(exactly(prompts, num_output))

    def answer(self, asks: Sequence[Ask], *, on_step: Callable[[], None] | None = None) -> Run:
        """Answers them all, and what `on_step`, called after each step, submits meanwhile; in the order of submission.

        Raises RuntimeError if one fails: a benchmark that lost an answer has no figure."""
        self.recorder.clear()
        first_id = self._next_id
        started_at = CLOCK()
        for ask in asks:
            self.submit(ask)
        while self.engine.num_live:
            self._step()
            if on_step is not None:
                on_step()
        return Run(started_at, [self.recorder.token_times[each] for each in range(first_id, self._next_id)])

    def submit(self, ask: Ask) -> int:
        """Returns the sequence's id."""
        sequence_id = self._next_id
        self._next_id += 1
        is_exact = ask.num_output == ask.max_tokens
        if not is_exact:
            self.recorder.planned[sequence_id] = ask.num_output
        request = GenerationRequest(
            tenant="benchmark",
            tier=self.engine.config.tiers[0],
            prompt=ask.prompt,
            max_tokens=ask.max_tokens,
            sampling=GREEDY,
            ignores_stop=is_exact,
        )
        if events := self.engine.submit(sequence_id, request, now=CLOCK()):
            raise RuntimeError(f"a request was refused: {events[0][1]!r}")
        return sequence_id

    def close(self) -> None:
        self.engine.close()

    def __str__(self) -> str:
        config = self.engine.config
        return (
            f"ours: {config.policy.value}, {config.kv.value} KV of {config.num_blocks} blocks, at most {config.max_num_seqs} "
            f"sequences and {config.prefill_chunk} prompt tokens a step"
        )

    def _step(self) -> None:
        for _, event in self.engine.step():
            if isinstance(event, Failed):
                raise RuntimeError(f"an answer failed: {event.error!r}")
        if self.engine.lost is not None:
            raise RuntimeError("the model was lost") from self.engine.lost
        wait_s = self.engine.wait_s()
        assert wait_s is not None or not self.engine.num_live, "what is live waits for nothing"
        if wait_s:
            time.sleep(wait_s)
