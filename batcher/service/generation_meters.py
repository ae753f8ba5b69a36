"""What is measured of generated answers: plain counters of one thread, turned into metrics when somebody asks (DESIGN D7).

Reading them from another thread is safe and may be a request behind.
"""

from collections.abc import Iterable

from batcher.service.meters import Histogram
from batcher.types import FinishReason

GENERATION_BOUNDS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.5, 0.75, 1.0),
    *(1.5, 2.5, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0),
)
"""From a token's milliseconds to an answer's minutes, close around SPEC S3's targets of 50 ms and 1 s."""

STEP_BOUNDS_S = (0.0001, 0.00025, 0.0005, *GENERATION_BOUNDS_S)
BATCH_BOUNDS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048, 4096)
"""Sequences of a step, up to the most that can be configured."""


class GenerationTierMeters:
    """One tier's requests, from their arrival."""

    __slots__ = ("e2e_s", "finishes", "queue_s", "tpot_s", "ttft_s")

    def __init__(self) -> None:
        self.finishes = dict.fromkeys(FinishReason, 0)
        """How the whole answers ended."""
        self.queue_s = Histogram(GENERATION_BOUNDS_S)
        """Until the first step that computes some of the prompt."""
        self.ttft_s = Histogram(GENERATION_BOUNDS_S)
        """Until the first token."""
        self.tpot_s = Histogram(GENERATION_BOUNDS_S)
        """The mean time between tokens of an answer with two or more; whole answers only."""
        self.e2e_s = Histogram(GENERATION_BOUNDS_S)
        """Whole answers only."""


class EngineMeters:
    """All that one engine counts by itself; what its scheduler counts is in the scheduler's statistics."""

    def __init__(self, tiers: Iterable[str]) -> None:
        self.tiers = {tier: GenerationTierMeters() for tier in tiers}
        self.step_s = Histogram(STEP_BOUNDS_S)
        """From the launch of a step, or the end of the one before if that is later, until its tokens are here."""
        self.step_sequences = Histogram(BATCH_BOUNDS)
        self.num_input_tokens = 0
        """Prompt tokens of the sequences that have started."""
        self.num_output_tokens = 0
        self.num_failed_steps = 0
        self.num_losses = 0
        """Times that the backend was given up."""
