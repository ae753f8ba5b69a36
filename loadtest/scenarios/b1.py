"""B1: the promise of SPEC S1.2, on 16, 9 and 8 simulated GPUs."""

from batcher.sim.workload import Poisson
from loadtest.scenarios.bench import Bench, Figure, Scenario, serve_arguments, to_ms
from loadtest.scenarios.server import serving

PARTS = ((16, 2000.0), (9, 2000.0), (8, 1960.0))
"""GPUs, and requests per second: twice the floor, one above it, and the floor at load 0.98."""


def measure(bench: Bench) -> list[Figure]:
    figures = []
    for num_workers, rate in PARTS:
        with serving(serve_arguments(num_workers=num_workers)) as server:
            report = bench.run(f"{num_workers} GPUs, {rate:,.0f} a second", server.url, Poisson(rate)).report
        name = f"{num_workers} GPUs:"
        p95_ms, p99_ms = to_ms(report.latency_s.p95), to_ms(report.latency_s.p99)
        if num_workers == 8:
            good = report.goodput_rate / report.offered_rate * 100.0
            figures += [
                Figure(name=f"{name} good within 500 ms", value=good, unit="%", at_least=99.0),
                Figure(name=f"{name} p95", value=p95_ms, unit="ms"),
            ]
            continue
        not_ok = report.sent - report.outcomes["ok"]
        figures += [
            Figure(name=f"{name} errors and refusals", value=not_ok, at_most=0),
            Figure(name=f"{name} p95", value=p95_ms, unit="ms", at_most=222.0 if num_workers == 16 else 240.0),
            Figure(name=f"{name} p99", value=p99_ms, unit="ms", at_most=240.0 if num_workers == 16 else None),
        ]
    return figures


SCENARIO = Scenario("b1", "2,000 requests a second on 16, 9 and 8 simulated GPUs", 60.0, measure)
