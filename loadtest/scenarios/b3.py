"""B3: twice the capacity. Free is refused, quickly; paid flows; and when the load falls back, so does latency."""

from batcher.sim.workload import Steps
from loadtest.samples import REJECTIONS, Ending, Samples
from loadtest.scenarios.bench import Bench, Figure, Scenario, serve_arguments, to_ms
from loadtest.scenarios.proctree import Usage
from loadtest.scenarios.server import serving
from loadtest.stats import latencies, quantiles, recovery_s

NUM_WORKERS, CAPACITY_RATE = 8, 2000.0
CALM_RATE, FLOOD_RATE = 1000.0, 4000.0
CALM_S = 6.0
"""Seconds of calm before the flood, for a picture of what is normal, and after it."""
WINDOW_S = 0.25
NORMAL_FACTOR = 1.2
"""A span is normal when its p95 is within this much of the calm's before the flood."""
MAX_GROWTH_MIB = 16.0


def measure(bench: Bench) -> list[Figure]:
    flood_at, calm_at = CALM_S, CALM_S + bench.duration_s
    arrivals = Steps(((CALM_RATE, CALM_S), (FLOOD_RATE, bench.duration_s), (CALM_RATE, CALM_S)))
    usages: list[Usage] = []
    with serving(serve_arguments(num_workers=NUM_WORKERS)) as server:
        looks = [(at, lambda: usages.append(server.usage())) for at in (flood_at + bench.duration_s / 4, calm_at - 0.2)]
        measured = bench.run("flood on 8 GPUs", server.url, arrivals, duration_s=calm_at + CALM_S, actions=looks)
    samples, slo_s = measured.samples, measured.report.slo_s
    assert slo_s is not None
    paid = quantiles(latencies(samples, from_s=flood_at, to_s=calm_at, tier="paid"))
    refusals = quantiles(_refusal_latencies(samples))
    growth_mib = (usages[1].rss_bytes - usages[0].rss_bytes) / 2**20 if len(usages) == 2 else None
    return [
        Figure(name="paid p95 in the flood", value=to_ms(paid.p95), unit="ms", at_most=500.0),
        Figure(name="paid refusals", value=_count_refusals(measured.report.tiers["paid"].outcomes), at_most=0),
        Figure(
            name="goodput in the flood, of 2,000/s",
            value=_goodput_rate(samples, flood_at + 1.0, calm_at, slo_s) / CAPACITY_RATE * 100.0,
            unit="%",
            at_least=97.0,
        ),
        Figure(name="refusals", value=refusals.count),
        Figure(name="refusal p95", value=to_ms(refusals.p95), unit="ms", at_most=25.0),
        Figure(name="errors", value=_count_errors(measured.report.outcomes), at_most=0),
        Figure(name="memory growth in the flood", value=growth_mib, unit="MiB", at_most=MAX_GROWTH_MIB),
        Figure(name="back to normal after", value=_recovery_s(samples, calm_at), unit="s", at_most=2.0),
    ]


def _refusal_latencies(samples: Samples) -> list[float]:
    rows = zip(samples.planned_at, samples.ended_at, samples.ending, strict=True)
    return [ended_at - planned_at for planned_at, ended_at, code in rows if code in REJECTIONS]


def _goodput_rate(samples: Samples, from_s: float, to_s: float, slo_s: float) -> float:
    """Good answers that arrived within the span, a second: what the server got done, whenever it was asked."""
    rows = zip(samples.planned_at, samples.ended_at, samples.ending, strict=True)
    num_good = sum(
        code == Ending.OK and from_s <= ended_at < to_s and ended_at - planned_at <= slo_s
        for planned_at, ended_at, code in rows
    )
    return num_good / (to_s - from_s)


def _recovery_s(samples: Samples, calm_at: float) -> float | None:
    normal_s = quantiles(latencies(samples, from_s=1.0, to_s=CALM_S - 0.5)).p95
    if normal_s is None:
        return None
    return recovery_s(
        samples,
        permille=950,
        limit_s=normal_s * NORMAL_FACTOR,
        since_s=calm_at,
        until_s=calm_at + CALM_S,
        width_s=WINDOW_S,
    )


def _count_refusals(outcomes: dict[str, int]) -> int:
    return sum(num for name, num in outcomes.items() if name.startswith("rejected"))


def _count_errors(outcomes: dict[str, int]) -> int:
    return sum(num for name, num in outcomes.items() if name != "ok" and not name.startswith("rejected"))


SCENARIO = Scenario("b3", "4,000 requests a second on 8 GPUs, then 1,000", 30.0, measure)
