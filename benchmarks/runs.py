"""One run of one engine over some prompts, and what is said of many: medians with their range.

All engines are reduced to when each token came, so that their figures are computed by the same lines.
"""

import random
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class Run(NamedTuple):
    """When the prompts were handed over, and for each of them when each of its tokens came; seconds on one clock."""

    started_at: float
    token_times: list[list[float]]

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.token_times))

    @property
    def duration_s(self) -> float:
        return max(times[-1] for times in self.token_times) - self.started_at

    @property
    def tokens_per_s(self) -> float:
        """Output tokens, prefill time included."""
        return self.num_tokens / self.duration_s

    @property
    def ttft_p50_s(self) -> float:
        return statistics.median(times[0] - self.started_at for times in self.token_times)

    @property
    def tpot_p50_s(self) -> float:
        """Of the answers with two or more tokens, each by its mean time between tokens; 0 if there is none."""
        means = [(times[-1] - times[0]) / (len(times) - 1) for times in self.token_times if len(times) > 1]
        return statistics.median(means) if means else 0.0


class Contender(Protocol):
    """An engine that is measured beside others."""

    name: str

    def run(self, prompts: list[list[int]], num_output: int) -> Run:
        """Greedy, `num_output` tokens for each prompt whatever they are; all prompts are there at once."""

    def close(self) -> None: ...


def make_prompts(num: int, length: int, *, vocab_size: int, seed: int | str, prefix: Sequence[int] = ()) -> list[list[int]]:
    """Random token ids after a shared prefix. Fresh seeds give fresh prompts: no prefix cache knows them.

    (But a number and its negative are one seed to Python.)"""
    source = random.Random(seed)
    return [[*prefix, *(source.randrange(vocab_size) for _ in range(length))] for _ in range(num)]


def rotated(names: Sequence[str], round_index: int) -> list[str]:
    """Who runs first changes each round, so that nobody always meets the machine in the state that another left."""
    shift = round_index % len(names)
    return [*names[shift:], *names[:shift]]


def spread(values: Iterable[float], *, digits: int = 0, scale: float = 1.0) -> str:
    """`median (lowest-highest)`."""
    scaled = [scale * value for value in values]
    if not scaled:
        return "-"
    middle, low, high = statistics.median(scaled), min(scaled), max(scaled)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}-{high:,.{digits}f})"


def spread_of_ratios(values: Sequence[float], others: Sequence[float]) -> str:
    """Round by round, since the machine drifts between rounds and less within one."""
    return spread([value / other for value, other in zip(values, others, strict=True)], digits=2)
