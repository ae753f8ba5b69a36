"""Supervises the backends: starts a worker's incarnation, gives it batches, watches it, and ends it.

It reports what happened and decides nothing: whether a worker is replaced, and when, is the dispatcher's business.
"""

import asyncio
import traceback
from collections.abc import Coroutine
from typing import Protocol

from backends.base import BackendFactory, WorkerBackend, WorkerLost
from batcher.core.effects import RunBatch, StopWorker
from batcher.errors import ConfigError
from batcher.service import log
from batcher.types import WorkerFault

_TRACEBACK_S = 1.0
"""Between tracebacks of `run_batch` in the log: under poison it raises many times a second, mostly for the same reason."""
_MAX_TRACEBACK_CHARS = 6_000
"""Of one; its end, where the cause stands."""


class Reports(Protocol):
    """Who is told. Every report names the incarnation or the attempt it speaks of."""

    def worker_ready(self, worker_id: int, incarnation: int) -> None: ...
    def worker_lost(self, worker_id: int, incarnation: int, fault: WorkerFault) -> None: ...
    def worker_misconfigured(self, error: ConfigError) -> None:
        """A worker could not start for a setting that no later try will mend; it is reported as lost, too."""

    def batch_completed(self, batch: RunBatch, outputs: object, run_s: float) -> None: ...
    def batch_failed(self, batch: RunBatch) -> None: ...


class Supervisor:
    """The workers' backends. Lives on one event loop.

    `_backends` holds the backend of each worker's current incarnation; `_tasks` everything under way: the life and the batch of
    each of them, and the closing of those given up, which takes about a second at most.
    """

    def __init__(self, factory: BackendFactory, reports: Reports) -> None:
        self._factory = factory
        self._reports = reports
        self._backends: dict[int, tuple[int, WorkerBackend]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closing = False
        self._traceback_at = 0.0
        """From when on the log takes the next traceback of `run_batch`."""

    def start(self, worker_id: int, incarnation: int) -> None:
        if not self._is_closing:
            backend = self._factory(worker_id)
            self._backends[worker_id] = (incarnation, backend)
            self._spawn(self._live(worker_id, incarnation, backend))

    def run(self, batch: RunBatch) -> None:
        incarnation, backend = self._backends[batch.worker_id]
        assert incarnation == batch.incarnation
        self._spawn(self._run(backend, batch))

    def stop(self, effect: StopWorker) -> None:
        """Ends this incarnation. Its pending batch, if any, ends as lost and is not reported."""
        worker_id, incarnation = effect.worker_id, effect.incarnation
        returned = {"returned": effect.returned.rstrip(",")} if effect.returned else {}
        log.warning("worker_stopped", worker=worker_id, incarnation=incarnation, fault=effect.fault, **returned)
        current = self._backends.get(worker_id)
        if current is not None and current[0] == incarnation:
            del self._backends[worker_id]
            self._spawn(self._close(current[1]))

    async def close(self) -> None:
        """Ends every worker, in a second or so, and waits for it. None starts any more."""
        self._is_closing = True
        for worker_id in list(self._backends):
            _, backend = self._backends.pop(worker_id)
            self._spawn(self._close(backend))
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _live(self, worker_id: int, incarnation: int, backend: WorkerBackend) -> None:
        """One incarnation, from its start until it is lost or stopped."""
        try:
            await backend.load()
        except Exception as error:
            if self._is_current(worker_id, incarnation):
                if isinstance(error, ConfigError):
                    self._reports.worker_misconfigured(error)
                else:
                    log.error("worker_not_started", exc_info=error, worker=worker_id, incarnation=incarnation)
                self._reports.worker_lost(worker_id, incarnation, WorkerFault.NOT_STARTED)
            return
        if not self._is_current(worker_id, incarnation):
            return
        log.event("worker_ready", worker=worker_id, incarnation=incarnation)
        self._reports.worker_ready(worker_id, incarnation)
        reason = await backend.wait_lost()
        if self._is_current(worker_id, incarnation):
            log.warning("worker_died", worker=worker_id, incarnation=incarnation, reason=str(reason))
            self._reports.worker_lost(worker_id, incarnation, WorkerFault.DIED)

    async def _run(self, backend: WorkerBackend, batch: RunBatch) -> None:
        loop = asyncio.get_running_loop()
        called_at = loop.time()
        try:
            outputs = await backend.run_batch([request.input for request in batch.requests])
        except WorkerLost:
            if self._is_current(batch.worker_id, batch.incarnation):
                self._reports.worker_lost(batch.worker_id, batch.incarnation, WorkerFault.DIED)
        except Exception as error:
            self._log_raised(batch, error)
            self._reports.batch_failed(batch)
        else:
            run_s = backend.last_run_s
            self._reports.batch_completed(batch, outputs, loop.time() - called_at if run_s is None else run_s)

    def _log_raised(self, batch: RunBatch, error: Exception) -> None:
        fields = {"worker": batch.worker_id, "batch": batch.batch_id, "error": f"{error!r:.500}"}
        now = asyncio.get_running_loop().time()
        if now >= self._traceback_at:
            self._traceback_at = now + _TRACEBACK_S
            fields["exception"] = "".join(traceback.format_exception(error))[-_MAX_TRACEBACK_CHARS:]
        log.warning("run_batch_raised", **fields)

    async def _close(self, backend: WorkerBackend) -> None:
        try:
            await backend.close()
        except Exception as error:
            log.error("worker_close_failed", exc_info=error)

    def _is_current(self, worker_id: int, incarnation: int) -> bool:
        current = self._backends.get(worker_id)
        return current is not None and current[0] == incarnation

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
