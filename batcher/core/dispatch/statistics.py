"""What the dispatcher tells of itself: metrics, tests and `/load` read the same frozen snapshot."""

import msgspec

from batcher.core.dispatch.inflight import Batch, Inflight
from batcher.core.dispatch.ledger import Ledger
from batcher.core.dispatch.retry import Retries
from batcher.core.dispatch.service_time import ServiceTime
from batcher.core.dispatch.tiers import Tiers
from batcher.core.dispatch.workers import Workers, WorkerState
from batcher.types import BatchReason, WorkerFault


class Counters(msgspec.Struct):
    """Totals since birth. The dispatcher counts, nobody resets."""

    batches: dict[BatchReason, int] = msgspec.field(default_factory=lambda: dict.fromkeys(BatchReason, 0))
    """Batches sent, by the reason they left."""
    faults: dict[WorkerFault, int] = msgspec.field(default_factory=lambda: dict.fromkeys(WorkerFault, 0))
    """Workers given up, by fault."""
    batch_sizes: dict[int, int] = msgspec.field(default_factory=dict)
    """Batches sent, by their number of requests."""
    num_raised: int = 0
    """Times that run_batch raised."""
    num_bad_outputs: int = 0
    """Times that run_batch returned outputs of the wrong number or type."""
    num_late: int = 0
    """Reports of superseded attempts and incarnations, ignored."""
    num_cancelled: int = 0
    num_no_room: int = 0
    """Requests refused because the queue was full."""
    num_displaced: int = 0
    """Waiting requests that gave their room to a higher tier."""

    def count_departure(self, batch: Batch) -> None:
        self.batches[batch.reason] += 1
        size = len(batch.requests)
        self.batch_sizes[size] = self.batch_sizes.get(size, 0) + 1

    def snapshot(self) -> "Counters":
        return msgspec.structs.replace(
            self, batches=dict(self.batches), faults=dict(self.faults), batch_sizes=dict(self.batch_sizes)
        )


class TierStatistics(msgspec.Struct, frozen=True):
    name: str
    num_waiting: int
    num_bytes: int
    num_tenants: int


class DispatchStatistics(msgspec.Struct, frozen=True):
    """A snapshot: what there is now, and `counters` and the two beside it as totals since birth."""

    tiers: tuple[TierStatistics, ...]
    num_live: int
    """Requests that were accepted and have not ended."""
    num_running: int
    """Requests in batches that run, those included that ended meanwhile."""
    num_inflight: int
    """Batches that run."""
    num_parked: int
    """Batches that wait to run again."""
    workers: dict[str, int]
    """Number of workers by state: starting, free, busy, resting."""
    num_broken_workers: int
    """Workers whose circuit breaker is open or half open."""
    service_time_s: float
    retry_budget: float
    num_retries: int
    num_splits: int
    counters: Counters


def gather(
    counters: Counters,
    live: Ledger,
    tiers: Tiers,
    workers: Workers,
    inflight: Inflight,
    retries: Retries,
    service_time: ServiceTime,
) -> DispatchStatistics:
    """The snapshot of the parts that a dispatcher is made of."""
    return DispatchStatistics(
        tiers=tuple(TierStatistics(queue.name, len(queue), queue.num_bytes, queue.num_tenants) for queue in tiers),
        num_live=len(live),
        num_running=inflight.num_requests,
        num_inflight=len(inflight),
        num_parked=len(retries),
        workers={state.name.lower(): workers.count(state) for state in WorkerState},
        num_broken_workers=workers.num_broken(),
        service_time_s=service_time.mean_s,
        retry_budget=retries.budget.num_available,
        num_retries=retries.num_retries,
        num_splits=retries.num_splits,
        counters=counters.snapshot(),
    )
