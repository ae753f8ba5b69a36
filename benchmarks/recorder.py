"""A StepBackend that writes down what passes through it: which sequences shared each step, and when each token came.

The engine's own meters are histograms for a service; a benchmark wants every step, to hold it against what the hardware allows,
and every token's instant, to find the one gap that hurts. Watching from outside the engine leaves it as it is in service.

It can also decide how long answers are. The length of a real answer is not known before its stop token, and an engine that
knew it would reserve less; so a planned answer is given a large `max_tokens`, and the recorder puts a stop token in at the
planned place, and another token wherever the model itself would have stopped.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from backends.base import KvLayout, Model, StepBackend
from batcher.types import Step

Clock = Callable[[], float]

CLOCK: Clock = time.perf_counter
"""One clock for all engines: transformers stamps its tokens with this one."""


class Part(NamedTuple):
    """One sequence's share of a step."""

    sequence_id: int
    start: int
    num_tokens: int
    is_sampled: bool


class StepRecord(NamedTuple):
    parts: tuple[Part, ...]
    launched_at: float
    ended_at: float

    @property
    def num_tokens(self) -> int:
        return sum(part.num_tokens for part in self.parts)

    @property
    def is_decode(self) -> bool:
        """Whether it is decodes alone."""
        return all(part.num_tokens == 1 and part.start > 0 for part in self.parts)


class Recorder:
    """Implements `StepBackend` around another one.

    `steps` and `token_times` (sequence id -> when each of its tokens came) hold what happened since `clear`; `planned` has the
    number of tokens of each answer that is to stop before its `max_tokens`.
    """

    def __init__(self, inner: StepBackend, *, stop_ids: frozenset[int], clock: Clock = CLOCK) -> None:
        self.max_inflight_steps = inner.max_inflight_steps
        self.steps: list[StepRecord] = []
        self.token_times: dict[int, list[float]] = {}
        self.planned: dict[int, int] = {}
        self._inner = inner
        self._clock = clock
        self._stop_ids = stop_ids
        self._stop_id = min(stop_ids)
        self._other_id = next(token for token in range(len(stop_ids) + 1) if token not in stop_ids)
        self._launched: deque[tuple[tuple[Part, ...], float]] = deque()

    def clear(self) -> None:
        self.steps.clear()
        self.token_times.clear()
        self.planned.clear()

    def load(self, layout: KvLayout) -> None:
        self._inner.load(layout)
        self.max_inflight_steps = self._inner.max_inflight_steps

    def launch(self, step: Step) -> None:
        parts = tuple([Part(each.sequence_id, each.start, len(each.tokens), each.is_sampled) for each in step.sequences])
        self._launched.append((parts, self._clock()))
        self._inner.launch(step)

    def collect(self) -> list[int]:
        parts, launched_at = self._launched.popleft()
        tokens = self._inner.collect()
        now = self._clock()
        self.steps.append(StepRecord(parts, launched_at, now))
        sampled = [part.sequence_id for part in parts if part.is_sampled]
        return [self._note(sequence_id, token, now) for sequence_id, token in zip(sampled, tokens, strict=True)]

    def close(self) -> None:
        self._launched.clear()
        self._inner.close()

    def _note(self, sequence_id: int, token: int, now: float) -> int:
        times = self.token_times.setdefault(sequence_id, [])
        num_planned = self.planned.get(sequence_id)
        if num_planned is None:
            times.append(now)
            return token
        if len(times) == num_planned:
            return token  # It was launched before its stop token was collected; the scheduler drops it.
        times.append(now)
        if len(times) == num_planned:
            return self._stop_id
        return self._other_id if token in self._stop_ids else token


class RecordedModel:
    """A Model whose backends are recorded; `recorder` is the latest."""

    def __init__(self, model: Model) -> None:
        self.info = model.info
        self.tokenizer = model.tokenizer
        self.recorder: Recorder | None = None
        self._model = model

    def make_backend(self) -> StepBackend:
        self.recorder = Recorder(self._model.make_backend(), stop_ids=self.tokenizer.stop_ids)
        return self.recorder
