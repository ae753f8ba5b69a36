"""What one subject was charged in the last minute, second by second."""

from math import inf

import msgspec

from batcher.core.admission.reservation import WINDOW_S

COUNTED_S = WINDOW_S + 1
"""How long after its start a bucket counts: its last instant is then more than WINDOW_S ago."""


class Bucket(msgspec.Struct, gc=False):
    """What one subject was charged in one second."""

    second: int
    requests: int
    tokens: int


class Window(msgspec.Struct, gc=False):
    """One subject's buckets, the oldest first, and their sums. A second in which nothing was charged has no bucket."""

    name: str
    buckets: list[Bucket]
    requests: int = 0
    tokens: int = 0

    def expire(self, oldest: int) -> None:
        """Drops the buckets before the second `oldest`."""
        num_old = 0
        for bucket in self.buckets:
            if bucket.second >= oldest:
                break
            self.requests -= bucket.requests
            self.tokens -= bucket.tokens
            num_old += 1
        del self.buckets[:num_old]

    def is_idle(self, oldest: int) -> bool:
        """Whether nothing counts since the second `oldest`."""
        return not self.buckets or self.buckets[-1].second < oldest

    def charge(self, second: int, requests: int, tokens: int) -> Bucket:
        """So many of both, in this second or a later one than any before."""
        self.requests += requests
        self.tokens += tokens
        if self.buckets and self.buckets[-1].second == second:
            bucket = self.buckets[-1]
            bucket.requests += requests
            bucket.tokens += tokens
            return bucket
        bucket = Bucket(second, requests, tokens)
        self.buckets.append(bucket)
        return bucket

    def free_at(self, *, num_requests: int = 0, num_tokens: int = 0) -> float:
        """The second from which so much of what counts now counts no more; infinity if it is more than counts."""
        for bucket in self.buckets:
            num_requests -= bucket.requests
            num_tokens -= bucket.tokens
            if num_requests <= 0 and num_tokens <= 0:
                return bucket.second + COUNTED_S
        return inf


EMPTY = Window("", [])
"""Stands for a subject that nothing is counted of. Never charged."""
