"""`batcher simulate`: any policy, traffic, fleet and faults, an hour in a minute; or thousands of seeds and their laws."""

from typing import Annotated

import typer

from batcher.config import DEFAULT_TIERS, DispatchConfig, PolicyName
from batcher.errors import ConfigError
from batcher.sim.faults import plan_of_intensity
from batcher.sim.latency import parse_latency
from batcher.sim.report import Report
from batcher.sim.scenario import draw, run
from batcher.sim.simulation import measure
from batcher.sim.swarm import Broken, merge, swarm
from batcher.sim.tables import compare as compare_reports
from batcher.sim.tables import describe, named
from batcher.sim.traffic import mix_of_paid_share
from batcher.sim.workload import parse_arrivals

_DEFAULT_RATE = 2000.0
_MAX_BROKEN_TOLD = 20


def simulate(
    policy: Annotated[PolicyName, typer.Option(help="When a batch leaves.")] = PolicyName.PACED,
    compare: Annotated[bool, typer.Option("--compare", help="Run all policies on the same traffic, in one table.")] = False,
    rate: Annotated[float | None, typer.Option(help="Requests per second.  [default: 2000]")] = None,
    arrivals: Annotated[str, typer.Option(help="poisson|constant|burst|ramp|steps:RATExSECONDS,...|trace:FILE")] = "poisson",
    duration: Annotated[float, typer.Option(help="Seconds of traffic.")] = 60.0,
    workers: Annotated[int, typer.Option(help="Simulated GPUs.")] = 16,
    service_time: Annotated[
        str, typer.Option(help="SECONDS, jitter:SECONDS,SHARE, lognormal:MEDIAN,SIGMA or linear:SECONDS,PER_INPUT")
    ] = "0.2",
    max_batch_size: Annotated[int, typer.Option(help="Most requests in a batch.")] = 50,
    batch_timeout: Annotated[float, typer.Option(help="Longest wait beside a free worker, in seconds.")] = 0.15,
    paid_share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Part of the requests that is paid.")] = 0.2,
    tenants: Annotated[int, typer.Option(min=1, max=10_000, help="API keys in each tier.")] = 1,
    deadline: Annotated[float, typer.Option(min=0.001, help="Seconds after which a caller gives up.")] = 10.0,
    faults: Annotated[float, typer.Option(min=0.0, max=10.0, help="What goes wrong: 0 nothing, 1 a bad day, 10 hell.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Draws traffic, service times and faults.")] = 1,
    num_swarm: Annotated[int, typer.Option("--swarm", min=0, help="Check so many seeded small worlds instead.")] = 0,
    first_seed: Annotated[int, typer.Option(min=0, help="First seed of the swarm.")] = 0,
    processes: Annotated[int, typer.Option(min=1, max=64, help="Processes of the swarm.")] = 2,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="With --swarm: tell each world and each event.")] = False,
) -> None:
    """Run the very dispatcher that serves, on a virtual clock, and print what callers and workers would see.

    With --swarm N it checks the laws instead: N small worlds with faults, each drawn from one seed.
    """
    if num_swarm:
        _check_swarm(first_seed, num_swarm, processes, is_verbose=verbose)
        return
    try:
        latency = parse_latency(service_time)
        has_own_rate = arrivals.startswith(("steps:", "trace:"))
        process = parse_arrivals(arrivals, rate=rate if rate or has_own_rate else _DEFAULT_RATE, duration_s=duration)
        mix = mix_of_paid_share(paid_share, num_tenants=tenants)
        plan = plan_of_intensity(faults)
        configs = {
            name: DispatchConfig(
                num_workers=workers,
                tiers=tuple(tier.name for tier in DEFAULT_TIERS),
                policy=name,
                max_batch_size=max_batch_size,
                batch_timeout_s=batch_timeout,
                service_time_s=latency.expected_s(max_batch_size),
            )
            for name in (PolicyName if compare else (policy,))
        }
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    offered = arrivals if has_own_rate else f"{arrivals} {rate or _DEFAULT_RATE:g}/s"
    typer.echo(f"seed {seed}: {offered} for {duration:g} s on {workers} workers of {service_time} s, faults {faults:g}")
    reports: dict[str, Report] = {}
    for name, config in configs.items():
        reports[name.value] = measure(
            config,
            arrivals=process,
            mix=mix,
            latency=latency,
            duration_s=duration,
            seed=seed,
            plan=plan,
            deadline_s=deadline,
        )
    expected_s = latency.expected_s(max_batch_size)
    typer.echo(compare_reports(reports) if compare else describe(reports[policy.value]))
    typer.echo(
        f"evenly spaced partial batches would have a mean of {1000.0 * (expected_s + expected_s / 2.0 / workers):.2f} ms"
    )


def _check_swarm(first_seed: int, num_seeds: int, num_processes: int, *, is_verbose: bool) -> None:
    """Prints each broken law with the command that brings it back. Exits with 1 if there is any."""
    typer.echo(f"seeds {first_seed} to {first_seed + num_seeds - 1}")
    if is_verbose:
        _tell_worlds(first_seed, num_seeds)
    reports = []
    num_told = 0
    for report in swarm(first_seed, num_seeds, num_processes=num_processes):
        reports.append(report)
        for broken in report.broken:
            num_told += 1
            if num_told <= _MAX_BROKEN_TOLD:
                typer.echo(_tell(broken))
    total = merge(reports)
    typer.echo(named(total.outcomes, "requests"))
    typer.echo(named(total.batches, "batches"))
    typer.echo(named(total.faults, "workers given up"))
    typer.echo(f"{total.num_seeds:,} worlds, {len(total.broken):,} of them broke a law")
    if total.broken:
        raise typer.Exit(1)


def _tell(broken: Broken) -> str:
    return f"seed {broken.seed}: {broken.what}\n  again: batcher simulate --swarm 1 --first-seed {broken.seed} -v"


def _tell_worlds(first_seed: int, num_seeds: int) -> None:
    for seed in range(first_seed, first_seed + num_seeds):
        scenario = draw(seed)
        typer.echo(repr(scenario))
        try:
            run(scenario, tell=typer.echo)
        except Exception as error:
            typer.echo(f"{type(error).__name__}: {error}")
