"""B5: a trickle is answered at once, and one key's flood is its own trouble alone."""

from batcher.sim.workload import Mix, Poisson, Sender
from loadtest.report import Tally, tally_senders
from loadtest.samples import REJECTIONS
from loadtest.scenarios.bench import Bench, Figure, Measured, Scenario, serve_arguments, to_ms
from loadtest.scenarios.server import serving
from loadtest.stats import quantiles

TRICKLE_WORKERS, TRICKLE_RATE = 8, 20.0
SHARED_WORKERS = 9
QUIET_RATE, FLOOD_RATE = 5.0, 3000.0
QUIET = tuple(Sender(f"dev-paid-{number}", "paid", QUIET_RATE) for number in range(1, 21))
FLOOD = Sender("dev-paid-flood", "paid", FLOOD_RATE)


def measure(bench: Bench) -> list[Figure]:
    with serving(serve_arguments(num_workers=TRICKLE_WORKERS)) as server:
        trickle = bench.run("20 a second on 8 GPUs", server.url, Poisson(TRICKLE_RATE)).report
    alone_mix, together_mix = Mix(QUIET), Mix((*QUIET, FLOOD))
    with serving(serve_arguments(num_workers=SHARED_WORKERS)) as server:
        alone = bench.run("twenty keys alone", server.url, Poisson(alone_mix.total), mix=alone_mix)
        together = bench.run("twenty keys and a flood", server.url, Poisson(together_mix.total), mix=together_mix)
    quiet_alone, _ = _split(alone)
    quiet, flood = _split(together)
    p95_alone, p95_together = quantiles(quiet_alone.latencies_s).p95, quantiles(quiet.latencies_s).p95
    ratio = p95_together / p95_alone if p95_together is not None and p95_alone else None
    return [
        Figure(name="20/s on 8 GPUs: p95", value=to_ms(trickle.latency_s.p95), unit="ms", at_most=210.0),
        Figure(name="twenty keys alone: p95", value=to_ms(p95_alone), unit="ms"),
        Figure(name="twenty keys beside the flood: p95", value=to_ms(p95_together), unit="ms"),
        Figure(name="ratio of the two", value=ratio, unit="times", at_most=1.15),
        Figure(
            name="twenty keys beside the flood: not answered well", value=quiet.num_sent - len(quiet.latencies_s), at_most=0
        ),
        Figure(name="flood: answered", value=len(flood.latencies_s) / together.report.measured_s, unit="1/s"),
        Figure(name="flood: refused", value=_refused_share(flood), unit="%", at_least=1.0),
    ]


def _split(measured: Measured) -> tuple[Tally, Tally]:
    """The twenty keys together, and the flood."""
    quiet, flood = Tally(), Tally()
    for sender, tally in zip(measured.samples.senders, tally_senders(measured.samples), strict=True):
        (flood if sender.key == FLOOD.key else quiet).add(tally)
    return quiet, flood


def _refused_share(tally: Tally) -> float:
    return sum(tally.endings[ending] for ending in REJECTIONS) / max(tally.num_sent, 1) * 100.0


SCENARIO = Scenario("b5", "a trickle on 8 GPUs; twenty paid keys beside a flood on 9", 20.0, measure)
