"""B4: workers that die, hang and choke, under 2,000 requests a second. No caller may notice, but those who sent poison."""

import os
import signal

from batcher.sim.workload import Poisson
from loadtest.report import Report
from loadtest.samples import Samples
from loadtest.scenarios.bench import Bench, Figure, Scenario, serve_arguments
from loadtest.scenarios.proctree import leaves
from loadtest.scenarios.server import serving
from loadtest.stats import latencies, quantiles, recovery_s

NUM_WORKERS, RATE = 10, 2000.0
POISON_PREFIX = "BOOM"
POISON_SHARE = 0.0005
"""One a second: each makes its batch be split, which delays the fifty that share it."""
KILL_PART, STOP_PART, POISON_PARTS = 0.25, 0.5, (0.7, 0.8)
"""Of the duration: when the faults come. Each has a quarter or a fifth to itself, so that each recovery is seen alone."""
WINDOW_S = 0.5
NORMAL_FACTOR = 1.2
"""A span is normal when its p99 is within this much of the p99 before the first fault."""


def measure(bench: Bench) -> list[Figure]:
    duration_s = bench.duration_s
    kill_at, stop_at = duration_s * KILL_PART, duration_s * STOP_PART
    poison_from_s, poison_to_s = (duration_s * part for part in POISON_PARTS)
    arguments = serve_arguments(num_workers=NUM_WORKERS, isolation="process", extra=["--simulated-poison", POISON_PREFIX])
    struck: list[int] = []

    with serving(arguments) as server:

        def strike(number: signal.Signals) -> None:
            victim = next(pid for pid in leaves(server.pid) if pid not in struck)
            struck.append(victim)
            os.kill(victim, number)

        measured = bench.run(
            "faults on 10 process workers",
            server.url,
            Poisson(RATE),
            poison_share=POISON_SHARE,
            poison_from_s=poison_from_s,
            poison_to_s=poison_to_s,
            actions=[(kill_at, lambda: strike(signal.SIGKILL)), (stop_at, lambda: strike(signal.SIGSTOP))],
        )
    spans = (("kill -9", kill_at, stop_at), ("kill -STOP", stop_at, poison_from_s), ("poison", poison_to_s, duration_s))
    return [
        Figure(name="workers struck", value=len(struck), at_least=2),
        *_count_wrongs(measured.report),
        *(
            Figure(
                name=f"p99 back to normal after {fault}",
                value=_recovery_s(measured.samples, kill_at, from_s, to_s),
                unit="s",
                at_most=3.0,
            )
            for fault, from_s, to_s in spans
        ),
    ]


def _count_wrongs(report: Report) -> list[Figure]:
    outcomes, poison = report.outcomes, report.poison
    assert poison is not None
    lost = sum(outcomes.get(name, 0) for name in ("timeout", "transport", "unfinished"))
    errors = sum(outcomes.get(name, 0) for name in ("failed", "expired", "client_error"))
    refused = {tier: block.outcomes.get("rejected_capacity", 0) for tier, block in report.tiers.items()}
    return [
        Figure(name="requests lost", value=lost, at_most=0),
        Figure(name="answered twice", value=report.duplicated, at_most=0),
        Figure(name="answered with another's answer", value=report.mismatched, at_most=0),
        Figure(name="errors of inputs that are no poison", value=errors, at_most=0),
        Figure(name="paid refusals", value=refused["paid"], at_most=0),
        # Two searches for poison at once take a third of the fleet for half a second; free gives way, as it must.
        Figure(name="free refusals", value=refused["free"]),
        Figure(name="poison inputs sent", value=poison.sent, at_least=1),
        Figure(name="poison inputs without their error", value=poison.sent - poison.failed, at_most=0),
    ]


def _recovery_s(samples: Samples, first_fault_at: float, from_s: float, to_s: float) -> float | None:
    normal_s = quantiles(latencies(samples, from_s=min(1.0, first_fault_at / 2), to_s=first_fault_at - WINDOW_S)).p99
    if normal_s is None:
        return None
    return recovery_s(samples, permille=990, limit_s=normal_s * NORMAL_FACTOR, since_s=from_s, until_s=to_s, width_s=WINDOW_S)


SCENARIO = Scenario("b4", "kill -9, kill -STOP and poison on 10 process workers at 2,000/s", 40.0, measure)
