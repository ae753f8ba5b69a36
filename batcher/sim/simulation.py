"""One measured simulation: settings in, a report out. No checkers, so that an hour of traffic takes seconds a minute."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from batcher.config import DEFAULT_TIERS, DispatchConfig, TierConfig
from batcher.core.admission.gate import Gate
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.sim.faults import FaultPlan, Faults
from batcher.sim.latency import Latency
from batcher.sim.loop import Loop
from batcher.sim.report import Recorder, Report
from batcher.sim.traffic import requests
from batcher.sim.workload import Arrivals, Mix, stream
from batcher.sim.world import World

_START_S = 0.0
"""Workers are ready at once: the measure is of a service that is up."""


def measure(
    config: DispatchConfig,
    *,
    arrivals: Arrivals,
    mix: Mix,
    latency: Latency,
    duration_s: float,
    seed: int,
    tiers: tuple[TierConfig, ...] = DEFAULT_TIERS,
    plan: FaultPlan | None = None,
    deadline_s: float = 10.0,
) -> Report:
    """Offers the traffic for `duration_s`, lets what was accepted end, and reports. The same arguments give the same report.

    With a plan its faults are on throughout. `seed` draws everything, each thing from a stream of its own, so the traffic is
    the same whatever else is compared.
    """
    loop = Loop()
    recorder = Recorder(tuple(tier.name for tier in tiers), duration_s=duration_s)
    faults = Faults(plan or FaultPlan(), stream(seed, "faults"))
    world = World(
        loop=loop,
        gate=Gate(tiers, secret=stream(seed, "shedding").randbytes(16)),
        dispatcher=Dispatcher(config, now=0.0),
        latency=latency,
        faults=faults,
        rng=stream(seed, "latency"),
        recorder=recorder,
        start_s=_START_S,
        start_timeout_s=config.start_timeout_s,
    )
    offered = requests(arrivals, mix, seed=seed, duration_s=duration_s, deadline_s=deadline_s)
    with _garbage_collection_off():
        world.run(faults.trouble(offered, service_time_s=config.service_time_s), until=duration_s)
    return recorder.report(num_workers=config.num_workers)


@contextmanager
def _garbage_collection_off() -> Iterator[None]:
    """The loop makes no reference cycles, and the collector would walk every waiting request again and again to learn that."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
