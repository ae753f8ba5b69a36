"""Work that was let in and has not started, and the rate at which such work starts: the wait of continuous mode (SPEC S8.1).

It is kept by the side that lets in and counts what it sends at once: a snapshot of the engine's own queue is a step old, and a
burst within that step would all find the same short queue (CASES B87). Work is in tokens: a prompt and the answer that is
expected of it.

The rate is learned from what starts while something is held, that is, while it waits for want of a slot, memory or budget: when
nothing is, work starts as it comes and says nothing about capacity. Both what started and the time that it took fade.

When the slots have just been filled for the first time nothing starts for an answer long. To let everybody in until then was
refused: after a cold start at four times the capacity they waited for three seconds. What is decoded meanwhile tells when
those that run will end: as many answers as their tokens make up, each of which gives a place to a prompt and an answer. It
counts as some seconds of starts. Before even that is known one sequence is added to what started (the rule of succession): so
the rate is never zero, with no sample at all it lets everybody in, and it falls the longer nothing starts (CASES B10, B11).
"""

from collections import OrderedDict
from math import exp, inf, sqrt

import msgspec

from batcher.core.admission.wait import MIN_SHARE

RATE_MEMORY_S = 10.0
"""Some answers long: sequences that start together end together, and in between nothing starts."""

ARRIVALS_MEMORY_S = 4.0
"""Of what higher tiers bring: some dozen requests of a busy replica."""

_SURE_AFTER_S = 3.0
"""What starts in so long is a rate: when the slots have just been filled, the first starts say nothing of the next ones. Beside
them the pace of the decoding weighs as much as so many seconds."""

_NUM_DEVIATIONS = 1.64
"""Of a normal law's 95th percentile."""

_WEIGHT = 0.05
"""Of each request in what is expected of one: the last 40 or so decide."""


class StartRate:
    """Work that starts per second while something is held."""

    __slots__ = ("_at", "_decoded", "_is_held", "_num_decoded", "_span_s", "_work")

    def __init__(self) -> None:
        self._at = 0.0
        self._is_held = False
        self._num_decoded = 0
        """Tokens, in all, as they were last told of."""
        self._decoded = 0.0
        self._work = 0.0
        self._span_s = 0.0

    def advance(self, *, is_held: bool, num_decoded: int = 0, now: float) -> None:
        """Time has passed, and `num_decoded` tokens have been decoded in all; from now on something is held, or nothing."""
        passed_s = max(0.0, now - self._at)
        faded = exp(-passed_s / RATE_MEMORY_S)
        self._work *= faded
        self._decoded *= faded
        self._span_s *= faded
        if self._is_held:
            self._span_s += passed_s
            self._decoded += max(num_decoded - self._num_decoded, 0)
        self._num_decoded = num_decoded
        self._at = max(self._at, now)
        self._is_held = is_held

    def observe(self, work: float) -> None:
        if self._is_held:
            self._work += work

    def rate(self, mean_work: float, mean_answer_len: float) -> float:
        """Per second; infinity before anything was held. Both means are one sequence's."""
        if self._span_s <= 1e-3:
            return inf
        if not self._decoded:
            return (self._work + mean_work) / self._span_s
        pace = self._decoded / self._span_s * mean_work / max(mean_answer_len, 1.0)
        return (self._work + pace * _SURE_AFTER_S) / (self._span_s + _SURE_AFTER_S)

    @property
    def sure_rate(self) -> float:
        """The same by what was seen alone: little, while little was."""
        return self._work / max(self._span_s, _SURE_AFTER_S)


class Waiting(msgspec.Struct, gc=False):
    """One that was let in and has not started."""

    sequence_id: int
    tier: str
    tenant: str
    num_tokens: int
    """Of its prompt."""
    work: float
    since: float


class _Tier:
    """`waiting` is in order of arrival, `lines` counts it by tenant."""

    __slots__ = ("lines", "num_running", "num_tokens", "waiting", "work")

    def __init__(self) -> None:
        self.waiting: OrderedDict[int, Waiting] = OrderedDict()
        self.lines: dict[str, int] = {}
        self.num_tokens = 0
        self.work = 0.0
        self.num_running = 0

    def remove(self, entry: Waiting) -> None:
        del self.waiting[entry.sequence_id]
        self.lines[entry.tenant] -= 1
        if not self.lines[entry.tenant]:
            del self.lines[entry.tenant]
        self.num_tokens -= entry.num_tokens
        self.work = self.work - entry.work if self.waiting else 0.0  # Nothing is left of rounding.


class Ahead(msgspec.Struct, frozen=True, gc=False):
    """What starts before a tenant's next request."""

    num: float
    num_tokens: float
    """Of their prompts."""
    work: float


class Backlog:
    """One owner calls it; it has no locks. `_running` has the tier of each that has started and not ended."""

    def __init__(self, tiers: tuple[str, ...]) -> None:
        self._tiers = {name: _Tier() for name in tiers}
        self._running: dict[int, str] = {}
        self._answer_len: float | None = None
        self.typical_work = 1.0
        """Of those that were let in of late; of none yet, as little as there is: nobody is refused for it."""
        self._typical_answer_len = 1.0
        self._num_added = 0
        self.starts = StartRate()

    def __len__(self) -> int:
        return sum([len(tier.waiting) for tier in self._tiers.values()])

    @property
    def rate(self) -> float:
        """Work that starts per second; infinity before anything was held."""
        return self.starts.rate(self.typical_work, self._typical_answer_len)

    def work_of(self, num_tokens: int, max_tokens: int) -> float:
        """Of a request: its prompt, and the answer as long as answers have been, but for its own bound."""
        return num_tokens + (max_tokens if self._answer_len is None else min(max_tokens, self._answer_len))

    def add(self, entry: Waiting) -> None:
        """Let in. Asserts that its id is new."""
        tier = self._tiers[entry.tier]
        assert entry.sequence_id not in tier.waiting
        assert entry.sequence_id not in self._running
        tier.waiting[entry.sequence_id] = entry
        tier.lines[entry.tenant] = tier.lines.get(entry.tenant, 0) + 1
        tier.num_tokens += entry.num_tokens
        tier.work += entry.work
        weight = _WEIGHT if self._num_added else 1.0
        self.typical_work += (entry.work - self.typical_work) * weight
        self._typical_answer_len += (entry.work - entry.num_tokens - self._typical_answer_len) * weight
        self._num_added += 1

    def start(self, sequence_id: int) -> None:
        """It has a slot. Nothing happens if it does not wait: it has ended meanwhile."""
        for name, tier in self._tiers.items():
            if (entry := tier.waiting.get(sequence_id)) is not None:
                tier.remove(entry)
                tier.num_running += 1
                self._running[sequence_id] = name
                self.starts.observe(entry.work)
                return

    def end(self, sequence_id: int, *, answer_len: int | None = None) -> None:
        """It waits or runs no more; its answer was so long, if it is whole. Nothing happens if it is not here."""
        if answer_len is not None:
            known = self._answer_len
            self._answer_len = answer_len if known is None else known + (answer_len - known) * _WEIGHT
        name = self._running.pop(sequence_id, None)
        if name is not None:
            self._tiers[name].num_running -= 1
            return
        for tier in self._tiers.values():
            if (entry := tier.waiting.get(sequence_id)) is not None:
                tier.remove(entry)
                return

    def ahead_of(self, tier: str, tenant: str) -> Ahead:
        """All that waits in higher tiers, and of its own what comes before the tenant's next turn (`core.replica.queue`)."""
        num = num_tokens = work = 0.0
        for name, state in self._tiers.items():
            num_waiting = len(state.waiting)
            if name != tier:
                num += num_waiting
                num_tokens += state.num_tokens
                work += state.work
                continue
            if num_waiting:
                num_own = state.lines.get(tenant, 0)
                num_others = len(state.lines) - (num_own > 0)
                num_before = min(num_waiting, num_own + (num_own + 1) * num_others)
                num += num_before
                num_tokens += state.num_tokens * num_before / num_waiting
                work += state.work * num_before / num_waiting
            break
        return Ahead(num, num_tokens, work)

    def num_running(self) -> list[int]:
        """By tier, the highest first."""
        return [tier.num_running for tier in self._tiers.values()]

    def late(self, *, before: float) -> list[Waiting]:
        """Those of all tiers but the first that have waited since `before` or longer."""
        found: list[Waiting] = []
        for tier in list(self._tiers.values())[1:]:
            for entry in tier.waiting.values():
                if entry.since > before:
                    break
                found.append(entry)
        return found

    def check(self) -> None:
        for name, tier in self._tiers.items():
            waiting = tier.waiting.values()
            assert tier.num_tokens == sum([entry.num_tokens for entry in waiting]), f"{name}: tokens are miscounted"
            assert abs(tier.work - sum([entry.work for entry in waiting])) < 1e-3, f"{name}: work is miscounted"
            assert sum(tier.lines.values()) == len(tier.waiting), f"{name}: lines and arrivals differ"
            assert tier.num_running == sum([of == name for of in self._running.values()]), f"{name}: running are miscounted"


def work_before(ahead: Ahead, *, num_free_slots: int, num_free_tokens: int, own_work: float, higher_share: float) -> float:
    """What of the work ahead must find a place by others' ends; 0 for whoever may start at once.

    Of a replica with free places only what exceeds them counts. Of one without, a lower tier's next request waits for its own
    place too, as far as higher tiers take those that fall free: with nothing ahead and higher tiers at full capacity it would
    else be let in to wait for ever (CASES B59).
    """
    if ahead.num < num_free_slots and ahead.num_tokens < num_free_tokens:
        return 0.0
    share = 0.0
    if ahead.num:
        share = min(num_free_slots / ahead.num, 1.0)
        if ahead.num_tokens:
            share = min(share, num_free_tokens / ahead.num_tokens)
    return ahead.work * (1.0 - max(share, 0.0)) + own_work * min(higher_share, 1.0 - MIN_SHARE)


def with_margin(work: float, mean_work: float) -> float:
    """So much work at most, in 19 cases of 20, will be what it takes until so much has found places.

    Places fall free one by one, at random: with n ahead the time varies as that of n events of a Poisson process, by the root
    of n. Without it a budget of a second was held on average, and with ten ahead the 95th percentile was a second and a half.
    """
    return work + _NUM_DEVIATIONS * sqrt(work * mean_work)
