"""What one subject was charged in the last minute, second by second."""

from math import inf

import msgspec


class Bucket(msgspec.Struct, gc=False):
    """What one subject was charged in one second."""

    second: int
    ends_at: float
    """From when on it counts no more: WINDOW_S after the last charge to it, whether or not that was given back."""
    requests: int
    tokens: int


class Window(msgspec.Struct, gc=False):
    """One subject's buckets, the oldest first, and their sums. A second in which nothing was charged has no bucket."""

    name: str
    buckets: list[Bucket]
    requests: int = 0
    tokens: int = 0

    def expire(self, now: float) -> None:
        """Drops the buckets that count no more."""
        num_old = 0
        for bucket in self.buckets:
            if bucket.ends_at > now:
                break
            self.requests -= bucket.requests
            self.tokens -= bucket.tokens
            num_old += 1
        del self.buckets[:num_old]

    def is_idle(self, now: float) -> bool:
        """Whether nothing counts any more."""
        return not self.buckets or self.buckets[-1].ends_at <= now

    def charge(self, second: int, ends_at: float, requests: int, tokens: int) -> Bucket:
        """So many of both, in this second or a later one than any before; `ends_at` is WINDOW_S from now."""
        self.requests += requests
        self.tokens += tokens
        if self.buckets and self.buckets[-1].second == second:
            bucket = self.buckets[-1]
            bucket.ends_at = ends_at
            bucket.requests += requests
            bucket.tokens += tokens
            return bucket
        bucket = Bucket(second, ends_at, requests, tokens)
        self.buckets.append(bucket)
        return bucket

    def free_at(self, *, num_requests: int = 0, num_tokens: int = 0) -> float:
        """The instant from which so much of what counts now counts no more; infinity if it is more than counts."""
        for bucket in self.buckets:
            num_requests -= bucket.requests
            num_tokens -= bucket.tokens
            if num_requests <= 0 and num_tokens <= 0:
                return bucket.ends_at
        return inf


EMPTY = Window("", [])
"""Stands for a subject that nothing is counted of. Never charged."""
