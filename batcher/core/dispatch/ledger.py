"""The requests that were accepted and have not ended, and when each of them expires."""

from collections.abc import Iterator

from batcher.core.dispatch.deadlines import Deadlines
from batcher.types import Request


class Ledger:
    """Each accepted request is opened once and closed once. Closing it twice raises KeyError: a second end cannot pass."""

    __slots__ = ("_deadlines", "_live")

    def __init__(self) -> None:
        self._live: dict[int, Request] = {}
        self._deadlines = Deadlines()

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, request_id: int) -> bool:
        return request_id in self._live

    def __iter__(self) -> Iterator[Request]:
        return iter(self._live.values())

    def find(self, request_id: int) -> Request | None:
        return self._live.get(request_id)

    def open(self, request: Request) -> None:
        self._live[request.id] = request
        self._deadlines.set(request.id, request.deadline_at)

    def close(self, request: Request) -> None:
        del self._live[request.id]
        self._deadlines.discard(request.id)

    def still_live(self, requests: tuple[Request, ...]) -> tuple[Request, ...]:
        """Those of a batch that have not ended meanwhile, in order."""
        live = self._live
        return tuple(request for request in requests if request.id in live)

    def next_deadline(self) -> float:
        return self._deadlines.first()

    def close_due(self, *, now: float) -> list[Request]:
        """Closes and returns the requests whose deadline is not after `now`, earliest first."""
        return [self._live.pop(request_id) for request_id in self._deadlines.pop_due(now=now)]

    def check(self) -> None:
        self._deadlines.check()
        assert len(self._deadlines) == len(self._live), "a live request has no deadline, or a dead one has"
