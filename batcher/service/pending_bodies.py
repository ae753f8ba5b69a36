"""One budget of memory for large bodies, until their calls are over.

A bound on each body bounds nothing while as many come as there are connections: a thousand clients that send all but the last
byte and then nothing would hold a gigabyte until their time is up. So whoever holds a large body holds a part of one budget, by
what has come and not by what was declared: a client that declares much and sends nothing costs nothing.

The budget is shared as the queues' room is (`core/dispatch/tiers.py`): a tenant may hold no more than what is still free. One
tenant alone fills half, and the other half is there for whoever comes. A queue of bodies that wait for room was refused: it
would hold them.
"""

from types import TracebackType
from typing import Self

from batcher.errors import Overloaded
from batcher.service.records import Refused
from batcher.service.small_bodies import SMALL_BODY_BYTES

_RETRY_AFTER_S = 1
"""A body that comes in is whole within moments as a rule."""


class PendingBodies:
    """The budget of one server. `_by_tenant` has those who hold something, `num_bytes` is the sum of it."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._by_tenant: dict[str, int] = {}
        self.num_bytes = 0

    def __repr__(self) -> str:
        return f"PendingBodies({self.num_bytes} of {self._max_bytes} bytes, {len(self._by_tenant)} tenants)"

    def open(self, tenant: str) -> "PendingBody":
        """One request's share, which must be closed. It holds nothing yet."""
        return PendingBody(self, tenant)

    def take(self, tenant: str, num_bytes: int) -> None:
        """Raises Overloaded, and then has taken nothing."""
        held = self._by_tenant.get(tenant, 0)
        if held + num_bytes > self._max_bytes - self.num_bytes:
            message = "too many large bodies are being received or answered"
            raise Overloaded(message, retry_after_s=_RETRY_AFTER_S, refused=Refused.CAPACITY)
        self._by_tenant[tenant] = held + num_bytes
        self.num_bytes += num_bytes

    def give_back(self, tenant: str, num_bytes: int) -> None:
        left = self._by_tenant[tenant] - num_bytes
        assert left >= 0, f"{tenant} gave back more than it held"
        if left:
            self._by_tenant[tenant] = left
        else:
            del self._by_tenant[tenant]
        self.num_bytes -= num_bytes


class PendingBody:
    """One request's share, until it is closed; what comes of its body afterwards is nobody's."""

    __slots__ = ("_bodies", "_num_bytes", "tenant")

    def __init__(self, bodies: PendingBodies, tenant: str) -> None:
        self._bodies = bodies
        self.tenant = tenant
        self._num_bytes = 0

    def grow(self, num_bytes: int) -> None:
        """So many bytes of the body are here now; a small one costs nothing. Raises Overloaded, and holds what it held."""
        if num_bytes > SMALL_BODY_BYTES:
            self._bodies.take(self.tenant, num_bytes - self._num_bytes)
            self._num_bytes = num_bytes

    def close(self) -> None:
        """Gives all of it back, once."""
        num_bytes, self._num_bytes = self._num_bytes, 0
        if num_bytes:
            self._bodies.give_back(self.tenant, num_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
