"""Queues of two tiers, filled in one line, for their tests."""

from collections.abc import Iterable

from batcher.core.dispatch.tiers import Tiers
from batcher.types import Request


def some_tiers(*, max_requests: int = 1000, max_bytes: int = 2**20) -> Tiers:
    return Tiers(("paid", "free"), max_requests=max_requests, max_bytes=max_bytes)


def push_all(tiers: Tiers, requests: Iterable[Request]) -> None:
    for request in requests:
        assert tiers.push(request) == []


def ids_of(requests: Iterable[Request]) -> list[int]:
    return [request.id for request in requests]
