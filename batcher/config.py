"""Every setting, one frozen struct for each component, checked at birth.

A component receives its own slice and never the whole. Whoever builds a struct with a value that cannot work gets a
`ConfigError` that names the setting, its value and what would do, at start and never on the first request.
"""

import re
from collections.abc import Iterable
from enum import StrEnum
from ipaddress import ip_address
from math import isfinite

import msgspec

from batcher.errors import ConfigError
from batcher.types import BLOCK_SIZE, MAX_BATCH_SIZE

MAX_WORKERS = 1024
"""A bound on one dispatcher's fleet. A larger one is several cells (SPEC S7.7)."""

MIN_BLOCKS = 2
"""KV blocks without which a replica can run nothing."""
MAX_BLOCKS = 2**31 - 1
"""What a block table's 32-bit numbers reach."""


class PolicyName(StrEnum):
    PACED = "paced"
    SIZE_OR_TIMEOUT = "size-or-timeout"
    STATIC = "static"
    SINGLE = "single"


class ReplicaPolicy(StrEnum):
    """How a replica forms its batch (SPEC S11)."""

    CONTINUOUS = "continuous"
    """The batch is formed anew at each step."""
    STATIC = "static"
    """A batch is formed when the last one has ended, and runs until its longest sequence ends."""
    SINGLE = "single"
    """One sequence at a time."""


class KvMode(StrEnum):
    PAGED = "paged"
    """Blocks are handed out as tokens come."""
    CONTIGUOUS = "contiguous"
    """A sequence reserves prompt + max_tokens when it starts, and shares nothing."""


class Isolation(StrEnum):
    INLINE = "inline"
    PROCESS = "process"


class Mode(StrEnum):
    BATCH = "batch"
    """A GPU is a call of `run_batch` (SPEC S1)."""
    CONTINUOUS = "continuous"
    """A GPU is a model, run step by step (SPEC S6)."""


class Dtype(StrEnum):
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"


class Device(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Switch(StrEnum):
    ON = "on"
    OFF = "off"


def _require(condition: bool, setting: str, value: object, expected: str) -> None:
    if not condition:
        raise ConfigError(f"{setting} is {value!r}; it must be {expected}")


def _require_between(setting: str, value: float, low: float, high: float, unit: str = "") -> None:
    expected = f"from {_in_full(low)} to {_in_full(high)}{unit and ' ' + unit}"
    _require(isfinite(value) and low <= value <= high, setting, value, expected)


def _in_full(number: float) -> str:
    """1000000 and not 1e+06."""
    return str(number) if isinstance(number, int) else f"{number:g}"


class TierConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier. Tiers are listed in the order in which they are served."""

    name: str
    wait_budget_s: float = 0.2
    """A request whose estimated wait for a batch is longer is refused at once. With 0.2 s of service and half a pace this
    leaves a margin of about 90 ms in SPEC S1.2's budget of 500 ms."""

    def __post_init__(self) -> None:
        _require(bool(re.fullmatch(r"[a-z][a-z0-9_-]{0,31}", self.name)), "tier name", self.name, "a short lower-case word")
        _require_between(f"wait_budget_s of tier {self.name}", self.wait_budget_s, 0.0, 3600.0, "seconds")


DEFAULT_TIERS = (TierConfig("paid"), TierConfig("free", wait_budget_s=0.15))


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
        _require_between("workers", self.num_workers, 1, MAX_WORKERS)
        _require(0 < len(set(self.tiers)) == len(self.tiers), "tiers", self.tiers, "one or more different names")
        _require_between("max_batch_size", self.max_batch_size, 1, MAX_BATCH_SIZE)
        _require_between("batch_timeout", self.batch_timeout_s, 0.0, 60.0, "seconds")
        _require_between("service_time", self.service_time_s, 0.0001, 3600.0, "seconds")
        _require_between("max_waiting", self.max_waiting, 1, 1_000_000, "requests")
        if self.policy is PolicyName.STATIC:
            expected = "at least twice max_batch_size for the static policy, for one tenant may fill half of the queue"
            _require(self.max_waiting >= 2 * self.max_batch_size, "max_waiting", self.max_waiting, expected)
        _require_between("max_waiting_bytes", self.max_waiting_bytes, 1, 2**40, "bytes")
        _require_between("max_attempts", self.max_attempts, 1, 10)
        _require_between("hang_factor", self.hang_factor, 1.0, 100.0)
        _require_between("first_batch_timeout", self.first_batch_timeout_s, 0.001, 3600.0, "seconds")
        _require_between("start_timeout", self.start_timeout_s, 0.001, 3600.0, "seconds")
        _require_between("retry_ratio", self.retry_ratio, 0.0, 1.0)
        _require_between("retry_reserve", self.retry_reserve, 0, 10_000, "calls")
        _require_between("restart_backoff", self.restart_backoff_s, 0.0, 60.0, "seconds")
        _require_between("breaker_threshold", self.breaker_threshold, 1, 1000, "failures")
        _require_between("breaker_rest", self.breaker_rest_s, 0.0, 3600.0, "seconds")


class ReplicaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One replica's scheduler and block pool (SPEC S6)."""

    tiers: tuple[str, ...] = tuple(tier.name for tier in DEFAULT_TIERS)
    """The highest first."""
    policy: ReplicaPolicy = ReplicaPolicy.CONTINUOUS
    kv: KvMode = KvMode.PAGED
    num_blocks: int = 4096
    """KV blocks of BLOCK_SIZE tokens, all in all."""
    max_num_seqs: int = 64
    """Slots: sequences that may run at once."""
    max_model_len: int = 8192
    """Most tokens of prompt and answer together."""
    prefill_chunk: int = 512
    """Prompt tokens that one step computes at most, for all its sequences together; a longer prompt is cut. 0 cuts nothing:
    a prompt is computed whole in one step, however long the running ones wait (SPEC S6.3)."""
    prefill_stretch: float = 2.0
    """A step with prompt tokens beside decodes is held to this many times what the decodes alone take, by smaller chunks:
    decoding slows a little and never stalls. 0 holds it to nothing but `prefill_chunk`."""
    has_prefix_cache: bool = True
    reserved_slot_share: float = 0.1
    """Share of the slots that only the first tier may take under the continuous policy; at least one slot, where there is more
    than one slot and tier."""
    growth_blocks: int = 1
    """Blocks that each running sequence is expected to grow by before one of them ends: they must stay available when another
    is admitted (the watermark), up to a quarter of the pool."""
    max_waiting: int = 1024
    """Sequences that may wait for their first slot, in all tiers together."""
    max_waiting_tokens: int = 4_000_000
    """Prompt tokens that may wait, in all tiers together: far more than are served in time, and some 160 MB of this process."""
    max_preemptions: int = 8
    """Times that one sequence may be preempted; after that it starts with all the blocks that it may need, and keeps them."""
    max_overtakes: int = 64
    """Sequences of its tier and of lower ones that may pass one that does not fit; then they wait behind it."""
    static_timeout_s: float = 0.15
    """How long the oldest waits for a full batch under the static policy."""

    def __post_init__(self) -> None:
        _require(0 < len(set(self.tiers)) == len(self.tiers), "tiers", self.tiers, "one or more different names")
        _require_between("kv_blocks", self.num_blocks, MIN_BLOCKS, MAX_BLOCKS, "blocks")
        _require_between("max_num_seqs", self.max_num_seqs, 1, 4096, "sequences")
        _require_between("max_model_len", self.max_model_len, 2, 10_000_000, "tokens")
        _require_between("prefill_chunk", self.prefill_chunk, 0, 1_000_000, "tokens")
        stretch = self.prefill_stretch
        _require(stretch == 0.0 or 1.0 < stretch <= 1000.0, "prefill_stretch", stretch, "0, or above 1 and at most 1000")
        whole = f"0 or at least {BLOCK_SIZE} tokens"
        _require(self.prefill_chunk == 0 or self.prefill_chunk >= BLOCK_SIZE, "prefill_chunk", self.prefill_chunk, whole)
        _require_between("reserved_slot_share", self.reserved_slot_share, 0.0, 0.9)
        _require_between("growth_blocks", self.growth_blocks, 0, 64, "blocks")
        _require_between("max_waiting", self.max_waiting, 1, 1_000_000, "sequences")
        _require_between("max_waiting_tokens", self.max_waiting_tokens, 1, 2**40, "tokens")
        _require_between("max_preemptions", self.max_preemptions, 0, 100)
        _require_between("max_overtakes", self.max_overtakes, 0, 10_000)
        _require_between("static_timeout", self.static_timeout_s, 0.0, 60.0, "seconds")


def check_tiers(tiers: Iterable[TierConfig]) -> None:
    """Raises ConfigError unless the tiers can serve together."""
    names = [tier.name for tier in tiers]
    _require(0 < len(names) <= 8, "tiers", names, "1 to 8 tiers")
    _require(len(set(names)) == len(names), "tiers", names, "all different")


class KeyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An API key: whose it is, and the SHA-256 digest of it. The key itself is never stored (DESIGN D8)."""

    tenant: str
    tier: str
    sha256: str
    """64 hexadecimal digits."""

    def __post_init__(self) -> None:
        _require(
            bool(re.fullmatch(r"[A-Za-z0-9._-]{1,64}", self.tenant)), "tenant of a key", self.tenant, "1 to 64 of A-Za-z0-9._-"
        )
        # What stands in a digest's place by mistake may be the key itself: it is not repeated.
        shown = f"{len(self.sha256)} characters"
        _require(bool(re.fullmatch(r"[0-9a-f]{64}", self.sha256)), f"sha256 of {self.tenant}'s key", shown, "64 hex digits")


class HttpConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP side of the service."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 lets the system choose; the log line `listening` tells which."""
    max_body_bytes: int = 1_000_000
    body_timeout_s: float = 10.0
    """What a request may take to arrive whole from its first byte on, and what a client may leave a reply or stream untaken."""
    keep_alive_s: float = 75.0
    """How long an idle connection is kept."""
    max_connections: int = 20_000
    """Bounds file descriptors and memory; beyond it a connection is refused with a plain 529."""
    request_timeout_s: float = 10.0
    """A request without an answer after this time ends as 504, wherever it is; in continuous mode one that has not started."""
    ping_interval_s: float = 5.0
    """A stream that was silent for so long says that it lives: proxies cut what is silent for a minute."""
    drain_deadline_s: float = 30.0
    """On SIGTERM, how long accepted requests may take to end before they are given up."""

    def __post_init__(self) -> None:
        _require_between("port", self.port, 0, 65535)
        _require_between("max_body_bytes", self.max_body_bytes, 64, 100_000_000, "bytes")
        _require_between("body_timeout", self.body_timeout_s, 0.01, 600.0, "seconds")
        _require_between("keep_alive", self.keep_alive_s, 0.01, 3600.0, "seconds")
        _require_between("max_connections", self.max_connections, 1, 1_000_000)
        _require_between("request_timeout", self.request_timeout_s, 0.001, 3600.0, "seconds")
        _require_between("ping_interval", self.ping_interval_s, 0.001, 600.0, "seconds")
        _require_between("drain_deadline", self.drain_deadline_s, 0.0, 3600.0, "seconds")

    @property
    def is_loopback(self) -> bool:
        try:
            return self.host == "localhost" or ip_address(self.host).is_loopback
        except ValueError:
            return False
