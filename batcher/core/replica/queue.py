"""Who waits for a slot: a queue for each tier, and inside a tier a line for each tenant.

Between tiers the order is strict. Inside a tier those come first that were preempted, the oldest before the others: they have
started, and somebody reads their answer. Then the tenants take turns, one sequence a turn, each line in order of arrival, so
that a tenant's burst makes its own line longer and hardly the others'. One queue in order of arrival was refused for that.

Room is bounded in sequences and in prompt tokens. When it is full, a newcomer of a higher tier displaces the newest of the
lowest tier, and inside a tier a newcomer of a tenant with a short line displaces the newest of the longest. Keeping room free
for tenants that may come was refused: a tenant alone would be turned away from an idle replica.

Strict priority starves a lower tier while higher ones fill the replica. It does so openly: what waits expires at its deadline
with an error that says so, and what finds no room is refused at once (CASES B59). What has started does not expire and must
not starve: it decodes in every step while it runs, and once preempted it goes before all others after MAX_PREEMPTED_S.
"""

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator

from batcher.core.replica.sequence import Sequence, SequenceState

MAX_PREEMPTED_S = 5.0
"""How long a preempted sequence may wait behind higher tiers: its reader sees the answer stand still."""


class TierQueue:
    """One tier's waiting sequences.

    `preempted` is in order of submission. `_arrivals` has the others in that order, and `_lines` the same ones by tenant, the
    tenant whose turn is next first; a line that empties is dropped. `num_tokens` are the prompt tokens of those in `_arrivals`.
    """

    __slots__ = ("_arrivals", "_lines", "name", "num_tokens", "preempted")

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_tokens = 0
        self.preempted: list[Sequence] = []
        self._arrivals: OrderedDict[int, Sequence] = OrderedDict()
        self._lines: OrderedDict[str, OrderedDict[int, Sequence]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.preempted) + len(self._arrivals)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.preempted
        yield from self._arrivals.values()

    @property
    def num_fresh(self) -> int:
        """Those that have never run."""
        return len(self._arrivals)

    def newest(self) -> Sequence:
        return next(reversed(self._arrivals.values()))

    def oldest(self) -> Sequence:
        fresh = next(iter(self._arrivals.values()), None)
        heads = self.preempted[:1] + ([fresh] if fresh is not None else [])
        return min(heads, key=lambda sequence: sequence.order)

    def len_of_line(self, tenant: str) -> int:
        return len(self._lines.get(tenant, ()))

    def newest_of_longest_line(self) -> Sequence | None:
        """O(tenants)."""
        longest = max(self._lines.values(), key=len, default=None)
        return next(reversed(longest.values())) if longest else None

    def candidates(self) -> Iterator[Sequence]:
        """In the order in which they should start; lazy, so the queue must not change before the last that is looked at."""
        yield from self.preempted
        lines = []
        for line in self._lines.values():
            members = iter(line.values())
            yield next(members)
            lines.append(members)
        while lines:
            remaining = []
            for members in lines:
                if (sequence := next(members, None)) is not None:
                    yield sequence
                    remaining.append(members)
            lines = remaining

    def push(self, sequence: Sequence) -> None:
        if sequence.state is SequenceState.PREEMPTED:
            insort(self.preempted, sequence, key=lambda other: other.order)
            return
        self._arrivals[sequence.id] = sequence
        if (line := self._lines.get(sequence.tenant)) is None:
            line = self._lines[sequence.tenant] = OrderedDict()
        line[sequence.id] = sequence
        self.num_tokens += sequence.num_prompt_tokens

    def remove(self, sequence: Sequence) -> None:
        """Takes it out, wherever it stands, before it changes its state."""
        if sequence.state is SequenceState.PREEMPTED:
            self.preempted.remove(sequence)
            return
        del self._arrivals[sequence.id]
        line = self._lines[sequence.tenant]
        del line[sequence.id]
        if not line:
            del self._lines[sequence.tenant]
        self.num_tokens -= sequence.num_prompt_tokens

    def take(self, sequence: Sequence) -> None:
        """Takes it out to start it: its tenant has had its turn."""
        self.remove(sequence)
        if sequence.tenant in self._lines and sequence.state is SequenceState.WAITING:
            self._lines.move_to_end(sequence.tenant)

    def check(self) -> None:
        in_lines = [sequence for line in self._lines.values() for sequence in line.values()]
        assert sorted(s.id for s in in_lines) == sorted(self._arrivals), f"{self.name}: lines and arrivals differ"
        assert all(self._lines.values()), f"{self.name}: an empty line was kept"
        assert all(s.tenant == tenant for tenant, line in self._lines.items() for s in line.values()), (
            f"{self.name}: a stranger"
        )
        assert self.num_tokens == sum(s.num_prompt_tokens for s in in_lines), f"{self.name}: tokens are miscounted"
        assert all(s.state is SequenceState.WAITING for s in in_lines), f"{self.name}: one waits that does not"
        assert all(s.state is SequenceState.PREEMPTED for s in self.preempted), f"{self.name}: one was never preempted"
        orders = [s.order for s in self.preempted]
        assert orders == sorted(set(orders)), f"{self.name}: the preempted are out of order"


class WaitingQueue:
    """All tiers, the highest first, with one bound over the sequences that have never run and one over their prompt tokens.

    The preempted do not count: they were let in before, and a step preempts no more than there are slots.
    """

    __slots__ = ("_max_tokens", "_max_waiting", "tiers")

    def __init__(self, names: tuple[str, ...], *, max_waiting: int, max_tokens: int) -> None:
        self.tiers = tuple(TierQueue(name) for name in names)
        self._max_waiting = max_waiting
        self._max_tokens = max_tokens

    def __len__(self) -> int:
        return sum([len(tier) for tier in self.tiers])

    @property
    def num_fresh(self) -> int:
        return sum([tier.num_fresh for tier in self.tiers])

    @property
    def num_tokens(self) -> int:
        return sum([tier.num_tokens for tier in self.tiers])

    def num_ahead_of(self, tier_index: int) -> int:
        """Sequences of this tier and of higher ones that wait."""
        return sum([len(tier) for tier in self.tiers[: tier_index + 1]])

    def oldest_at(self) -> float:
        """Arrival of the oldest that waits. There must be one."""
        return min(tier.oldest().arrived_at for tier in self.tiers if len(tier))

    def starving(self, *, now: float) -> Sequence | None:
        """The next to start again of a lower tier, if it has waited for MAX_PREEMPTED_S since it was preempted."""
        for tier in self.tiers[1:]:
            if tier.preempted:
                sequence = tier.preempted[0]
                if sequence.preempted_at is not None and sequence.preempted_at + MAX_PREEMPTED_S <= now:
                    return sequence
        return None

    def push(self, sequence: Sequence) -> None:
        self.tiers[sequence.tier_index].push(sequence)

    def remove(self, sequence: Sequence) -> None:
        self.tiers[sequence.tier_index].remove(sequence)

    def make_room_for(self, sequence: Sequence) -> list[Sequence] | None:
        """Takes out those that must give way to it; None, and nobody is, if there is no room for it."""
        num_over = self.num_fresh + 1 - self._max_waiting
        num_tokens_over = self.num_tokens + sequence.num_prompt_tokens - self._max_tokens
        if num_over <= 0 and num_tokens_over <= 0:
            return []
        lower = self.tiers[sequence.tier_index + 1 :]
        if num_over <= sum(tier.num_fresh for tier in lower) and num_tokens_over <= sum(tier.num_tokens for tier in lower):
            return self._displace(lower, num_over, num_tokens_over)
        tier = self.tiers[sequence.tier_index]
        rival = tier.newest_of_longest_line()
        if rival is None or tier.len_of_line(rival.tenant) <= tier.len_of_line(sequence.tenant) + 1:
            return None
        if num_over > 1 or num_tokens_over > rival.num_prompt_tokens:
            return None
        tier.remove(rival)
        return [rival]

    def _displace(self, lower: tuple[TierQueue, ...], num_over: int, num_tokens_over: int) -> list[Sequence]:
        displaced: list[Sequence] = []
        for tier in reversed(lower):
            while tier.num_fresh and (num_over > 0 or num_tokens_over > 0):
                newest = tier.newest()
                tier.remove(newest)
                displaced.append(newest)
                num_over -= 1
                num_tokens_over -= newest.num_prompt_tokens
        return displaced

    def check(self) -> None:
        """O(waiting)."""
        for tier in self.tiers:
            tier.check()
        self.check_bounds()

    def check_bounds(self) -> None:
        assert self.num_fresh <= self._max_waiting, "more wait than may"
        assert self.num_tokens <= self._max_tokens, "more tokens wait than may"
