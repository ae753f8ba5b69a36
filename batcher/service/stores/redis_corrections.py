"""What is to be given back to, or charged in, the shared store: added up until there is a call to travel with."""

from collections.abc import Iterable
from itertools import islice

from batcher.core.admission.leases import Remainder
from batcher.core.admission.reservation import Reservation

MAX_KEPT = 20_000
"""Of different subjects and seconds, about 5 MB; beyond it reservations expire by themselves. It takes Redis away, and some
thousand keys, to come near."""

MAX_SENT = 1_000
"""In one script call: about a millisecond of Redis, in which nobody else is served."""

Key = tuple[str, str, int]
"""A subject's name, the epoch and the second of what is corrected."""

Difference = tuple[int, int, int]
"""In requests, in tokens given back, and in tokens charged beyond what was reserved: these are owed even when their second
counts no more, so they are added up apart."""


class Corrections:
    """By key, in the order of the first of each: what belongs to the same subject and second is one entry."""

    def __init__(self) -> None:
        self._differences: dict[Key, Difference] = {}
        self.num_dropped = 0

    def __len__(self) -> int:
        return len(self._differences)

    def add(self, key: Key, requests: int, tokens: int) -> None:
        less, more = min(tokens, 0), max(tokens, 0)
        before = self._differences.get(key)
        if before is not None:
            self._differences[key] = (before[0] + requests, before[1] + less, before[2] + more)
        elif len(self._differences) < MAX_KEPT:
            self._differences[key] = (requests, less, more)
        else:
            self.num_dropped += 1

    def add_for(self, reservation: Reservation, requests: int, tokens: int) -> None:
        for subject in reservation.subjects:
            self.add((subject.name, reservation.epoch, reservation.at), requests, tokens)

    def add_remainders(self, remainders: Iterable[Remainder]) -> None:
        for it in remainders:
            self.add((it.name, it.epoch, it.at), -it.requests, -it.tokens)

    def take(self) -> list[tuple[Key, Difference]]:
        """Those of the next call. They are not put back: nobody knows of a call without a reply whether it was made, and a
        correction that is made twice lets more in than the limit says."""
        taken = list(islice(self._differences.items(), MAX_SENT))
        for key, _ in taken:
            del self._differences[key]
        return taken
