"""B2: what a request costs the server in CPU, beside a bare Starlette app; its overhead; and the most it can hold.

The two servers run at the same time and are loaded in turns, so that both meet the same mood of the machine; an idle server
costs next to nothing. CPU is the whole process tree's. The figures are medians of the rounds.
"""

import statistics

from batcher.sim.workload import Poisson
from loadtest.console import print_knee, print_step
from loadtest.scenarios.bench import Bench, Figure, Scenario, serve_arguments, to_ms
from loadtest.scenarios.prometheus import histogram_quantile, part_within, read_histogram
from loadtest.scenarios.server import Server, serving
from loadtest.sweep import Knee, Search, Slo, sweep
from loadtest.target import Check

RATE = 2000.0
NUM_ROUNDS = 9
"""Of seconds each: the machine changes its mood within the minute, and the two are compared within it."""
SWEEP_STEP_S = 5.0
OVERHEAD = "batcher_overhead_seconds"
OVERHEAD_LIMIT_S = 0.010
"""An edge of the histogram's buckets, so the part within it is exact where a p99 read off the buckets is not."""


def measure(bench: Bench) -> list[Figure]:
    bare_us, batcher_us = [], []
    bare_server = serving(["--port", "0"], module="loadtest.scenarios.bare")
    with serving(serve_arguments(num_workers=16)) as server, bare_server as bare:
        for turn in range(1, NUM_ROUNDS + 1):
            batcher_us.append(_cpu_us(bench, f"batcher, round {turn}", server, Check.ECHO))
            bare_us.append(_cpu_us(bench, f"bare Starlette, round {turn}", bare, Check.NONE))
        overhead = read_histogram(server.read("/metrics"), OVERHEAD)
    with serving(serve_arguments(num_workers=64)) as server:
        knee = _find_knee(bench, server)
    within = part_within(overhead, OVERHEAD_LIMIT_S)
    return [
        Figure(name="batcher, CPU a request", value=statistics.median(batcher_us), unit="µs"),
        Figure(name="bare Starlette, CPU a request", value=statistics.median(bare_us), unit="µs"),
        Figure(
            name="ratio",
            value=statistics.median(ours / floor for ours, floor in zip(batcher_us, bare_us, strict=True)),
            unit="times",
            at_most=1.25,
        ),
        Figure(
            name=f"overhead within {OVERHEAD_LIMIT_S * 1e3:g} ms",
            value=None if within is None else within * 100.0,
            unit="%",
            at_least=99.0,
        ),
        Figure(name="overhead p99, upper edge of its bucket", value=to_ms(histogram_quantile(overhead, 0.99)), unit="ms"),
        Figure(name="highest rate with p95 < 500 ms, 64 GPUs", value=knee.rate, unit="1/s", at_least=5000.0),
    ]


def _cpu_us(bench: Bench, name: str, server: Server, check: Check) -> float:
    before = server.usage()
    measured = bench.run(name, server.url, Poisson(RATE), duration_s=bench.duration_s / (2 * NUM_ROUNDS), check=check)
    return (server.usage().cpu_s - before.cpu_s) / max(measured.report.sent, 1) * 1e6


def _find_knee(bench: Bench, server: Server) -> Knee:
    bench.say("\n[bold]highest rate on 64 GPUs[/bold]")
    knee = sweep(
        lambda rate: bench.measure_quietly(server.url, Poisson(rate), duration_s=SWEEP_STEP_S),
        Search(start_rate=2000.0, max_rate=12_800.0, precision=0.05),
        Slo(0.5),
        settle_s=1.0,
        on_step=lambda step: print_step(bench.console, step),
    )
    print_knee(bench.console, knee)
    return knee


SCENARIO = Scenario("b2", "CPU a request beside bare Starlette; overhead; the highest rate", 60.0, measure)
