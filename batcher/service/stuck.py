"""How long a thread has been busy with one thing, seen from an event loop that may itself have stood still."""

from collections.abc import Callable


class StuckTime:
    """Asked every `interval_s`; what comes later than that was no time of the thread's either: the process was stopped, or its
    machine was, and when it goes on so does the thread.

    `_busy_since` is of the pass that was in progress when it was last asked, `_asleep_s` what of that pass was no time of ours.
    """

    def __init__(self, clock: Callable[[], float], *, interval_s: float) -> None:
        self._interval_s = interval_s
        self._asked_at = clock()
        self._busy_since: float | None = None
        self._asleep_s = 0.0

    def measure_s(self, busy_since: float | None, *, now: float) -> float:
        """Of the pass that began at `busy_since`; 0 if there is none."""
        if busy_since != self._busy_since:
            self._busy_since, self._asleep_s = busy_since, 0.0
        self._asleep_s += max(0.0, now - self._asked_at - self._interval_s)
        self._asked_at = now
        return 0.0 if busy_since is None else max(0.0, now - busy_since - self._asleep_s)
