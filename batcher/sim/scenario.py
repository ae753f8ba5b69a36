"""A whole small world drawn from one seed: sizes, rates, tiers, policies, and what goes wrong.

Each fault and each limit is left out of half of the worlds: with all of them always on they hide one another ("swarm testing",
Groce and others, ISSTA 2012). A world has two phases: with faults nothing wrong happens, and after they stop everything
finishes and every worker answers again (tigerbeetle: src/vopr.zig).
"""

from collections.abc import Callable
from random import Random

import msgspec

from batcher.config import DispatchConfig, PolicyName, TierConfig
from batcher.core.admission.gate import Gate
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.sim.checkers import Checkers
from batcher.sim.faults import FaultPlan, Faults
from batcher.sim.latency import Fixed, Jitter, Latency, LogNormal
from batcher.sim.laws import AMPLE_RESERVE
from batcher.sim.loop import Loop
from batcher.sim.report import Recorder, Report
from batcher.sim.traffic import requests
from batcher.sim.workload import Arrivals, Burst, Constant, Mix, Poisson, Sender
from batcher.sim.world import World
from batcher.types import Request

_PROBE_ID = 1_000_000
"""Probes come after the faults; their ids are far from those of the traffic."""

_PATIENCE_S = 1e6
"""Of probes: they have no deadline that is ever reached."""


class Scenario(msgspec.Struct, frozen=True):
    """One world, as its seed drew it."""

    seed: int
    config: DispatchConfig
    tiers: tuple[TierConfig, ...]
    arrivals: Arrivals
    mix: Mix
    latency: Latency
    plan: FaultPlan
    num_requests: int
    duration_s: float
    deadline_s: float
    start_s: float
    drain_at: float | None
    has_random_ties: bool
    """Whether what is due at one instant happens in an order drawn, or always in the same."""

    @property
    def recovery_s(self) -> float:
        """By so long after the last fault every worker is back: hangs were noticed, rests are over."""
        config = self.config
        allowance_s = 1.0 + config.first_batch_timeout_s * (1.0 + config.hang_factor)
        return 2.0 * (allowance_s + config.start_timeout_s + config.breaker_rest_s + config.restart_backoff_s + self.start_s)

    def probes(self) -> list[Request]:
        """One for each worker, one after the other, long after the faults: all must be answered."""
        gap_s = self.config.service_time_s + self.config.batch_timeout_s
        first_at = self.duration_s + self.deadline_s + self.recovery_s
        instants = [first_at + num * gap_s for num in range(self.config.num_workers)]
        tier = self.config.tiers[0]
        return [Request(_PROBE_ID + i, "probe", tier, f"probe {i}", 1, at, at + _PATIENCE_S) for i, at in enumerate(instants)]

    @property
    def finishes_by(self) -> float:
        return self.probes()[-1].arrived_at + self.recovery_s


def draw(seed: int) -> Scenario:
    """The world of this seed."""
    rng = Random(seed)
    config = _draw_config(rng)
    capacity_rate = config.num_workers * config.max_batch_size / config.service_time_s
    num_requests = round(30.0 * 10.0 ** rng.random())
    # However large the capacity, the traffic lasts for some batches.
    rate = min(capacity_rate * rng.choice((0.1, 0.5, 0.8, 0.95, 1.1, 2.0)), num_requests / (4.0 * config.service_time_s))
    duration_s = num_requests / rate
    return Scenario(
        seed=seed,
        config=config,
        tiers=tuple(
            TierConfig(tier, wait_budget_s=config.service_time_s * rng.choice((0.5, 2.0, 100.0, 100.0)))
            for tier in config.tiers
        ),
        arrivals=_draw_arrivals(rng, rate, duration_s),
        mix=_draw_mix(rng, config.tiers),
        latency=rng.choice(
            (Fixed(config.service_time_s), Jitter(config.service_time_s, 0.5), LogNormal(config.service_time_s, 0.3))
        ),
        plan=_draw_plan(rng, config, duration_s),
        num_requests=num_requests,
        duration_s=duration_s,
        deadline_s=rng.choice((2.0, 5.0, 50.0)) * config.service_time_s,
        start_s=rng.choice((0.0, 0.1, 2.0)) * config.service_time_s,
        drain_at=rng.random() * duration_s if rng.random() < 0.1 else None,
        has_random_ties=rng.random() < 0.5,
    )


def run(
    scenario: Scenario, *, create: Callable[..., Dispatcher] = Dispatcher, tell: Callable[[str], None] | None = None
) -> Report:
    """Lives the world to its end, watched by the checkers. Raises LawBroken, or what the core raised, with the last events.

    `create` makes the dispatcher; tests give it broken ones to see that the checkers can fail. `tell` hears every event.
    """
    config = scenario.config
    rng = Random(scenario.seed)
    loop = Loop()
    dispatcher = create(config, now=0.0)
    checkers = Checkers(
        dispatcher, config, finishes_by=scenario.finishes_by, only_poison_raises=not scenario.plan.sick, tell=tell
    )
    recorder = Recorder(config.tiers, duration_s=scenario.duration_s)
    faults = Faults(scenario.plan, Random(rng.random()))
    gate = Gate(scenario.tiers, secret=rng.randbytes(16))
    world = World(
        loop=loop,
        gate=gate,
        dispatcher=dispatcher,
        latency=scenario.latency,
        faults=faults,
        rng=Random(rng.random()),
        recorder=recorder,
        start_s=scenario.start_s,
        start_timeout_s=config.start_timeout_s,
        watcher=checkers,
    )
    if scenario.drain_at is not None:
        loop.call_at(scenario.drain_at, world.drain)
    calm_at = scenario.duration_s
    loop.call_at(calm_at, world.calm, Fixed(config.service_time_s))
    probes = scenario.probes()
    for probe in probes:
        loop.call_at(probe.arrived_at, world.submit, probe)
        if config.policy is PolicyName.STATIC:
            # It would wait for company for ever; a drain sends what is there.
            loop.call_at(probe.arrived_at, world.drain)
    offered = requests(
        scenario.arrivals,
        scenario.mix,
        seed=rng.randrange(2**32),
        duration_s=scenario.duration_s,
        deadline_s=scenario.deadline_s,
        max_requests=scenario.num_requests,
        input_size=100,
    )
    ties = Random(rng.random()) if scenario.has_random_ties else None
    try:
        world.run(faults.trouble(offered, service_time_s=config.service_time_s), ties=ties, until=calm_at)
        checkers.finished(probes=[probe.id for probe in probes])
        gate.check()
    except Exception as error:
        error.add_note("the last events:\n" + checkers.story())
        raise
    return recorder.report(num_workers=config.num_workers)


def _draw_config(rng: Random) -> DispatchConfig:
    service_time_s = rng.choice((0.01, 0.2, 1.0))
    max_batch_size = rng.choice((1, 2, 3, 5, 8, 16, 50))
    policy = rng.choice((PolicyName.PACED, *PolicyName))
    max_waiting = rng.choice((20_000, 20_000, 20_000, 1, 5, 20))
    return DispatchConfig(
        num_workers=rng.choice((1, 2, 3, 5, 8)),
        tiers=rng.choice((("paid",), ("paid", "free"), ("paid", "free"), ("gold", "paid", "free"))),
        policy=policy,
        max_batch_size=max_batch_size,
        batch_timeout_s=service_time_s * rng.choice((0.0, 0.1, 0.75, 2.0)),
        service_time_s=service_time_s,
        max_waiting=max(max_waiting, 2 * max_batch_size) if policy is PolicyName.STATIC else max_waiting,
        max_waiting_bytes=rng.choice((2**26, 2**26, 100, 1000)),
        max_attempts=rng.choice((1, 2, 3, 3, 5)),
        hang_factor=rng.choice((1.0, 1.3, 2.0)),
        first_batch_timeout_s=service_time_s * rng.choice((1.5, 3.0, 10.0)),
        start_timeout_s=service_time_s * rng.choice((2.5, 10.0)),
        retry_ratio=rng.choice((0.0, 0.2, 1.0)),
        retry_reserve=rng.choice((AMPLE_RESERVE, AMPLE_RESERVE, 0, 5, 100)),
        restart_backoff_s=service_time_s * rng.choice((0.0, 0.5, 2.0)),
        breaker_threshold=rng.choice((1, 2, 5)),
        breaker_rest_s=service_time_s * rng.choice((0.0, 1.0, 20.0)),
    )


def _draw_arrivals(rng: Random, rate: float, duration_s: float) -> Arrivals:
    burst = Burst(rate, factor=10.0, period_s=duration_s / 3.0, burst_s=duration_s / 30.0)
    return rng.choice((Poisson(rate), Constant(rate), burst))


def _draw_mix(rng: Random, tiers: tuple[str, ...]) -> Mix:
    num_tenants = rng.choice((1, 2, 5))
    return Mix(
        tuple(Sender(f"{tier}-{num}", tier, 1.0 + 20.0 * rng.random() ** 4) for tier in tiers for num in range(num_tenants))
    )


def _draw_plan(rng: Random, config: DispatchConfig, duration_s: float) -> FaultPlan:
    def maybe(most: float) -> float:
        return most * rng.random() if rng.random() < 0.5 else 0.0

    if rng.random() < 0.05:
        return FaultPlan()
    return FaultPlan(
        dies=maybe(0.3),
        hangs=maybe(0.2),
        answers_late=maybe(0.3),
        bad_outputs=maybe(0.2),
        starts_badly=maybe(0.5),
        sick=0.3 * rng.random() if rng.random() < 0.1 else 0.0,
        echoes=maybe(1.0),
        cancels=maybe(0.5),
        handoff_cancels=maybe(1.0),
        impatient=maybe(0.5),
        poison=maybe(0.1),
        killers=maybe(0.05),
        idle_deaths_rate=maybe(10.0) / duration_s,
        stalls_rate=maybe(10.0) / duration_s,
        stall_s=2.0 * config.service_time_s * rng.random(),
    )
