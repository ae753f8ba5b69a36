"""`batcher simulate`, as it is typed."""

import typer
from typer.testing import CliRunner

from batcher.sim.command import simulate

APP = typer.Typer()
APP.command()(simulate)


def told(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(APP, arguments)
    assert result.exit_code == exit_code, result.output
    return result.output


def test_one_policy_tells_latency_batches_workers_and_endings() -> None:
    text = told("--rate", "500", "--duration", "2", "--workers", "4", "--seed", "5")
    assert text.startswith("seed 5: poisson 500/s for 2 s on 4 workers")
    assert all(word in text for word in ("p50", "p95", "p99", "paid", "free", "mean batch", "busy", "pace"))


def test_compare_has_a_line_for_each_policy_on_the_same_traffic() -> None:
    lines = told("--compare", "--rate", "200", "--duration", "2", "--workers", "2").splitlines()
    rows = [line.split() for line in lines[2:6]]
    assert [row[0] for row in rows] == ["paced", "size-or-timeout", "static", "single"]
    assert len({row[1] for row in rows}) == 1


def test_faults_are_told() -> None:
    text = told("--faults", "5", "--rate", "300", "--duration", "5", "--workers", "4")
    assert "workers given up" in text


def test_the_same_seed_tells_the_same() -> None:
    arguments = ("--faults", "3", "--rate", "300", "--duration", "3", "--service-time", "lognormal:0.2,0.3")
    assert told(*arguments) == told(*arguments) != told(*arguments, "--seed", "2")


def test_steps_bring_their_own_rate() -> None:
    assert "steps:100x1,300x1" in told("--arrivals", "steps:100x1,300x1", "--duration", "2")


def test_what_cannot_work_is_refused_with_its_name() -> None:
    assert "workers" in told("--workers", "0", exit_code=2)
    assert "service time" in told("--service-time", "fast", exit_code=2)
    assert "arrivals" in told("--arrivals", "never", exit_code=2)


def test_a_swarm_says_how_many_laws_were_broken() -> None:
    text = told("--swarm", "5", "--first-seed", "0", "--processes", "1")
    assert text.startswith("seeds 0 to 4\n")
    assert text.endswith("5 worlds, 0 of them broke a law\n")


def test_a_verbose_swarm_tells_the_world_and_its_events() -> None:
    text = told("--swarm", "1", "--first-seed", "3", "-v")
    assert "Scenario(seed=3" in text
    assert "RunBatch(" in text
