"""Each component gets its slice of the settings, and a replica is sized by its model."""

import msgspec
import pytest

from batcher.config import DEFAULT_TIERS, KvMode, Mode, ReplicaConfig, ReplicaPolicy, Switch, TierConfig
from batcher.errors import ConfigError
from batcher.settings import Settings

MODEL = {"context_len": 8192, "kv_bytes_per_token": 1024, "kv_bytes": 64 * 2**20}


def test_a_replica_is_sized_by_its_model_unless_it_is_told() -> None:
    by_itself = Settings(mode=Mode.CONTINUOUS).replica(**MODEL)
    assert by_itself == ReplicaConfig(num_blocks=4096, max_model_len=8192)
    assert by_itself.tiers == tuple(tier.name for tier in DEFAULT_TIERS)
    told = Settings(
        mode=Mode.CONTINUOUS, policy="static", kv=KvMode.CONTIGUOUS, kv_memory=0.03125, max_model_len=100, max_waiting=3,
        prefix_cache=Switch.OFF, prefill_chunk=64, max_num_seqs=2,
    ).replica(**MODEL)  # fmt: skip
    assert (told.policy, told.kv, told.num_blocks, told.max_model_len) == (ReplicaPolicy.STATIC, KvMode.CONTIGUOUS, 2048, 100)
    assert (told.max_waiting, told.has_prefix_cache, told.prefill_chunk, told.max_num_seqs) == (3, False, 64, 2)


def test_no_request_is_let_in_that_the_blocks_could_not_hold() -> None:
    assert Settings(mode=Mode.CONTINUOUS, kv_blocks=10).replica(**MODEL).max_model_len == 160
    with pytest.raises(ConfigError, match="model's context of 8192 tokens"):
        Settings(mode=Mode.CONTINUOUS, max_model_len=8193).replica(**MODEL)
    with pytest.raises(ConfigError, match="kv_memory is 1e-05 GiB, which holds 0 of this model's KV blocks of 16384 bytes"):
        Settings(mode=Mode.CONTINUOUS, kv_memory=1e-5).replica(**MODEL)
    # More than a block table can number is no mistake.
    assert Settings(mode=Mode.CONTINUOUS, kv_memory=65_536.0).replica(**MODEL).num_blocks == 2**31 - 1


def test_what_is_in_force_is_of_the_mode_alone_and_names_its_policy() -> None:
    batch = Settings(workers=3).in_force()
    assert (batch["policy"], batch["workers"], batch["max_waiting"]) == ("paced", 3, 20_000)
    assert not {"model", "kv", "prefill_chunk", "simulated_answer", "keys"} & set(batch)
    continuous = Settings(mode=Mode.CONTINUOUS, kv_blocks=10).in_force()
    assert (continuous["policy"], continuous["model"], continuous["max_waiting"]) == ("continuous", "smollm2", 1024)
    assert continuous["kv_blocks"] == 10
    assert not {"backend", "workers", "service_time", "simulated_seed", "kv_memory", "keys"} & set(continuous)


def test_each_component_receives_its_slice() -> None:
    tiers = (TierConfig("gold", 0.3), TierConfig("iron", 0.1))
    settings = Settings(workers=3, tiers=tiers, request_timeout=2.0, simulated_poison="BOOM", simulated_jitter=0.1)
    assert (settings.dispatch().num_workers, settings.dispatch().tiers) == (3, ("gold", "iron"))
    assert settings.http().request_timeout_s == 2.0
    told = settings.backend_settings()
    assert told is not None
    assert (told["poison_prefix"], told["jitter"]) == ("BOOM", 0.1)
    assert Settings(backend="module:attribute").backend_settings() is None


def test_settings_cannot_be_changed_after_birth() -> None:
    with pytest.raises(AttributeError):
        Settings().workers = 3  # type: ignore[misc]
    assert msgspec.structs.replace(Settings(), workers=3).workers == 3
