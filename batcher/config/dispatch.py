"""Batch mode's dispatcher."""

import msgspec

from batcher.config.checks import require, require_between
from batcher.config.choices import PolicyName
from batcher.config.tiers import DEFAULT_TIERS
from batcher.types import MAX_BATCH_SIZE

MAX_WORKERS = 1024
"""A bound on one dispatcher's fleet. A larger one is several cells (SPEC S7.7)."""


class DispatchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The dispatcher's settings (SPEC S1)."""

    num_workers: int = 16
    tiers: tuple[str, ...] = tuple(tier.name for tier in DEFAULT_TIERS)
    policy: PolicyName = PolicyName.PACED
    max_batch_size: int = MAX_BATCH_SIZE
    batch_timeout_s: float = 0.15
    """No request waits longer while a worker is free (SPEC S1.3)."""
    service_time_s: float = 0.2
    """What a batch is expected to take until batches have been measured."""
    max_waiting: int = 20_000
    """Requests that may wait in all tiers together. Ten seconds of SPEC S1.2's traffic; the wait budget refuses far earlier."""
    max_waiting_bytes: int = 64 * 2**20
    """Bytes of input that may wait in all tiers together."""
    max_attempts: int = 3
    """Times that a request may be sent to a worker because the one before was lost (SPEC S1.6)."""
    hang_factor: float = 1.3
    """A batch that takes this many times the expected time has hung, and never less than 100 ms beyond it: shorter pauses come
    from a busy machine. Expected is the longest recent batch, or the configured service time if that is longer."""
    first_batch_timeout_s: float = 30.0
    """What the first batch of a fresh worker may take: models warm up, and nothing has been measured of it."""
    start_timeout_s: float = 120.0
    """What starting a worker may take, weights and all."""
    retry_ratio: float = 0.2
    """Extra run_batch calls (retries and splits) allowed for each fresh one, in the long run."""
    retry_reserve: int = 100
    """Extra calls that may be saved up: the loss of all of 50 workers at once, or eight bad inputs to isolate."""
    restart_backoff_s: float = 0.1
    """Rest of a worker before its restart after one failure; doubled for each further failure in a row."""
    breaker_threshold: int = 5
    """Failures in a row that open a worker's circuit breaker."""
    breaker_rest_s: float = 30.0
    """Rest of a worker whose breaker is open. When it comes back its first batch is a canary, as after any failure."""

    def __post_init__(self) -> None:
        require_between("workers", self.num_workers, 1, MAX_WORKERS)
        require(0 < len(set(self.tiers)) == len(self.tiers), "tiers", self.tiers, "one or more different names")
        require_between("max_batch_size", self.max_batch_size, 1, MAX_BATCH_SIZE)
        require_between("batch_timeout", self.batch_timeout_s, 0.0, 60.0, "seconds")
        require_between("service_time", self.service_time_s, 0.0001, 3600.0, "seconds")
        require_between("max_waiting", self.max_waiting, 1, 1_000_000, "requests")
        if self.policy is PolicyName.STATIC:
            expected = "at least twice max_batch_size for the static policy, for one tenant may fill half of the queue"
            require(self.max_waiting >= 2 * self.max_batch_size, "max_waiting", self.max_waiting, expected)
        require_between("max_waiting_bytes", self.max_waiting_bytes, 1, 2**40, "bytes")
        require_between("max_attempts", self.max_attempts, 1, 10)
        require_between("hang_factor", self.hang_factor, 1.0, 100.0)
        require_between("first_batch_timeout", self.first_batch_timeout_s, 0.001, 3600.0, "seconds")
        require_between("start_timeout", self.start_timeout_s, 0.001, 3600.0, "seconds")
        require_between("retry_ratio", self.retry_ratio, 0.0, 1.0)
        require_between("retry_reserve", self.retry_reserve, 0, 10_000, "calls")
        require_between("restart_backoff", self.restart_backoff_s, 0.0, 60.0, "seconds")
        require_between("breaker_threshold", self.breaker_threshold, 1, 1000, "failures")
        require_between("breaker_rest", self.breaker_rest_s, 0.0, 3600.0, "seconds")
