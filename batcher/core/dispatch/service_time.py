"""What a batch takes: the mean for pacing and capacity, the longest for telling a slow worker from a hung one.

Both are plain weighted averages of what was seen, so they stay between the smallest and the largest sample: a fit over batch
size was refused, for a fit can be negative and then nothing is ever admitted (bentoml/BentoML#3646).
"""

_WEIGHT = 0.1
"""Of each new sample: the last 20 batches or so decide, half a second of a busy fleet."""


class ServiceTime:
    """`mean_s` and `longest_s` start from the configured expectation; the first sample replaces it in the mean."""

    __slots__ = ("_expected_s", "_hang_cap_s", "longest_s", "mean_s", "num_samples")

    def __init__(self, expected_s: float, *, hang_cap_s: float = 30.0) -> None:
        self._expected_s = expected_s
        self._hang_cap_s = hang_cap_s
        """The most that hangs alone may make a batch believed to take."""
        self.mean_s = expected_s
        self.longest_s = expected_s
        """The longest recent batch; decays towards the mean, never below the expectation."""
        self.num_samples = 0

    def observe(self, duration_s: float, *, is_first: bool = False) -> None:
        """Counts a batch that succeeded. Durations are positive; a clock that stands still counts as a microsecond.

        The first batch of a fresh worker warms it up: it tells how long a batch may take, and nothing of what batches take.
        """
        duration_s = max(duration_s, 1e-6)
        if is_first:
            self.longest_s = max(self.longest_s, duration_s)
            return
        self.mean_s += (duration_s - self.mean_s) * (_WEIGHT if self.num_samples else 1.0)
        self.longest_s = max(self._expected_s, duration_s, self.longest_s + (self.mean_s - self.longest_s) * _WEIGHT)
        self.num_samples += 1

    def observe_hang(self, duration_s: float) -> None:
        """A worker was given up after so long. Perhaps batches have become slower, and not workers worse: the next one may
        take longer than this one did, so that a fleet that is slow for good is not killed for ever. Good samples, which such a
        fleet has none of, bring the limit down again.
        """
        self.longest_s = max(self.longest_s, min(duration_s, self._hang_cap_s))
