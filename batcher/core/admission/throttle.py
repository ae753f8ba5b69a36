"""What follows the queue (SPEC S8.2, S8.4): a tier's limits are tightened as it grows, and then some of its keys are shed.

The gate alone refuses by the moment: whoever asks while the queue is long. The throttle learns what share the gate refuses and
has that share borne by as few keys as will do: shed keys may wait for no more than a part of the budget, so while the others
fill the queue they find no place, and when the others leave room it is theirs. Turning shed keys away whatever the queue is
was refused: a share that is learned is always a little wrong, and then workers are idle while callers are refused.
"""

from math import exp

MAX_PRESSURE = 2.0
"""What is told of a wait that is longer than this many budgets: the longer ones differ in nothing."""

SHED_BUDGET = 0.25
"""The part of its tier's budget that a shed key may wait for: so much less than the others that they do not come up against it
when the queue swings by a batch, and whoever fits into the next batch waits for nothing, so that there is always a full one."""

FREE_PRESSURE, FULL_PRESSURE, MIN_FACTOR = 0.5, 1.0, 0.5
"""Limits are whole up to the first pressure, and fall in a line to this part at the second. Half, and no less: the limits'
part in an overload is to slow the heaviest, the gate's is to hold."""

INTERVAL_S = 0.25
"""How often the throttle moves: some batches long, and several times within a caller's patience."""

_PRESSURE_TIME_S = 1.0
"""The memory of the pressure."""

_TARGET_REFUSED = 0.05
"""The share of requests of keys that are not shed that the gate still refuses in an overload: at nought nobody would know
whether more could be let in."""

_MIN_SAMPLE = 20
"""Requests from which a share is learned; fewer are gathered over MAX_INTERVALS."""
_MAX_INTERVALS = 8

_MOST_SHED, _MOST_RECOVERED = 0.5, 1.25
"""What the share of keys that are not shed may be multiplied by in one move."""

_MIN_ADMITTED = 0.02
"""The share of keys that is never shed: a tier has a minimum in any case (CASES B59)."""


class Throttle:
    """One tier's. `_num_*` and `_pressures` are of the interval that ends at `_moves_at`, or of some since the share moved."""

    __slots__ = (
        "_moved_at",
        "_moves_at",
        "_num_admitted",
        "_num_asked",
        "_num_intervals",
        "_num_refused",
        "_pressures",
        "admitted_share",
        "pressure",
    )

    def __init__(self) -> None:
        self.pressure = 0.0
        """Estimated wait over what those who ask may wait for, over about a second; from 0 to MAX_PRESSURE."""
        self.admitted_share = 1.0
        """Keys whose score is below it are not shed."""
        self._moved_at = self._moves_at = 0.0
        self._pressures = 0.0
        self._num_asked = self._num_admitted = self._num_refused = self._num_intervals = 0

    def observe(self, wait_s: float, limit_s: float, *, now: float) -> None:
        """A request of this tier asks, and may wait for `limit_s`. `wait_s` may be infinite, `limit_s` zero."""
        if now >= self._moves_at:
            self._move(now=now)
        self._num_asked += 1
        if wait_s:
            self._pressures += min(wait_s / limit_s, MAX_PRESSURE) if limit_s else MAX_PRESSURE

    def count(self, *, is_refused: bool) -> None:
        """The gate has decided about a request of a key that is not shed."""
        if is_refused:
            self._num_refused += 1
        else:
            self._num_admitted += 1

    def pressure_at(self, now: float) -> float:
        """As `pressure`; if nobody asks it fades, since nobody can wait."""
        idle_s = now - self._moves_at
        return self.pressure if idle_s <= 0.0 else self.pressure * exp(-idle_s / _PRESSURE_TIME_S)

    def limit_factor(self, *, now: float) -> float:
        if self.pressure <= FREE_PRESSURE:
            return 1.0
        excess = (self.pressure_at(now) - FREE_PRESSURE) / (FULL_PRESSURE - FREE_PRESSURE)
        return 1.0 - (1.0 - MIN_FACTOR) * min(max(excess, 0.0), 1.0)

    def _move(self, *, now: float) -> None:
        """The interval is over."""
        if self._num_asked:
            weight = 1.0 - exp((self._moved_at - now) / _PRESSURE_TIME_S)
            self.pressure += (self._pressures / self._num_asked - self.pressure) * weight
        self._pressures, self._num_asked = 0.0, 0
        self._moved_at, self._moves_at = now, now + INTERVAL_S
        self._num_intervals += 1
        num_judged = self._num_admitted + self._num_refused
        is_over = not self._num_refused and self.pressure < FREE_PRESSURE
        if is_over or num_judged >= _MIN_SAMPLE or self._num_intervals >= _MAX_INTERVALS:
            refused_share = self._num_refused / num_judged if num_judged else 0.0
            factor = _MOST_RECOVERED if is_over else max((1.0 - refused_share) / (1.0 - _TARGET_REFUSED), _MOST_SHED)
            self.admitted_share = min(max(self.admitted_share * factor, _MIN_ADMITTED), 1.0)
            self._num_admitted = self._num_refused = self._num_intervals = 0

    def check(self) -> None:
        assert 0.0 <= self.pressure <= MAX_PRESSURE, f"a pressure of {self.pressure}"
        assert _MIN_ADMITTED <= self.admitted_share <= 1.0, f"a share of {self.admitted_share} is admitted"
