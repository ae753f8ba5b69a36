"""What scenarios are made of: figures, process trees, metrics pages, and servers that start and stop."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from batcher.sim.workload import Constant
from loadtest.scenarios.bench import Bench, Figure, Scenario, print_figures, serve_arguments
from loadtest.scenarios.proctree import descendants, kill_survivors, leaves, tree_usage
from loadtest.scenarios.prometheus import histogram_quantile, part_within, read_histogram
from loadtest.scenarios.server import ServerFailed, serving
from loadtest.target import Check
from tests.loadtest.standin import standing_in

FAMILY = """
import subprocess, sys, time
child = "import time; print('ready', flush=True); time.sleep(60)"
children = [subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE) for _ in range(2)]
for each in children:
    each.stdout.readline()
print("ready", flush=True)
time.sleep(60)
"""

PAGE = """
# HELP batcher_overhead_seconds Neither in a batch nor waiting for one.
# TYPE batcher_overhead_seconds histogram
batcher_overhead_seconds_bucket{le="0.001"} 50.0
batcher_overhead_seconds_bucket{le="0.01",tier="paid"} 40.0
batcher_overhead_seconds_bucket{tier="free",le="0.01"} 55.0
batcher_overhead_seconds_bucket{le="+Inf"} 100.0
batcher_overhead_seconds_sum 3.0
batcher_overhead_seconds_count 100.0
other_seconds_bucket{le="0.001"} 7.0
"""


@pytest.mark.parametrize(
    ("figure", "is_met"),
    [
        (Figure(name="a", value=1.0), None),
        (Figure(name="a", value=None), None),
        (Figure(name="a", value=1.0, at_most=1.0), True),
        (Figure(name="a", value=1.1, at_most=1.0), False),
        (Figure(name="a", value=1.0, at_least=1.0), True),
        (Figure(name="a", value=0.9, at_least=1.0), False),
        (Figure(name="a", value=None, at_most=1.0), False),
    ],
)
def test_a_figure_is_held_against_its_bar(figure: Figure, is_met: bool | None) -> None:
    assert figure.is_met is is_met


def test_figures_are_printed_with_their_bars() -> None:
    console = Console(record=True, width=120)
    scenario = Scenario("b0", "nothing at all", 1.0, lambda bench: [])
    figures = [
        Figure(name="p95", value=230.0, unit="ms", at_most=222.0),
        Figure(name="good", value=99.5, unit="%", at_least=99.0),
        Figure(name="refusals", value=None),
    ]
    print_figures(console, scenario, figures, ["first run: late"])
    printed = console.export_text()
    assert "MISSED" in printed
    assert "≤ 222" in printed
    assert "met" in printed
    assert "INVALID  first run: late" in printed


def test_a_process_tree_is_charged_whole_and_killed_whole() -> None:
    root = subprocess.Popen([sys.executable, "-c", FAMILY], stdout=subprocess.PIPE)
    try:
        assert root.stdout is not None
        assert root.stdout.readline() == b"ready\n"
        usage = tree_usage(root.pid)
        assert usage.num_processes == 3
        assert usage.rss_bytes > tree_usage(leaves(root.pid)[0]).rss_bytes * 2
        below = descendants(root.pid)
        assert sorted(pid for pid, _ in below) == leaves(root.pid)
        kill_survivors([(pid, started + 1) for pid, started in below])
        assert tree_usage(root.pid).num_processes == 3
        kill_survivors(below)
        wait_until_gone([pid for pid, _ in below])
    finally:
        root.kill()
        root.communicate()
    assert tree_usage(root.pid).num_processes == 0


def wait_until_gone(pids: list[int]) -> None:
    deadline_at = time.monotonic() + 10.0
    while any(tree_usage(pid).num_processes for pid in pids):
        assert time.monotonic() < deadline_at
        time.sleep(0.01)


def test_a_histogram_is_read_and_summed_over_its_labels() -> None:
    buckets = read_histogram(PAGE, "batcher_overhead_seconds")
    assert buckets == {0.001: 50.0, 0.01: 95.0, float("inf"): 100.0}
    assert histogram_quantile(buckets, 0.5) == 0.001
    assert histogram_quantile(buckets, 0.95) == 0.01
    assert histogram_quantile(buckets, 0.99) is None
    assert part_within(buckets, 0.01) == 0.95


def test_a_page_without_the_histogram_measures_nothing() -> None:
    buckets = read_histogram(PAGE, "batcher_other_seconds")
    assert buckets == {}
    assert histogram_quantile(buckets, 0.5) is None
    assert part_within(buckets, 0.01) is None


def test_a_server_is_started_loaded_and_stopped(tmp_path: Path) -> None:
    console = Console(record=True, width=120)
    bench = Bench(console, duration_s=0.3, seed=1, out=tmp_path)
    with serving(["--port", "0"], module="loadtest.scenarios.bare") as server:
        measured = bench.run("bare, round 1", server.url, Constant(100.0), check=Check.NONE)
        assert server.usage().cpu_s > 0.0
        assert server.usage().num_processes == 1
    assert tree_usage(server.pid).num_processes == 0
    assert measured.report.outcomes == {"ok": 30}
    assert (tmp_path / "bare--round-1" / "report.json").exists()
    assert bool(bench.doubts) is not measured.report.is_valid


def test_a_quiet_measurement_keeps_nothing(tmp_path: Path) -> None:
    bench = Bench(Console(record=True), duration_s=0.3, seed=1, out=tmp_path)
    with standing_in() as server:
        assert bench.measure_quietly(server.url, Constant(100.0), duration_s=0.2).outcomes == {"ok": 20}
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_start_is_told_with_its_log() -> None:
    with pytest.raises(ServerFailed, match="did not say where it listens") as caught, serving(["--colour"], module="this"):
        pass
    assert "status 0" in str(caught.value)


def test_a_server_is_stopped_when_the_block_breaks() -> None:
    pids: list[int] = []

    def break_off() -> None:
        with serving([], module="loadtest.scenarios.bare") as server:
            pids.append(server.pid)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        break_off()
    assert tree_usage(pids[0]).num_processes == 0


def test_the_servers_command_line() -> None:
    arguments = serve_arguments(num_workers=9, isolation="process", extra=["--simulated-poison", "BOOM"])
    assert arguments[0] == "serve"
    assert arguments[arguments.index("--workers") + 1] == "9"
    assert arguments[-2:] == ["--simulated-poison", "BOOM"]
