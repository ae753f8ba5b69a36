"""The inflight table: which batch runs where, with whom, for which time (SPEC S1.5)."""

from collections.abc import Iterator

import msgspec

from batcher.types import BatchReason, Request


class Batch(msgspec.Struct, frozen=True):
    """Requests that run together. A retry is the same batch with the next attempt; a split makes new batches."""

    id: int
    attempt: int
    requests: tuple[Request, ...]
    reason: BatchReason


class Flight(msgspec.Struct, frozen=True):
    """A batch on a worker."""

    batch: Batch
    worker_id: int
    departed_at: float


class Inflight:
    """Every batch that runs, by its id and by its worker. A worker runs one batch at a time (SPEC S1.1)."""

    __slots__ = ("_by_batch", "_by_worker", "num_requests", "num_searching")

    def __init__(self) -> None:
        self._by_batch: dict[int, Flight] = {}
        self._by_worker: dict[int, Flight] = {}
        self.num_requests = 0
        self.num_searching = 0
        """Batches that look for a bad input."""

    def __len__(self) -> int:
        return len(self._by_batch)

    def __iter__(self) -> Iterator[Flight]:
        return iter(self._by_batch.values())

    def add(self, flight: Flight) -> None:
        assert flight.batch.id not in self._by_batch
        assert flight.worker_id not in self._by_worker
        self._by_batch[flight.batch.id] = flight
        self._by_worker[flight.worker_id] = flight
        self.num_requests += len(flight.batch.requests)
        self.num_searching += flight.batch.reason is BatchReason.SPLIT

    def find(self, batch_id: int, attempt: int) -> Flight | None:
        """The flight of this very attempt; None if it was superseded or has ended."""
        flight = self._by_batch.get(batch_id)
        return flight if flight is not None and flight.batch.attempt == attempt else None

    def on_worker(self, worker_id: int) -> Flight | None:
        return self._by_worker.get(worker_id)

    def remove(self, flight: Flight) -> None:
        del self._by_batch[flight.batch.id]
        del self._by_worker[flight.worker_id]
        self.num_requests -= len(flight.batch.requests)
        self.num_searching -= flight.batch.reason is BatchReason.SPLIT

    def check(self) -> None:
        assert len(self._by_batch) == len(self._by_worker)
        assert all(self._by_worker[f.worker_id] is f for f in self._by_batch.values()), "the two indexes differ"
        assert self.num_requests == sum(len(f.batch.requests) for f in self._by_batch.values())
        assert self.num_searching == sum(f.batch.reason is BatchReason.SPLIT for f in self._by_batch.values())
