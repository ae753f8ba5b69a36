"""The front door's scenario: the settings that it writes are what it says, and what it counts are the refusals it means."""

from array import array
from pathlib import Path

from rich.console import Console

from batcher.config import RateLimit
from batcher.service.auth import Keyring
from batcher.settings.sources import load_settings
from batcher.sim.workload import Constant, Mix
from loadtest.samples import Ending, blank_samples
from loadtest.scenarios import f3
from loadtest.scenarios.bench import Bench, serve_arguments
from loadtest.scenarios.server import serving
from loadtest.target import run_target

KEYS = f3.senders(paid=2000.0, free=10_000.0, num_free_keys=4)


def write(folder: Path, settings: str) -> Path:
    (folder / "rules.toml").write_text(f3.RULES)
    file = folder / "settings.toml"
    file.write_text(settings)
    return file


def test_the_whole_front_door_has_every_stage_on(tmp_path: Path) -> None:
    settings = load_settings(file=write(tmp_path, f3.whole(tmp_path, KEYS, free_limit=600)))
    assert settings.safety().is_on
    assert settings.usage().directory == tmp_path / "usage"
    assert settings.request_log == "on"
    callers = [Keyring(settings.keys, settings.tiers).find(sender.key.encode()) for sender in KEYS]
    assert [caller.tier for caller in callers] == ["paid", "free", "free", "free", "free"]
    assert callers[0].limit == RateLimit(f3.FAR, f3.FAR)
    assert callers[1].limit == RateLimit(600, f3.FAR)
    assert all(tier.total_limit == RateLimit(f3.FAR, f3.FAR) for tier in settings.tiers)


def test_the_plain_one_has_none(tmp_path: Path) -> None:
    settings = load_settings(file=write(tmp_path, f3.PLAIN))
    assert not settings.safety().is_on
    assert settings.usage().directory is None
    assert settings.request_log == "off"
    assert not settings.has_keys
    assert all(tier.key_limit.is_unlimited and tier.total_limit.is_unlimited for tier in settings.tiers_in_force)


def test_keys_ask_at_the_rates_given() -> None:
    assert [sender.weight for sender in KEYS] == [2000.0, 2500.0, 2500.0, 2500.0, 2500.0]


def test_refusals_are_told_by_tier_and_from_when_on() -> None:
    samples = blank_samples(KEYS, array("d", [0.0, 1.0, 2.0, 3.0, 4.0]), array("H", [1, 1, 0, 2, 1]), bytearray(5))
    for row, ending in enumerate(
        (Ending.REJECTED_RATE, Ending.REJECTED_RATE, Ending.REJECTED_RATE, Ending.OK, Ending.REJECTED_CAPACITY)
    ):
        samples.ending[row] = ending
        samples.ended_at[row] = samples.planned_at[row] + 0.25 * (row + 1)
    assert f3.refusal_latencies(samples, from_s=1.0, tier="free") == [0.5, 1.25]
    assert f3.refusal_latencies(samples, from_s=0.0, tier="paid") == [0.75]


def test_both_routes_are_asked_and_their_answers_checked(tmp_path: Path) -> None:
    bench = Bench(Console(record=True), duration_s=0.2, seed=1, out=None)
    file = write(tmp_path, f3.whole(tmp_path, KEYS))
    with serving(serve_arguments(num_workers=2, extra=["--config", str(file)])) as server:
        for target in (run_target(server.url), f3.messages_target(server.url)):
            measured = bench.run("whole", server.url, Constant(50.0), target=target, mix=Mix(KEYS))
            assert measured.report.outcomes == {"ok": 10}
    lines = [line for segment in (tmp_path / "usage").iterdir() for line in segment.read_text().splitlines()]
    assert len(lines) == 20
