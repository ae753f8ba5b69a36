"""All settings in one flat struct, and the slices of it that components get.

Flat, since a flag, a variable and a key of the file are one name (`--max-batch-size`, `BATCHER_MAX_BATCH_SIZE`,
`max_batch_size`); components get the slices of `batcher.config`.
"""

import msgspec

from batcher.config import (
    DEFAULT_TIERS,
    MAX_BLOCKS,
    MIN_BLOCKS,
    Device,
    DispatchConfig,
    Dtype,
    HttpConfig,
    Isolation,
    KeyConfig,
    KvMode,
    Mode,
    ReplicaConfig,
    Switch,
    TierConfig,
    check_keys,
    check_tiers,
    without_password,
)
from batcher.errors import ConfigError
from batcher.settings.front import FrontSettings
from batcher.settings.modes import GENERATE, SIMULATED, batch_policy, foreign, replica_policy, scaled
from batcher.types import BLOCK_SIZE

MAX_WAITING_REQUESTS = 20_000
"""In batch mode."""
MAX_WAITING_SEQUENCES = 1024
"""In continuous mode."""


class Settings(FrontSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything `batcher serve` can be told. Times are in seconds; what each means stands in `batcher.config`."""

    mode: Mode = Mode.BATCH
    backend: str = "simulated"
    workers: int = 16
    isolation: Isolation = Isolation.INLINE
    policy: str | None = None
    """A name of PolicyName in batch mode (paced by itself), of ReplicaPolicy in continuous mode (continuous)."""
    max_batch_size: int = 50
    batch_timeout: float = 0.15
    service_time: float = 0.2
    model: str = "smollm2"
    """For continuous mode and the backend `generate`: smollm2, simulated, a folder, or a GGUF file."""
    dtype: Dtype = Dtype.BFLOAT16
    device: Device = Device.AUTO
    replicas: int = 1
    kv: KvMode = KvMode.PAGED
    prefill_chunk: int = 512
    prefill_stretch: float = 2.0
    prefix_cache: Switch = Switch.ON
    max_num_seqs: int = 64
    kv_blocks: int | None = None
    kv_memory: float | None = None
    """GiB of keys and values: another way to say kv_blocks. Without either, what the model's device has to spare."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together; by itself as many as the model and the blocks hold."""
    simulated_time_scale: float = 1.0
    simulated_answer: str = "echo"
    host: str = "127.0.0.1"
    port: int = 8000
    request_timeout: float = 10.0
    ping_interval: float = 5.0
    drain_deadline: float = 30.0
    max_body_bytes: int = 1_000_000
    max_pending_body_bytes: int = 128 * 2**20
    body_timeout: float = 10.0
    keep_alive: float = 75.0
    max_connections: int = 20_000
    max_waiting: int | None = None
    """Requests in batch mode, sequences in continuous mode; by itself what stands above."""
    max_waiting_bytes: int = 64 * 2**20
    max_attempts: int = 3
    hang_factor: float = 1.3
    first_batch_timeout: float = 30.0
    start_timeout: float = 120.0
    retry_ratio: float = 0.2
    retry_reserve: int = 100
    restart_backoff: float = 0.1
    breaker_threshold: int = 5
    breaker_rest: float = 30.0
    simulated_jitter: float = 0.0
    simulated_poison: str | None = None
    simulated_raise_rate: float = 0.0
    simulated_hang_rate: float = 0.0
    simulated_die_rate: float = 0.0
    simulated_seed: int = 0
    wait_budget: float | None = None
    """The first tier's wait budget in this mode; lower tiers' are scaled with it. By itself each is as its tier says."""
    log_level: str = "info"
    tiers: tuple[TierConfig, ...] = DEFAULT_TIERS
    keys: tuple[KeyConfig, ...] = ()
    """Beside those of keys_file. Without either there are the development keys, and then only a loopback host."""

    def __post_init__(self) -> None:
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ConfigError(f"log_level is {self.log_level!r}; it must be debug, info, warning or error")
        check_tiers(self.tiers)
        check_keys(self.keys)
        self.tiers_in_force  # noqa: B018
        self._check_mode()
        self.limits(), self.safety(), self.idempotency(), self.usage()
        http = self.http()
        if self.max_pending_body_bytes < 2 * self.max_body_bytes:
            raise ConfigError(
                f"max_pending_body_bytes is {self.max_pending_body_bytes}; it must be at least twice max_body_bytes "
                f"({self.max_body_bytes}): a tenant may fill half of it, and the largest body must fit in that"
            )
        if not self.has_keys and not http.is_loopback:
            raise ConfigError(
                f"host is {self.host!r} and no keys are configured: the development keys are known to everybody. "
                "Make some with `batcher keys create` for --keys-file, or serve on 127.0.0.1"
            )
        for key in self.keys:
            if key.tier not in (tier.name for tier in self.tiers):
                raise ConfigError(f"the key of {key.tenant!r} names the tier {key.tier!r}, which is not configured")

    @property
    def has_keys(self) -> bool:
        """Whether keys are configured; else there are the development keys."""
        return bool(self.keys) or self.keys_file is not None

    @property
    def tiers_in_force(self) -> tuple[TierConfig, ...]:
        """As components get them: with the wait budgets that `wait_budget` means. Raises ConfigError."""
        return self.tiers if self.wait_budget is None else scaled(self.tiers, self.wait_budget, self.mode)

    def _check_mode(self) -> None:
        defaults = {field.name: field.default for field in msgspec.structs.fields(self)}
        for name, whose in foreign(self.mode, self.backend, self.model):
            if getattr(self, name) != defaults[name]:
                raise ConfigError(f"{name} is for {whose} only; {self._place}")
        if self.mode is Mode.CONTINUOUS:
            self._check_continuous()
            return
        self.dispatch()
        if self.max_waiting_bytes < 2 * self.max_body_bytes:
            raise ConfigError(
                f"max_waiting_bytes is {self.max_waiting_bytes}; it must be at least twice max_body_bytes "
                f"({self.max_body_bytes}): a tenant may fill half of the queue, and the largest body must fit in that"
            )

    @property
    def _place(self) -> str:
        if self.mode is Mode.CONTINUOUS:
            return f"the mode is continuous, and the model is {self.model!r}"
        return f"the mode is batch, and the backend is {self.backend!r}"

    def _check_continuous(self) -> None:
        if self.replicas != 1:
            raise ConfigError(f"replicas is {self.replicas}; it must be 1: one process serves one replica")
        if self.kv_blocks is not None and self.kv_memory is not None:
            raise ConfigError("kv_blocks and kv_memory are two ways to say one thing; give one of them")
        if self.kv_memory is not None and not 1e-6 <= self.kv_memory <= 65_536.0:
            raise ConfigError(f"kv_memory is {self.kv_memory!r}; it must be from 0.000001 to 65536 GiB")
        # All that can be checked before there is a model: into this one's memory fits whatever fits into another's.
        self.replica(context_len=10_000_000, kv_bytes_per_token=1, kv_bytes=2**40)

    def in_force(self) -> dict[str, object]:
        """All that has an effect in this mode, as it is: for the log, and so without keys. What nobody has set and what is left
        to the model to say (how many blocks) is not in it."""
        policy = replica_policy(self.policy) if self.mode is Mode.CONTINUOUS else batch_policy(self.policy)
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        values |= {"policy": policy, "max_waiting": self._max_waiting, "tiers": self.tiers_in_force}
        values["redis"] = None if self.redis is None else without_password(self.redis)
        hidden = {"keys", *(name for name, _ in foreign(self.mode, self.backend, self.model))}
        return {name: value for name, value in values.items() if name not in hidden and value is not None}

    @property
    def _max_waiting(self) -> int:
        if self.max_waiting is not None:
            return self.max_waiting
        return MAX_WAITING_SEQUENCES if self.mode is Mode.CONTINUOUS else MAX_WAITING_REQUESTS

    def dispatch(self) -> DispatchConfig:
        return DispatchConfig(
            num_workers=self.workers,
            tiers=tuple(tier.name for tier in self.tiers),
            policy=batch_policy(self.policy),
            max_batch_size=self.max_batch_size,
            batch_timeout_s=self.batch_timeout,
            service_time_s=self.service_time,
            max_waiting=self._max_waiting,
            max_waiting_bytes=self.max_waiting_bytes,
            max_attempts=self.max_attempts,
            hang_factor=self.hang_factor,
            first_batch_timeout_s=self.first_batch_timeout,
            start_timeout_s=self.start_timeout,
            retry_ratio=self.retry_ratio,
            retry_reserve=self.retry_reserve,
            restart_backoff_s=self.restart_backoff,
            breaker_threshold=self.breaker_threshold,
            breaker_rest_s=self.breaker_rest,
        )

    def http(self) -> HttpConfig:
        return HttpConfig(
            host=self.host,
            port=self.port,
            max_body_bytes=self.max_body_bytes,
            max_pending_body_bytes=self.max_pending_body_bytes,
            body_timeout_s=self.body_timeout,
            keep_alive_s=self.keep_alive,
            max_connections=self.max_connections,
            request_timeout_s=self.request_timeout,
            ping_interval_s=self.ping_interval,
            drain_deadline_s=self.drain_deadline,
        )

    def replica(self, *, context_len: int, kv_bytes_per_token: int, kv_bytes: int) -> ReplicaConfig:
        """For a model with this context, and this much memory to spare. Raises ConfigError."""
        num_blocks = self.kv_blocks
        if num_blocks is None:
            memory = kv_bytes if self.kv_memory is None else int(self.kv_memory * 2**30)
            block_bytes = kv_bytes_per_token * BLOCK_SIZE
            num_blocks = min(memory // block_bytes, MAX_BLOCKS)
            if self.kv_memory is not None and num_blocks < MIN_BLOCKS:
                raise ConfigError(
                    f"kv_memory is {self.kv_memory!r} GiB, which holds {num_blocks} of this model's KV blocks of {block_bytes} "
                    f"bytes; it must hold at least {MIN_BLOCKS}"
                )
        most = min(context_len, num_blocks * BLOCK_SIZE)
        if self.max_model_len is not None and self.max_model_len > most:
            limit = f"model's context of {most}" if most == context_len else f"{num_blocks} KV blocks, which hold {most}"
            raise ConfigError(f"max_model_len is {self.max_model_len} tokens; it must fit into the {limit} tokens")
        return ReplicaConfig(
            tiers=tuple(tier.name for tier in self.tiers),
            policy=replica_policy(self.policy),
            kv=self.kv,
            num_blocks=num_blocks,
            max_num_seqs=self.max_num_seqs,
            max_model_len=most if self.max_model_len is None else self.max_model_len,
            prefill_chunk=self.prefill_chunk,
            prefill_stretch=self.prefill_stretch,
            has_prefix_cache=self.prefix_cache is Switch.ON,
            reserved_slot_share=self.tiers[0].reserved_share,
            max_waiting=self._max_waiting,
        )

    def model_settings(self) -> dict[str, object] | None:
        """What the model is told; only the simulated one takes any."""
        if self.model != SIMULATED:
            return None
        return {"time_scale": self.simulated_time_scale, "answer": self.simulated_answer}

    def backend_settings(self) -> dict[str, object] | None:
        """What the backend is told; a MODULE:ATTR takes none."""
        if self.backend == GENERATE:
            return {"model": self.model, "dtype": self.dtype, "device": self.device, "model_settings": self.model_settings()}
        if self.backend != SIMULATED:
            return None
        return {
            "service_time_s": self.service_time,
            "jitter": self.simulated_jitter,
            "poison_prefix": self.simulated_poison,
            "raise_rate": self.simulated_raise_rate,
            "hang_rate": self.simulated_hang_rate,
            "die_rate": self.simulated_die_rate,
            "seed": self.simulated_seed,
        }
