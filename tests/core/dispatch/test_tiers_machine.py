"""The queues against plain lists, by rules."""

from collections import deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from batcher.core.dispatch.tiers import Tiers
from batcher.types import Request
from tests.core.examples import a_request


class TiersMachine(RuleBasedStateMachine):
    """Against plain lists: for each tier the tenants in turn, each with its requests in order; one slot in fifty apart."""

    max_requests = 12
    max_bytes = 200
    names = ("paid", "mid", "free")

    def __init__(self) -> None:
        super().__init__()
        self.tiers = Tiers(self.names, max_requests=self.max_requests, max_bytes=self.max_bytes)
        self.lines: dict[str, list[tuple[str, deque[Request]]]] = {name: [] for name in self.names}
        self.waiting: list[Request] = []
        self.next_id = 1
        self.num_slots_since = 0

    def forget(self, request: Request) -> None:
        self.waiting.remove(request)
        dict(self.lines[request.tier])[request.tenant].remove(request)
        self.lines[request.tier] = [(tenant, line) for tenant, line in self.lines[request.tier] if line]

    def has_room_for(self, request: Request) -> bool:
        above = self.names[: self.names.index(request.tier) + 1]
        rivals = [other for other in self.waiting if other.tier in above]
        own = [other for other in rivals if (other.tier, other.tenant) == (request.tier, request.tenant)]
        return len(own) < self.max_requests - len(rivals) and (
            sum(r.num_bytes for r in own) + request.num_bytes <= self.max_bytes - sum(r.num_bytes for r in rivals)
        )

    @rule(
        tenant=st.sampled_from(["ann", "bob", "cy", "dan"]),
        tier=st.sampled_from(["paid", "mid", "free"]),
        num_bytes=st.sampled_from([0, 1, 10, 60, 150, 201]),
        num=st.integers(1, 4),
    )
    def push_some(self, tenant: str, tier: str, num_bytes: int, num: int) -> None:
        for _ in range(num):
            self.push(tenant, tier, num_bytes)

    def push(self, tenant: str, tier: str, num_bytes: int) -> None:
        request = a_request(self.next_id, tenant=tenant, tier=tier, num_bytes=num_bytes, arrived_at=float(self.next_id))
        self.next_id += 1
        assert self.tiers.has_room_for(request) == self.has_room_for(request)
        if not self.has_room_for(request):
            return
        displaced = self.tiers.push(request)
        for other in displaced:
            lowest = max((self.names.index(r.tier) for r in self.waiting), default=0)
            assert self.names.index(other.tier) == lowest > self.names.index(tier)
            assert other.id == max(r.id for r in self.waiting if r.tier == other.tier)
            self.forget(other)
        lines = dict(self.lines[tier])
        if tenant not in lines:
            self.lines[tier].append((tenant, deque()))
        dict(self.lines[tier])[tenant].append(request)
        self.waiting.append(request)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.waiting))
        self.tiers.remove(request)
        self.forget(request)

    @rule(num=st.sampled_from([1, 1, 2, 3, 23]), age_s=st.sampled_from([0.0, 0.0, 1.0, 3.0]))
    def take(self, num: int, age_s: float) -> None:
        """Requests come a second apart, so with `age_s` all but the last so many have waited for a second."""
        now = self.next_id - age_s
        expected = self.take_for_the_starving(num, now=now)
        for name in self.names:
            while self.lines[name] and len(expected) < num:
                tenant, line = self.lines[name].pop(0)
                expected.append(line.popleft())
                if line:
                    self.lines[name].append((tenant, line))
        assert self.tiers.take(num, now=now) == tuple(expected)
        for request in expected:
            self.waiting.remove(request)

    def take_for_the_starving(self, num: int, *, now: float) -> list[Request]:
        """The one whose turn it is in the lower tier with the oldest, if that has waited for a second and a slot is due."""
        self.num_slots_since += num
        lower = [request for request in self.waiting if request.tier != self.names[0]]
        oldest = min(lower, key=lambda request: request.arrived_at, default=None)
        if oldest is None or oldest.arrived_at > now - 1.0 or self.num_slots_since < 50:
            return []
        self.num_slots_since = 0
        tenant, line = self.lines[oldest.tier].pop(0)
        request = line.popleft()
        if line:
            self.lines[oldest.tier].append((tenant, line))
        return [request]

    @rule(tenant=st.sampled_from(["ann", "bob", "cy", "dan", "new"]), tier=st.sampled_from(["paid", "mid", "free"]))
    def num_ahead_of_is_an_upper_bound(self, tenant: str, tier: str) -> None:
        """Takes a copy of the model apart, one by one, until the newcomer's turn comes."""
        lines = {name: [(owner, list(line)) for owner, line in self.lines[name]] for name in self.names}
        newcomer = a_request(0, tenant=tenant, tier=tier)
        if tenant not in dict(lines[tier]):
            lines[tier].append((tenant, []))
        dict(lines[tier])[tenant].append(newcomer)
        num_before = 0
        for name in self.names:
            while lines[name]:
                owner, line = lines[name].pop(0)
                if line.pop(0) is newcomer:
                    assert num_before <= self.tiers.num_ahead_of(tier, tenant) <= len(self.waiting)
                    return
                num_before += 1
                if line:
                    lines[name].append((owner, line))
        raise AssertionError("the newcomer's turn never came")

    @invariant()
    def laws(self) -> None:
        self.tiers.check()
        assert self.tiers.num_waiting == len(self.waiting)
        assert self.tiers.num_bytes == sum(request.num_bytes for request in self.waiting)
        assert all(self.tiers.is_waiting(request) for request in self.waiting)
        if self.waiting:
            assert self.tiers.oldest_at() == min(request.arrived_at for request in self.waiting)
        for queue in self.tiers:
            assert list(queue) == [request for request in self.waiting if request.tier == queue.name]
            assert queue.num_tenants == len(self.lines[queue.name])


TestTiersMachine = TiersMachine.TestCase
TestTiersMachine.settings = settings(derandomize=True, max_examples=60, stateful_step_count=50, deadline=None)
