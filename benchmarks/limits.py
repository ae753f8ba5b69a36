"""Bar F4: gateways that share a Redis keep every limit in every sliding minute, and a Redis that crashes forgets none.

Several gateway processes, 100 keys and a tier, random load far above the limits, random ends; in the middle Redis is killed and
started again on what it had written. Each admission is logged with the instants of its call and its verdict, by the machine's
one monotonic clock, and with the second at which it was charged; then the log is held against the limits:

- shared: at most the limit in any 60 seconds in a row of the store's clock and in every sliding minute of the machine's clock,
  by the instants between which each admission happened: exactly.
- lease: at most the limit and gateways x max(1, limit // 60) in every sliding minute of the machine's clock.
- what was let in and not given back is counted by Redis in the end: nothing was forgotten.

30 seconds would have one minute only, from their begin, so by default the load lasts for 75: what was let in first is then free
again, and minutes slide. Redis is on loopback with `appendonly yes`, `appendfsync no`
(benchmarks/redis_server.py says why).

    python -m benchmarks.limits [--seconds 75] [--gateways 4] [--mode shared] [--seed 1]
"""

import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop

from batcher.config import LimitMode
from benchmarks.limits_check import Worst, by_subject, fullest_by_instant, fullest_by_second, num_undercounted
from benchmarks.limits_cost import measure
from benchmarks.limits_gateway import READY_S, Log, Orders, make_subjects, run_gateway
from benchmarks.redis_server import RedisServer

_DOWN_S = 0.5
_LIMIT_S = 30.0
"""A gateway that ends so much later than its load hangs."""

_ROW = "{:8} {:>8} {:>8} {:>8} {:>9} {:>8} {:>8} {:>9} {:>9} {:>8}   {}"
_HEADS = ("mode", "asked/s", "admitted", "refused", "away", "leased", "calls", "fullest", "over", "bound", "kept")


def main(
    seconds: Annotated[float, typer.Option(min=1.0, help="Of load, in each mode.")] = 75.0,
    gateways: Annotated[int, typer.Option(min=1, max=32)] = 4,
    mode: Annotated[LimitMode | None, typer.Option(help="Both by default.")] = None,
    seed: Annotated[int, typer.Option(help="Draws limits and load.")] = 1,
) -> None:
    typer.echo(f"{gateways} gateways, {seconds:g} s of load in each mode, Redis killed in the middle; seed {seed}")
    are_kept = True
    with tempfile.TemporaryDirectory() as folder:
        typer.echo(_ROW.format(*_HEADS))
        for each in LimitMode if mode is None else [mode]:
            inside = Path(folder) / each
            inside.mkdir()
            with RedisServer(inside) as server:
                are_kept &= _compare(server, inside, each, gateways=gateways, seconds=seconds, seed=seed)
        inside = Path(folder) / "cost"
        inside.mkdir()
        with RedisServer(inside) as server:
            typer.echo("CPU of a gateway for one request, and its wait for a verdict:")
            for line in uvloop.run(measure(server.url)):
                typer.echo(line)
    if not are_kept:
        raise typer.Exit(1)


def _compare(server: RedisServer, folder: Path, mode: LimitMode, *, gateways: int, seconds: float, seed: int) -> bool:
    """Whether all limits were kept; prints a row, and a line for each fault."""
    orders = Orders(server.url, mode, seconds, seed, str(folder / "log"))
    killed_at, logs = _load(server, orders, gateways)
    subjects = make_subjects(seed)
    admissions = by_subject((each for log in logs for each in log.admissions), subjects)
    faults, fullest, bound_of_fullest = [], Worst("nobody", 0, 1), 0
    for subject, its in admissions.items():
        fullest_minutes = fullest_by_instant(subject, its)
        if mode is LimitMode.SHARED:
            fullest_minutes += fullest_by_second(subject, its)
        for worst in fullest_minutes:
            # Written out: the check takes no bound from what it checks.
            bound = 0 if mode is LimitMode.SHARED else gateways * max(1, worst.limit // 60)
            if worst.share > fullest.share:
                fullest, bound_of_fullest = worst, bound
            if worst.over > bound:
                faults.append(
                    f"{worst.subject}: {worst.most} in one minute; its limit is {worst.limit}, its bound {bound} more"
                )
    with closing(server.client()) as beside:
        for subject, its in admissions.items():
            fields = beside.hgetall(f"batcher:limits:of:{subject.name}")
            counted = {str(name, "ascii"): int(number) for name, number in fields.items() if isinstance(name, bytes)}
            if missing := num_undercounted(subject, its, counted):
                faults.append(f"{subject.name}: Redis counts {missing} less than was let in")
    faults += [f"gateway {i} let nobody in after the crash" for i, log in enumerate(logs) if log.last_admitted_at < killed_at]
    typer.echo(_row(mode, logs, seconds, fullest, bound_of_fullest, is_kept=not faults))
    for fault in faults[:20]:
        typer.echo(f"WRONG: {fault}")
    return not faults


def _load(server: RedisServer, orders: Orders, num_gateways: int) -> tuple[float, Sequence[Log]]:
    """When Redis was killed, and the gateways' logs."""
    context = multiprocessing.get_context("spawn")
    are_ready = context.Barrier(num_gateways + 1)
    processes = [context.Process(target=run_gateway, args=(orders, i, are_ready), daemon=True) for i in range(num_gateways)]
    try:
        for process in processes:
            process.start()
        are_ready.wait(READY_S)
        began_at = time.monotonic()
        time.sleep(orders.seconds / 2)
        killed_at = time.monotonic()
        server.kill()
        time.sleep(min(_DOWN_S, orders.seconds / 8))
        server.start()
        for process in processes:
            process.join(max(0.0, began_at + orders.seconds - time.monotonic()) + _LIMIT_S)
    finally:
        for process in processes:
            process.kill()
    return killed_at, [msgspec.msgpack.decode(Path(f"{orders.log}{i}").read_bytes(), type=Log) for i in range(num_gateways)]


def _row(mode: LimitMode, logs: Sequence[Log], seconds: float, fullest: Worst, bound: int, *, is_kept: bool) -> str:
    num_admitted = sum(len(log.admissions) for log in logs)
    num_refused, num_away = sum(log.num_refused for log in logs), sum(log.num_away for log in logs)
    return _ROW.format(
        mode.value,
        f"{(num_admitted + num_refused + num_away) / seconds:,.0f}",
        f"{num_admitted:,}",
        f"{num_refused:,}",
        f"{num_away:,}",
        f"{sum(log.num_leased for log in logs):,}",
        f"{sum(log.num_calls for log in logs):,}",
        f"{fullest.share:.1%}",
        f"{fullest.over:,}",
        f"{bound:,}",
        "yes" if is_kept else "NO",
    )


if __name__ == "__main__":
    typer.run(main)
