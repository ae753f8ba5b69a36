"""Settings in force: the same effect by each way of configuring (B17), and at the edges of what is allowed (B12)."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import pytest

from batcher.config import KeyConfig, PolicyName, TierConfig
from batcher.errors import ConfigError
from batcher.settings import Settings, load_settings
from tests.service.errors import assert_error
from tests.service.serving import Gate, quick, serving
from tests.service.wire_client import connected, request, run

pytestmark = pytest.mark.anyio

BASE = {"backend": "tests.backends.faulty:AsyncFaultyBackend", "workers": 1, "port": 0, "batch_timeout": 0.0}


def _by_flag(tmp_path: Path, name: str, value: float) -> Settings:
    return load_settings(flags={**BASE, name: value})


def _by_environment(tmp_path: Path, name: str, value: float) -> Settings:
    return load_settings(environment={f"BATCHER_{name.upper()}": str(value)}, flags=BASE)


def _by_file(tmp_path: Path, name: str, value: float) -> Settings:
    file = tmp_path / "batcher.toml"
    file.write_text(f"{name.replace('_', '-')} = {value}\n")
    return load_settings(file=file, flags=BASE)


@pytest.mark.parametrize("configure", [_by_flag, _by_environment, _by_file])
async def test_a_request_timeout_has_its_effect_however_it_was_set(tmp_path: Path, gate: Gate, configure: Any) -> None:
    async with serving(configure(tmp_path, "request_timeout", 0.05)) as server:
        assert "0.05 s" in assert_error(await server.ask(run(gate.hold)), 504, "timeout_error")
        gate.open()


@pytest.mark.parametrize("configure", [_by_flag, _by_environment, _by_file])
async def test_a_body_limit_has_its_effect_however_it_was_set(tmp_path: Path, configure: Any) -> None:
    async with serving(configure(tmp_path, "max_body_bytes", 100)) as server:
        assert "100 bytes" in assert_error(await server.ask(run("x" * 100)), 413, "request_too_large")


@pytest.mark.parametrize("policy", PolicyName)
@pytest.mark.parametrize(
    "edge",
    [
        {"max_batch_size": 1},
        {"batch_timeout": 0.0},
        {"workers": 1},
        {"workers": 1, "max_batch_size": 1, "batch_timeout": 0.0},
        {"max_waiting": 1},
        {"max_attempts": 1, "retry_ratio": 0.0, "retry_reserve": 0},
        {"hang_factor": 1.0},
        {"restart_backoff": 0.0, "breaker_threshold": 1, "breaker_rest": 0.0},
        {"service_time": 0.0001},
        {"max_body_bytes": 64},
        {"drain_deadline": 0.0},
        {"tiers": (TierConfig("only", wait_budget_s=1.0),)},
        {"tiers": tuple(TierConfig(f"tier-{number}") for number in range(8))},
    ],
    ids=lambda edge: " ".join(edge),
)
async def test_the_edges_of_what_may_be_set_serve(policy: PolicyName, edge: dict[str, Any]) -> None:
    """B12: each works or is refused at birth in clear words, and none fails on the first request."""
    values = {"service_time": 0.005, "batch_timeout": 0.01, "policy": policy, **edge}
    if policy is PolicyName.STATIC and "max_waiting" in edge:
        with pytest.raises(ConfigError, match="max_waiting"):
            quick(**values)
        return
    settings = quick(**values)
    key = f"dev-{settings.tiers[0].name}"
    async with serving(settings) as server:
        size = settings.max_batch_size if policy is PolicyName.STATIC else 2
        asking = [server.ask(run(f"{number}", x_api_key=key)) for number in range(size)]
        responses = await asyncio.gather(*asking)
        statuses = {response.status for response in responses}
        assert statuses <= {200, 529}
        assert 200 in statuses
        assert all(
            response.json["output"] == f"{number}" for number, response in enumerate(responses) if response.status == 200
        )


async def test_configured_keys_are_the_only_keys() -> None:
    def key(tenant: str, tier: str, secret: bytes) -> KeyConfig:
        return KeyConfig(tenant, tier, hashlib.sha256(secret).hexdigest())

    settings = quick(keys=(key("ada", "paid", b"sk-ada"), key("bob", "free", b"sk-\xc3\xbc"), key("eve", "free", b"x" * 256)))
    async with serving(settings) as server, connected(server.port) as client:
        for secret, status in {
            "sk-ada": 200,
            "sk-\u00c3\u00bc": 200,  # The bytes of the header are what was hashed.
            "x" * 256: 200,
            "x" * 257: 401,
            "dev-paid": 401,
            "dev-free": 401,
            "sk-ad": 401,
            "SK-ADA": 401,
            "": 401,
            hashlib.sha256(b"sk-ada").hexdigest(): 401,
        }.items():
            response = await client.ask(request(body=b'{"input": "hello"}', headers={"x-api-key": secret}))
            assert response.status == status, secret
        outcomes = {name: sum(meters.outcomes.values()) for name, meters in server.service.meters.tiers.items()}
        assert outcomes == {"paid": 1, "free": 2}
