"""`python -m benchmarks.outage`: half of the workers are killed under full load (bar F5).

A real server with workers in processes of their own. Paid and free callers with many keys; those that are refused come back at
the very instant that Retry-After told them, as the official clients do. A quarter of the time in, half of the workers get
SIGKILL and are kept from starting again for `--outage` seconds. Then: is paid served within its budget, is free refused first,
are the same keys refused, and is who comes back when told let in?
"""

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from batcher.sim.tables import table
from benchmarks.held import SERVICE_S, TICKETS
from benchmarks.options import Seed
from loadtest.scenarios.proctree import leaves
from loadtest.scenarios.server import Server, serving

PAID_BUDGET_S, FIRST_RETRY_BAR = 0.5, 0.9
OK, OVERLOADED = 200, 529
MAX_TRIES = 4
PATIENCE_S = 10.0
LATE_S = 0.1
"""A client that was this late with more than one request in a hundred did not offer what it says."""


class Load(msgspec.Struct, frozen=True):
    """What is offered, and what is done to the server. Instants are seconds since the start."""

    rate: float
    paid_share: float
    num_keys: int
    """Of each tier."""
    duration_s: float
    seed: int
    lost_at: float
    back_at: float
    num_lost: int
    """Workers."""


class Sent(msgspec.Struct):
    """One request, and what became of it. Instants are seconds since the start."""

    tier: str
    key: str
    num_before: int
    """How often the same caller had been refused."""
    planned_at: float
    late_s: float = 0.0
    ended_at: float = 0.0
    status: int = 0
    """0: none in time."""
    first_retry: "Sent | None" = None

    @property
    def latency_s(self) -> float:
        return self.ended_at - self.planned_at


class Connection(asyncio.Protocol):
    """One request at a time on a connection that is kept."""

    def __init__(self, crowd: "Crowd") -> None:
        self.crowd = crowd
        self.sent: Sent | None = None
        self.buffer = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self, sent: Sent, request: bytes) -> None:
        assert self.transport is not None
        self.sent, self.buffer = sent, b""
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, ends, body = self.buffer.partition(b"\r\n\r\n")
        if not ends or self.sent is None:
            return
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) >= int(headers[b"content-length"]):
            sent, self.sent = self.sent, None
            self.crowd.ended(sent, int(head[9:12]), headers.get(b"retry-after"))
            self.crowd.idle.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self.sent is not None:
            self.crowd.ended(self.sent, 0, None)
        elif self in self.crowd.idle:
            self.crowd.idle.remove(self)


class Crowd:
    """All callers: an open loop, and retries on top."""

    def __init__(self, port: int, *, until_s: float) -> None:
        self.port = port
        self.until_s = until_s
        self.idle: deque[Connection] = deque()
        self.rows: list[Sent] = []
        self.loop = asyncio.get_running_loop()
        self.started_at = self.loop.time()
        self.connecting: set[asyncio.Task[None]] = set()

    def now(self) -> float:
        return self.loop.time() - self.started_at

    def send(self, sent: Sent) -> None:
        self.rows.append(sent)
        sent.late_s = self.now() - sent.planned_at
        if self.idle:
            self.idle.pop().ask(sent, _request(sent.key))
        else:
            task = self.loop.create_task(self._connect(sent))
            self.connecting.add(task)
            task.add_done_callback(self.connecting.discard)

    async def _connect(self, sent: Sent) -> None:
        _, connection = await self.loop.create_connection(lambda: Connection(self), "127.0.0.1", self.port)
        connection.ask(sent, _request(sent.key))

    def ended(self, sent: Sent, status: int, retry_after: bytes | None) -> None:
        sent.ended_at, sent.status = self.now(), status
        if status != OVERLOADED or retry_after is None or sent.num_before + 1 >= MAX_TRIES:
            return
        back_at = sent.ended_at + int(retry_after)
        if back_at < self.until_s:
            again = Sent(sent.tier, sent.key, sent.num_before + 1, back_at)
            sent.first_retry = again if sent.num_before == 0 else None
            self.loop.call_at(self.started_at + back_at, self.send, again)

    async def drive(self, load: Load) -> None:
        rng = random.Random(load.seed)
        at = 0.0
        while (at := at + rng.expovariate(load.rate)) < self.until_s:
            tier = "paid" if rng.random() < load.paid_share else "free"
            sent = Sent(tier, f"dev-{tier}-{rng.randrange(load.num_keys)}", 0, at)
            if (wait_s := at - self.now()) > 0.0:
                await asyncio.sleep(wait_s)
            self.send(sent)
        await asyncio.sleep(PATIENCE_S / 4)


def _request(key: str) -> bytes:
    body = b'{"input": "half of us are gone"}'
    head = f"POST /v1/run HTTP/1.1\r\nhost: outage\r\nx-api-key: {key}\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


def main(
    rate: Annotated[float, typer.Option(help="Requests a second, retries apart.")] = 2250.0,
    workers: Annotated[int, typer.Option(min=2, help="Each serves 250 a second.")] = 10,
    paid_share: float = 0.2,
    keys: Annotated[int, typer.Option(min=1, help="Of each tier.")] = 400,
    duration: Annotated[float, typer.Option(help="Seconds of traffic.")] = 40.0,
    outage: Annotated[float, typer.Option(help="Seconds for which the lost workers stay away.")] = 15.0,
    seed: Seed = 1,
) -> None:
    """Who is served and who is refused while half of the workers are gone."""
    load = Load(rate, paid_share, keys, duration, seed, duration / 4, duration / 4 + outage, workers // 2)
    with tempfile.TemporaryDirectory() as folder:
        tickets = Path(folder) / "tickets"
        os.environ[TICKETS] = str(tickets)
        arguments = ["serve", "--port", "0", "--backend", "benchmarks.held:HeldBackend", "--isolation", "process"]
        arguments += ["--workers", str(workers), "--service-time", str(SERVICE_S)]
        with serving(arguments) as server:
            rows = asyncio.run(_run(server, tickets, load))
    sys.exit(0 if tell(rows, lost_at=load.lost_at, back_at=load.back_at) else 1)


async def _run(server: Server, tickets: Path, load: Load) -> list[Sent]:
    crowd = Crowd(int(server.url.rpartition(":")[2]), until_s=load.duration_s)
    crowd.loop.call_at(crowd.started_at + load.lost_at, _kill, server, tickets, load.num_lost)
    crowd.loop.call_at(crowd.started_at + load.back_at, lambda: shutil.rmtree(tickets, ignore_errors=True))
    await crowd.drive(load)
    return crowd.rows


def _kill(server: Server, tickets: Path, num: int) -> None:
    tickets.mkdir()
    for number, pid in enumerate(leaves(server.pid)[:num]):
        (tickets / str(number)).touch()
        os.kill(pid, signal.SIGKILL)


def tell(rows: list[Sent], *, lost_at: float, back_at: float) -> bool:
    """Prints what was seen, and whether the bars are met."""
    typer.echo(table((("seconds", *_COUNTED, "paid p95 ms", "left late p95 ms"), *_by_time(rows))))
    paid = sorted(row.latency_s for row in rows if row.tier == "paid" and row.status == OK)
    p95_s = paid[int(0.95 * (len(paid) - 1))] if paid else float("inf")
    during = [row for row in rows if lost_at <= row.planned_at < back_at]
    retries = [row.first_retry for row in rows if row.first_retry is not None and row.first_retry.ended_at]
    kept = sum(retry.status == OK for retry in retries) / len(retries) if retries else 0.0
    fresh = [row for row in during if not row.num_before]
    refused = {tier: _share_refused(row for row in fresh if row.tier == tier) for tier in ("paid", "free")}
    num_lost = sum(row.status not in (OK, OVERLOADED) for row in rows)
    late = sum(row.late_s > LATE_S for row in rows) / len(rows)
    typer.echo(f"paid p95                {1000 * p95_s:.0f} ms, bar {1000 * PAID_BUDGET_S:.0f} ms")
    typer.echo(f"refused in the outage   paid {refused['paid']:.1%}, free {refused['free']:.1%}; retries apart")
    typer.echo(f"first retries let in    {kept:.1%} of {len(retries)}, bar {FIRST_RETRY_BAR:.0%}")
    typer.echo(f"free keys by the share of their requests that was refused   {_consistency(fresh)}")
    typer.echo(f"neither answered nor refused   {num_lost}")
    typer.echo(f"first retries left late, ms   {_spread_ms([row.late_s for row in retries])}")
    if late > 0.01:
        typer.echo(f"INVALID  {late:.1%} of the requests left more than {1000 * LATE_S:.0f} ms late")
    return p95_s <= PAID_BUDGET_S and kept >= FIRST_RETRY_BAR and refused["free"] > refused["paid"] and num_lost == 0


_COUNTED = ("paid ok", "paid refused", "free ok", "free refused", "other")


def _by_time(rows: list[Sent], width_s: float = 2.0) -> list[tuple[str, ...]]:
    """What ended when. Where requests left late the clients' machine was busy, and latencies are not the server's alone."""
    ended: defaultdict[int, list[Sent]] = defaultdict(list)
    for row in rows:
        ended[int(row.ended_at / width_s)].append(row)
    lines = []
    for index, group in sorted(ended.items()):
        counts = Counter(_what(row) for row in group)
        paid_s = sorted(row.latency_s for row in group if _what(row) == "paid ok") or [0.0]
        late_s = sorted(row.late_s for row in group)
        p95_ms = [f"{1000 * ordered[int(0.95 * (len(ordered) - 1))]:.0f}" for ordered in (paid_s, late_s)]
        lines.append((f"{index * width_s:g}", *(str(counts[name]) for name in _COUNTED), *p95_ms))
    return lines


def _what(row: Sent) -> str:
    ended = {OK: "ok", OVERLOADED: "refused"}.get(row.status)
    return f"{row.tier} {ended}" if ended is not None else "other"


def _share_refused(rows: Iterable[Sent]) -> float:
    statuses = [row.status for row in rows]
    return statuses.count(OVERLOADED) / len(statuses) if statuses else 0.0


def _spread_ms(values_s: list[float]) -> str:
    ordered = sorted(values_s) or [0.0]
    return ", ".join(f"p{part} {1000 * ordered[len(ordered) * part // 100]:.1f}" for part in (50, 95, 99))


def _consistency(fresh: list[Sent]) -> str:
    """How many free keys had which part of their requests refused."""
    by_key: defaultdict[str, list[Sent]] = defaultdict(list)
    for row in fresh:
        if row.tier == "free":
            by_key[row.key].append(row)
    shares = Counter(min(int(5 * _share_refused(rows)), 4) for rows in by_key.values())
    return ", ".join(f"{20 * part}-{20 * part + 20} %: {shares[part]}" for part in range(5))


if __name__ == "__main__":
    typer.run(main)
