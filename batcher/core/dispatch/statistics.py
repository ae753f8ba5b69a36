"""What the dispatcher tells of itself: metrics, tests, `/load` and `repr` read the same frozen snapshot."""

import msgspec

from batcher.core.dispatch.inflight import Batch
from batcher.core.dispatch.tiers import Tiers
from batcher.core.dispatch.workers import Workers, WorkerState
from batcher.types import BatchReason, WorkerFault


class Counters:
    """Totals since birth. The dispatcher counts, nobody resets."""

    __slots__ = (
        "num_bad_outputs",
        "num_batches",
        "num_cancelled",
        "num_displaced",
        "num_faults",
        "num_late",
        "num_no_room",
        "num_raised",
        "num_requests_sent",
        "num_retries",
        "num_splits",
    )

    def __init__(self) -> None:
        self.num_batches = dict.fromkeys(BatchReason, 0)
        self.num_faults = dict.fromkeys(WorkerFault, 0)
        self.num_requests_sent = 0
        self.num_bad_outputs = 0
        self.num_cancelled = 0
        self.num_displaced = 0
        self.num_late = 0
        self.num_no_room = 0
        self.num_raised = 0
        self.num_retries = 0
        self.num_splits = 0

    def count_departure(self, batch: Batch) -> None:
        self.num_batches[batch.reason] += 1
        self.num_requests_sent += len(batch.requests)

    def count_fault(self, fault: WorkerFault) -> None:
        self.num_faults[fault] += 1


class TierStatistics(msgspec.Struct, frozen=True):
    name: str
    num_waiting: int
    num_bytes: int
    num_tenants: int


class DispatchStatistics(msgspec.Struct, frozen=True):
    """A snapshot. Counts of things are as of now, `batches` to `splits` are totals since birth."""

    tiers: tuple[TierStatistics, ...]
    num_live: int
    num_running: int
    num_inflight: int
    num_parked: int
    workers: dict[str, int]
    """Number of workers by state: starting, free, busy, resting."""
    num_broken_workers: int
    service_time_s: float
    retry_budget: float
    batches: dict[str, int]
    """Batches sent, by the reason they left."""
    faults: dict[str, int]
    """Workers given up, by fault."""
    requests_sent: int
    bad_outputs: int
    cancelled: int
    displaced: int
    late: int
    no_room: int
    raised: int
    retries: int
    splits: int


def snapshot(
    *,
    counters: Counters,
    tiers: Tiers,
    workers: Workers,
    num_live: int,
    num_running: int,
    num_inflight: int,
    num_parked: int,
    service_time_s: float,
    retry_budget: float,
) -> DispatchStatistics:
    return DispatchStatistics(
        tiers=tuple(TierStatistics(queue.name, len(queue), queue.num_bytes, queue.num_tenants) for queue in tiers),
        num_live=num_live,
        num_running=num_running,
        num_inflight=num_inflight,
        num_parked=num_parked,
        workers={state.name.lower(): workers.count(state) for state in WorkerState},
        num_broken_workers=workers.num_broken(),
        service_time_s=service_time_s,
        retry_budget=retry_budget,
        batches={reason.value: num for reason, num in counters.num_batches.items()},
        faults={fault.value: num for fault, num in counters.num_faults.items()},
        requests_sent=counters.num_requests_sent,
        bad_outputs=counters.num_bad_outputs,
        cancelled=counters.num_cancelled,
        displaced=counters.num_displaced,
        late=counters.num_late,
        no_room=counters.num_no_room,
        raised=counters.num_raised,
        retries=counters.num_retries,
        splits=counters.num_splits,
    )
