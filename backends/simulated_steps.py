"""A GPU that pretends, step by step: roofline times of a large model, and a KV cache that holds the tokens themselves.

Its answer is the last user turn, read back from the cache through the block table that the step gives. So a scheduler that
loses, swaps or overwrites a block is seen at once, in the text: a stand-in that took its answer from anywhere else would
forgive that. Times are SPEC S10's arithmetic: a step reads all weights and every sequence's keys and values, and computes; the
slower of the two counts.
"""

import time
from array import array
from collections import deque
from collections.abc import Callable
from enum import StrEnum

import msgspec

from backends.base import KvLayout
from backends.bytes_model import END, NUM_BYTES, ROLES
from batcher.errors import ConfigError
from batcher.types import BLOCK_SIZE, PENDING, ScheduledSequence, Step

_NOTHING = -1
"""In the cache: never written."""


class Answer(StrEnum):
    """How the simulated model answers the last user turn."""

    ECHO = "echo"
    """Once, and then it ends its turn."""
    REPEAT = "repeat"
    """Again and again, until max_tokens: answers of a length that the caller sets."""


class SimulatedSteps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The hardware and model of SPEC S10: 70 billion parameters in 16 bits on 8 GPUs."""

    answer: Answer = Answer.ECHO
    time_scale: float = 1.0
    """Times are multiplied with it; 0 takes no time at all."""
    weight_bytes: float = 140e9
    kv_bytes_per_token: int = 327_680
    memory_bytes_per_s: float = 8 * 3.35e12
    flops_per_s: float = 8 * 989e12 * 0.5
    """Half of the peak, as prefill reaches it."""
    kv_bytes: float = 400e9

    def __post_init__(self) -> None:
        for name in ("weight_bytes", "memory_bytes_per_s", "flops_per_s", "kv_bytes"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; it must be above 0")
        if not 0 <= self.time_scale <= 1000:
            raise ConfigError(f"simulated_time_scale is {self.time_scale!r}; it must be from 0 to 1000")
        if self.kv_bytes_per_token < 1:
            raise ConfigError(f"kv_bytes_per_token is {self.kv_bytes_per_token!r}; it must be at least 1")

    def step_s(self, num_tokens: int, num_context_tokens: int) -> float:
        """What a step takes that computes `num_tokens` and attends to `num_context_tokens`, in seconds (unscaled)."""
        memory_s = (self.weight_bytes + num_context_tokens * self.kv_bytes_per_token) / self.memory_bytes_per_s
        compute_s = self.weight_bytes * num_tokens / self.flops_per_s  # 2 FLOP for each parameter, of 2 bytes each.
        return max(memory_s, compute_s)


class _Reading(msgspec.Struct):
    """Where a slot is in its answer, so that the turn is looked for in the cache once and not at each token."""

    sequence_id: int
    next_start: int
    """The position that its next step begins at, if it just goes on."""
    turn: list[int]
    """The tokens to answer with; END among them is the end."""
    num_said: int


class SimulatedStepBackend:
    """A StepBackend. `_launched` are the steps in flight: their tokens and when they are due.

    `_cache` has the token at each position of each block, `_last` the token that each slot sampled last, `_readings` the
    slots' places in their answers.
    """

    max_inflight_steps = 2

    def __init__(
        self,
        settings: SimulatedSteps,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._launched: deque[tuple[list[int], float]] = deque()
        self._cache = array("h")
        self._last: list[int] = []
        self._readings: list[_Reading | None] = []
        self._free_at = 0.0

    def load(self, layout: KvLayout) -> None:
        self._cache = array("h", [_NOTHING]) * (layout.num_blocks * BLOCK_SIZE)
        self._last = [_NOTHING] * layout.max_num_seqs
        self._readings = [None] * layout.max_num_seqs

    def launch(self, step: Step) -> None:
        assert len(self._launched) < self.max_inflight_steps
        tokens: list[int] = []
        num_context_tokens = 0
        for sequence in step.sequences:
            self._write(sequence)
            num_context_tokens += sequence.start + len(sequence.tokens)
            if sequence.is_sampled:
                tokens.append(self._sample(sequence))
        if step.num_padding:
            num_context_tokens += step.num_padding * (step.sequences[0].start + 1)
        num_tokens = step.num_tokens + step.num_padding
        duration_s = self._settings.step_s(num_tokens, num_context_tokens) * self._settings.time_scale
        self._free_at = max(self._free_at, self._clock()) + duration_s
        self._launched.append((tokens, self._free_at))

    def collect(self) -> list[int]:
        tokens, due_at = self._launched.popleft()
        if self._settings.time_scale and (wait_s := due_at - self._clock()) > 0:
            self._sleep(wait_s)
        return tokens

    def close(self) -> None:
        self._launched.clear()
        self._cache = array("h")

    def _write(self, sequence: ScheduledSequence) -> None:
        cache, table = self._cache, sequence.block_table
        for position, token in enumerate(sequence.tokens, sequence.start):
            value = self._last[sequence.slot] if token == PENDING else token
            cache[table[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE] = value

    def _sample(self, sequence: ScheduledSequence) -> int:
        reading = self._readings[sequence.slot]
        is_going_on = (
            reading is not None and reading.sequence_id == sequence.sequence_id and reading.next_start == sequence.start
        )
        if reading is None or not is_going_on:
            reading = self._readings[sequence.slot] = self._read(sequence)
        reading.next_start = sequence.start + len(sequence.tokens)
        turn = reading.turn
        token = turn[reading.num_said % len(turn)] if reading.num_said < len(turn) or turn[-1] != END else END
        reading.num_said += 1
        self._last[sequence.slot] = token
        return token

    def _read(self, sequence: ScheduledSequence) -> _Reading:
        """Finds the last user turn in the cache, and how much of it was said already (after a preemption)."""
        length = sequence.start + len(sequence.tokens)
        history: list[int] = []
        for block in sequence.block_table[: -(-length // BLOCK_SIZE)]:
            history += self._cache[block * BLOCK_SIZE : (block + 1) * BLOCK_SIZE]
        del history[length:]
        said_from = _last_index(history, ROLES["assistant"], length) + 1
        begin = _last_index(history, ROLES["user"], said_from) + 1
        turn = [token for token in history[begin:said_from] if token < NUM_BYTES]
        if self._settings.answer is Answer.ECHO or not turn:
            turn.append(END)
        return _Reading(sequence.sequence_id, length, turn, length - said_from)


def _last_index(tokens: list[int], wanted: int, end: int) -> int:
    """The last place before `end` where `wanted` stands; -1 if nowhere."""
    for index in range(end - 1, -1, -1):
        if tokens[index] == wanted:
            return index
    return -1
