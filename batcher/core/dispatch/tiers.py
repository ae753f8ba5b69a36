"""The queues: a tier each, and inside a tier a line for each tenant.

Between tiers the order is strict: a batch takes the first tier's requests and fills what is left from the next (SPEC S1.4).
Inside a tier it is deficit round robin with a quantum of one slot of a batch. As every request takes exactly one slot, the
deficit is always zero and what remains is: the tenants that wait take turns, one request a turn, each line in order of
arrival. So a tenant that floods makes its own line longer, and any other waits for at most one request of each tenant that
is before it. A single queue in order of arrival was refused: in it a burst of one key delays everybody.

Strictly means that a lower tier can starve while higher ones fill every batch. So one slot in `STARVING_SHARE` goes to the
lower tier whose oldest request has waited longest, if that is over `MAX_AGE_S`, and there to the tenant whose turn it is.

Room is bounded in requests and in bytes, and shared by the rule of Choudhury and Hahne ("Dynamic queue length thresholds
for shared-memory packet switches", 1998, with alpha = 1): a tenant may wait with no more than what is still free. One
tenant alone fills half of the room, and the other half is there for whoever comes. What a lower tier holds counts as free
for a higher one, which displaces its newest requests.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from math import inf

from batcher.types import Request

MAX_AGE_S = 1.0
"""Several times what a queue within its wait budget takes: only the starving are as old."""

STARVING_SHARE = 50
"""One slot in so many: one of each full batch."""


class _Line:
    """One tenant's waiting requests, in order of arrival."""

    __slots__ = ("num_bytes", "requests")

    def __init__(self) -> None:
        self.requests: OrderedDict[int, Request] = OrderedDict()
        self.num_bytes = 0


class TierQueue:
    """One tier's waiting requests.

    `_arrivals` has all of them in order of arrival. `_lines` has the same ones by tenant, the tenant whose turn is next first;
    a line that empties is dropped, so there are never more lines than requests. `num_bytes` is the sum of theirs.
    """

    __slots__ = ("_arrivals", "_lines", "name", "num_bytes")

    def __init__(self, name: str) -> None:
        self.name = name
        self.num_bytes = 0
        self._arrivals: OrderedDict[int, Request] = OrderedDict()
        self._lines: OrderedDict[str, _Line] = OrderedDict()

    def __len__(self) -> int:
        return len(self._arrivals)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._arrivals

    def __iter__(self) -> Iterator[Request]:
        return iter(self._arrivals.values())

    @property
    def num_tenants(self) -> int:
        return len(self._lines)

    def oldest(self) -> Request:
        return next(iter(self._arrivals.values()))

    def newest(self) -> Request:
        return next(reversed(self._arrivals.values()))

    def held_by(self, tenant: str) -> tuple[int, int]:
        """What the tenant waits with: requests, bytes."""
        line = self._lines.get(tenant)
        return (len(line.requests), line.num_bytes) if line is not None else (0, 0)

    def push(self, request: Request) -> None:
        self._arrivals[request.id] = request
        line = self._lines.get(request.tenant)
        if line is None:
            line = self._lines[request.tenant] = _Line()
        line.requests[request.id] = request
        line.num_bytes += request.num_bytes
        self.num_bytes += request.num_bytes

    def remove(self, request_id: int) -> Request:
        """Takes one out, wherever it stands. Raises KeyError if it does not wait here."""
        request = self._arrivals.pop(request_id)
        line = self._lines[request.tenant]
        del line.requests[request_id]
        line.num_bytes -= request.num_bytes
        self.num_bytes -= request.num_bytes
        if not line.requests:
            del self._lines[request.tenant]
        return request

    def take(self, num: int, into: list[Request]) -> None:
        """Moves up to `num` requests into the list, tenants in turn."""
        lines = self._lines
        arrivals = self._arrivals
        for _ in range(min(num, len(arrivals))):
            tenant = next(iter(lines))
            line = lines[tenant]
            request_id, request = line.requests.popitem(last=False)
            line.num_bytes -= request.num_bytes
            self.num_bytes -= request.num_bytes
            del arrivals[request_id]
            if line.requests:
                lines.move_to_end(tenant)
            else:
                del lines[tenant]
            into.append(request)

    def num_ahead_of(self, tenant: str, *, fresh_share: float = 0.0) -> int:
        """About how many requests of this tier would be taken before the tenant's next one. O(1).

        Its own line is served whole before it, and in each of those turns every other tenant takes at most one. Without a
        `fresh_share` it is the most that it can be of those that wait now. But whoever comes meanwhile with nothing waiting
        goes before a tenant's second request too, though never before its first: `fresh_share`, from 0 up, is the part of the
        drain that is spent on such. Then as many tenants wait in the next turns as in this one, which is half over on average.
        """
        line = self._lines.get(tenant)
        if line is None:
            return len(self._lines)
        num_own, num_others, num_waiting = len(line.requests), len(self._lines) - 1, len(self._arrivals)
        num_ahead = min(num_own + (num_own + 1) * num_others, num_waiting)
        if fresh_share > 0.0:
            num_in_turns = num_own + (2 * num_own + 1) * num_others // 2
            if fresh_share < 1.0:
                num_in_turns = min(num_in_turns, int(num_waiting / (1.0 - fresh_share)))
            num_ahead = max(num_ahead, num_in_turns)
        return num_ahead

    def check(self) -> None:
        by_tenant = [request for line in self._lines.values() for request in line.requests.values()]
        assert sorted(r.id for r in by_tenant) == sorted(self._arrivals), f"{self.name}: lines and arrivals differ"
        assert all(line.requests for line in self._lines.values()), f"{self.name}: an empty line was kept"
        assert self.num_bytes == sum(r.num_bytes for r in by_tenant), f"{self.name}: bytes are miscounted"
        for tenant, line in self._lines.items():
            assert all(r.tenant == tenant for r in line.requests.values()), f"{self.name}: a request is in a stranger's line"
            assert line.num_bytes == sum(r.num_bytes for r in line.requests.values()), f"{self.name}: a line is miscounted"


class Tiers:
    """All tiers, first the one that is served first, with one bound over their requests and bytes."""

    __slots__ = ("_by_name", "_max_bytes", "_max_requests", "_num_slots_since", "_queues", "num_bytes", "num_waiting")

    def __init__(self, names: tuple[str, ...], *, max_requests: int, max_bytes: int) -> None:
        self._queues = tuple(TierQueue(name) for name in names)
        self._by_name = {queue.name: queue for queue in self._queues}
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._num_slots_since = 0
        """Slots offered since a starving request had one."""
        self.num_waiting = 0
        self.num_bytes = 0

    def __iter__(self) -> Iterator[TierQueue]:
        return iter(self._queues)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def has_room_for(self, request: Request) -> bool:
        """Whether the tenant may wait with one more, counting what lower tiers hold as free."""
        free_requests, free_bytes = self._max_requests, self._max_bytes
        for queue in self._queues:
            free_requests -= len(queue)
            free_bytes -= queue.num_bytes
            if queue.name == request.tier:
                break
        num_requests, num_bytes = self._by_name[request.tier].held_by(request.tenant)
        return num_requests < free_requests and num_bytes + request.num_bytes <= free_bytes

    def push(self, request: Request) -> list[Request]:
        """Lets a request wait that has room (`has_room_for`), and returns those of lower tiers that were displaced."""
        displaced = []
        lower = reversed(self._queues)
        queue = next(lower)
        while (
            self.num_waiting + 1 > self._max_requests or self.num_bytes + request.num_bytes > self._max_bytes
        ) and queue.name != request.tier:
            if not len(queue):
                queue = next(lower)
                continue
            displaced.append(self.remove(queue.newest()))
        self._by_name[request.tier].push(request)
        self.num_waiting += 1
        self.num_bytes += request.num_bytes
        return displaced

    def is_waiting(self, request: Request) -> bool:
        return request.id in self._by_name[request.tier]

    def remove(self, request: Request) -> Request:
        self._by_name[request.tier].remove(request.id)
        self.num_waiting -= 1
        self.num_bytes -= request.num_bytes
        return request

    def take(self, num: int, *, now: float) -> tuple[Request, ...]:
        """Removes and returns up to `num` requests: higher tiers first, tenants in turn, and one slot for the starving."""
        taken: list[Request] = []
        num_bytes = sum(queue.num_bytes for queue in self._queues)
        starving = [queue for queue in self._queues[1:] if len(queue) and queue.oldest().arrived_at <= now - MAX_AGE_S]
        if starving and self._num_slots_since + num >= STARVING_SHARE:
            min(starving, key=lambda queue: queue.oldest().arrived_at).take(1, taken)
            self._num_slots_since = 0
        else:
            self._num_slots_since += num
        for queue in self._queues:
            queue.take(num - len(taken), taken)
        self.num_bytes -= num_bytes - sum(queue.num_bytes for queue in self._queues)
        self.num_waiting -= len(taken)
        return tuple(taken)

    def oldest_at(self) -> float:
        """Arrival of the oldest that waits. There must be one."""
        oldest_at = inf
        for queue in self._queues:
            if len(queue) and (arrived_at := queue.oldest().arrived_at) < oldest_at:
                oldest_at = arrived_at
        assert oldest_at < inf
        return oldest_at

    def num_ahead_of(
        self, tier: str, tenant: str, *, fresh_share: Callable[[], float] | None = None, batch_size: int = 1
    ) -> int:
        """How many would be taken before the tenant's next request, the starving apart, and apart from what comes to higher
        tiers: at most so many of those that wait now, and with a `fresh_share` about so many of all. O(tiers).

        Of whom the next batch has room for, only those that wait are counted: nobody is kept out for who may come, and the
        share is not asked for.
        """
        num_higher = 0
        for queue in self._queues:
            if queue.name == tier:
                num_ahead = num_higher + queue.num_ahead_of(tenant)
                if fresh_share is not None and num_ahead >= batch_size:
                    num_ahead = num_higher + queue.num_ahead_of(tenant, fresh_share=fresh_share())
                return num_ahead
            num_higher += len(queue)
        raise KeyError(tier)

    def check(self) -> None:
        for queue in self._queues:
            queue.check()
        assert self.num_waiting == sum(len(queue) for queue in self._queues) <= self._max_requests
        assert self.num_bytes == sum(queue.num_bytes for queue in self._queues) <= self._max_bytes
