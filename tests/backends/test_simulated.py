"""The simulated GPU: its time, its faults, and that a seed repeats them (SPEC S1.1)."""

import asyncio
from typing import Any

import pytest

import backends
from backends.base import WorkerBackend, WorkerLost
from backends.simulated import SimulatedBackend, SimulatedSettings
from batcher.errors import ConfigError
from tests.backends.hosting import START_TIMEOUT_S


def simulated(*, index: int = 0, start: int = 0, **settings: Any) -> SimulatedBackend:
    return SimulatedBackend(SimulatedSettings(**{"service_time_s": 0.0, **settings}), index=index, start=start)


async def endings(backend: WorkerBackend, num_calls: int) -> list[str]:
    """How each of a row of calls ended."""
    found = []
    for _ in range(num_calls):
        try:
            await backend.run_batch(["x"])
            found.append("answer")
        except Exception as error:
            found.append(type(error).__name__)
    return found


@pytest.mark.anyio
@pytest.mark.parametrize("num_inputs", [1, 50])
async def test_takes_the_service_time_whatever_the_size(num_inputs: int) -> None:
    loop = asyncio.get_running_loop()
    backend = simulated(service_time_s=0.03)
    started_at = loop.time()
    await backend.run_batch(["x"] * num_inputs)
    assert loop.time() - started_at >= 0.029
    assert backend.last_run_s == 0.03


def test_jitter_varies_the_time_within_its_bounds_and_a_seed_repeats_it() -> None:
    def times(seed: int, index: int = 0, start: int = 0) -> list[float]:
        backend = simulated(service_time_s=0.001, jitter=0.5, seed=seed, index=index, start=start)
        return [backend._draw()[0] for _ in range(200)]

    drawn = times(1)
    assert drawn == times(1)
    assert 0.0005 <= min(drawn) < 0.0006
    assert 0.0014 < max(drawn) <= 0.0015
    assert len({tuple(times(*which)) for which in ((1,), (2,), (1, 1), (1, 0, 1))}) == 4


def test_faults_come_at_their_rates_and_a_seed_repeats_them() -> None:
    async def run(seed: int) -> list[str]:
        return await endings(simulated(raise_rate=0.3, seed=seed), 300)

    first, again, other = (asyncio.run(run(seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert 60 < first.count("RuntimeError") < 120
    assert first.count("RuntimeError") + first.count("answer") == 300


def test_one_setting_does_not_shift_what_another_draws() -> None:
    async def run(jitter: float) -> list[str]:
        return await endings(simulated(service_time_s=0.0001, raise_rate=0.3, jitter=jitter), 50)

    assert asyncio.run(run(0.0)) == asyncio.run(run(0.5))


@pytest.mark.anyio
async def test_poison_raises_and_names_no_input() -> None:
    backend = simulated(poison_prefix="BOOM")
    with pytest.raises(ValueError, match="cannot take") as raised:
        await backend.run_batch(["good", "BOOM secret"])
    assert "secret" not in str(raised.value)
    assert await backend.run_batch(["good", "not BOOM"]) == ["good", "not BOOM"]


@pytest.mark.anyio
async def test_a_hung_call_ends_only_by_close() -> None:
    backend = simulated(hang_rate=1.0)
    call = asyncio.ensure_future(backend.run_batch(["x"]))
    done, _ = await asyncio.wait({call}, timeout=0.02)
    assert not done
    await backend.close()
    with pytest.raises(WorkerLost):
        await call


@pytest.mark.anyio
async def test_death_is_final_and_noticed() -> None:
    backend = simulated(die_rate=1.0)
    watch = asyncio.ensure_future(backend.wait_lost())
    assert await endings(backend, 2) == ["WorkerLost", "WorkerLost"]
    assert "died" in str(await watch)


@pytest.mark.anyio
async def test_what_is_raised_is_not_the_reason_that_is_kept() -> None:
    """A raised exception collects tracebacks, and through them the batch, for as long as the reason lives."""
    backend = simulated(die_rate=1.0)
    with pytest.raises(WorkerLost, match="died") as raised:
        await backend.run_batch(["x"])
    reason = await backend.wait_lost()
    assert reason is not raised.value
    assert reason.__traceback__ is None


def test_a_restarted_worker_does_not_repeat_its_death() -> None:
    """With one stream of chances per worker, a seed whose first draw is a death would kill every life at its first call."""
    make = backends.create("simulated", settings={"service_time_s": 0.0, "die_rate": 0.5}, start_timeout_s=START_TIMEOUT_S)

    async def first_calls() -> list[str]:
        return [(await endings(make(0), 1))[0] for _ in range(20)]

    assert set(asyncio.run(first_calls())) == {"answer", "WorkerLost"}


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"service_time_s": -0.1}, "service_time_s"),
        ({"service_time_s": float("nan")}, "service_time_s"),
        ({"service_time_s": float("inf")}, "service_time_s"),
        ({"service_time_s": True}, "service_time_s"),
        ({"service_time_s": "fast"}, "service_time_s"),
        ({"jitter": 1.5}, "jitter"),
        ({"raise_rate": -1}, "raise_rate"),
        ({"hang_rate": 2}, "hang_rate"),
        ({"die_rate": 1.01}, "die_rate"),
        ({"raise_rate": 0.5, "hang_rate": 0.4, "die_rate": 0.3}, "at most 1"),
        ({"poison_prefix": ""}, "poison_prefix"),
        ({"seed": 0.5}, "seed"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_birth(settings: dict[str, Any], names: str) -> None:
    with pytest.raises(ConfigError, match=names):
        SimulatedSettings(**settings)
    with pytest.raises(ConfigError, match=names):
        backends.create("simulated", settings=settings, start_timeout_s=START_TIMEOUT_S)
