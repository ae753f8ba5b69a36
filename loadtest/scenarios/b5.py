"""B5: a trickle is answered at once, and one key's flood is its own trouble alone.

The twenty quiet keys never pause: the flood joins them halfway, from a load test of its own, so that both halves are one
run against one server and the quiet keys' client is not the flood's.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from batcher.sim.workload import Mix, Poisson, Sender
from loadtest.files import load_run
from loadtest.report import Report
from loadtest.samples import Ending, Samples
from loadtest.scenarios.bench import Bench, Figure, Scenario, serve_arguments, to_ms
from loadtest.scenarios.server import serving
from loadtest.stats import latencies, quantiles

TRICKLE_WORKERS, TRICKLE_RATE = 8, 20.0
TRICKLE_LENGTH = 3.0
"""Times the duration of the others: 20/s are few, and a p95 of 400 requests varies by 5 ms from chance alone."""
SHARED_WORKERS = 9
QUIET_RATE, FLOOD_RATE = 5.0, 3000.0
QUIET = tuple(Sender(f"dev-paid-{number}", "paid", QUIET_RATE) for number in range(1, 21))
FLOOD_KEY = "dev-paid-flood"
JOIN_S = 3.0
"""What the flood's own process takes to start, and more: what lies between the halves counts for neither."""
MAX_OVERTIME_S = 60.0
"""The flood ends by itself; this is for one that does not."""


def measure(bench: Bench) -> list[Figure]:
    with serving(serve_arguments(num_workers=TRICKLE_WORKERS)) as server:
        trickle_s = TRICKLE_LENGTH * bench.duration_s
        trickle = bench.run("20 a second on 8 GPUs", server.url, Poisson(TRICKLE_RATE), duration_s=trickle_s).report
    half_s = bench.duration_s
    mix = Mix(QUIET)
    with serving(serve_arguments(num_workers=SHARED_WORKERS)) as server, tempfile.TemporaryDirectory() as folder:
        floods: list[subprocess.Popen[bytes]] = []
        try:
            quiet = bench.run(
                "twenty keys, joined by a flood halfway",
                server.url,
                Poisson(mix.total),
                mix=mix,
                duration_s=2.0 * half_s + JOIN_S,
                actions=[(half_s, lambda: floods.append(_start_flood(server.url, half_s + JOIN_S, folder)))],
            ).samples
            floods[0].wait(MAX_OVERTIME_S)
        finally:
            for process in floods:
                process.kill()
        flood, _ = load_run(Path(folder))
    bench.doubts += [f"the flood: {reason}" for reason in flood.reasons]
    return [
        Figure(name="20/s on 8 GPUs: p95", value=to_ms(trickle.latency_s.p95), unit="ms", at_most=210.0),
        *_compare(quiet, half_s),
        Figure(name="flood: answered", value=flood.throughput_rate, unit="1/s"),
        Figure(name="flood: refused", value=_refused_share(flood), unit="%", at_least=1.0),
    ]


def _start_flood(url: str, duration_s: float, folder: str) -> subprocess.Popen[bytes]:
    arguments = ["--key", f"{FLOOD_KEY}:paid:{FLOOD_RATE}", "--duration", str(duration_s), "--out", folder]
    return subprocess.Popen(
        [sys.executable, "-m", "loadtest", "run", url, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _compare(quiet: Samples, half_s: float) -> list[Figure]:
    """The twenty keys alone, from the first second on, and beside the flood."""
    alone = quantiles(latencies(quiet, from_s=1.0, to_s=half_s)).p95
    beside = quantiles(latencies(quiet, from_s=half_s + JOIN_S)).p95
    ratio = beside / alone if beside is not None and alone else None
    num_bad = sum(code not in (Ending.OK, Ending.UNSENT) for code in quiet.ending)
    return [
        Figure(name="twenty keys alone: p95", value=to_ms(alone), unit="ms"),
        Figure(name="twenty keys beside the flood: p95", value=to_ms(beside), unit="ms"),
        Figure(name="ratio of the two", value=ratio, unit="times", at_most=1.15),
        Figure(name="twenty keys: refused, failed or lost", value=num_bad, at_most=0),
    ]


def _refused_share(flood: Report) -> float:
    return sum(num for name, num in flood.outcomes.items() if name.startswith("rejected")) / max(flood.sent, 1) * 100.0


SCENARIO = Scenario("b5", "a trickle on 8 GPUs; twenty paid keys joined by a flood on 9", 20.0, measure)
