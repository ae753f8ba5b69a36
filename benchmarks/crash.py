"""`python -m benchmarks.crash`: bar F6, usage that holds when the server is killed.

`batcher serve` is killed with SIGKILL at random instants under load and started again on the same folder. Callers ask each
question under an Idempotency-Key of its own until they have its answer, and some ask again for one that they have. In the end
every answer that was received to its last byte must have exactly one usage record, and the bill must have every question once,
at its price. With --redis claims and answers outlive the server; without, only the log knows which records are one question.
A claim in Redis also outlives its holder for 15 seconds, ten lives of the server here, and its caller waits for that long: it
takes many callers to keep a load on. With 50 kills it takes some two minutes.
"""

import asyncio
import json
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from batcher.sim.tables import table
from benchmarks.crash_callers import Books, Caller
from benchmarks.ports import free_port
from benchmarks.redis_server import RedisServer

_START_S = 60.0
"""A server that does not listen by then never will."""
_STOP_S = 30.0
_DRAIN_S = 120.0
"""For the answers still missing after the last kill; a claim of a server that was killed ends after 15 seconds."""
_LIVES_S = (0.1, 1.5)
"""A server lives so long, drawn evenly, after it listens."""
_SEGMENT_BYTES = 65_536
"""Small: kills come upon new segments, too."""
_MODEL = "simulated"


class Written(NamedTuple):
    """What lies in the folder, read line by line without the reader under test."""

    records: Counter[str]
    """Of each request id."""
    digests: Counter[str]
    num_torn: int
    num_segments: int


class Bill(NamedTuple):
    """What `batcher usage` says."""

    num_requests: int
    input_tokens: int
    output_tokens: int


class Server:
    """`batcher serve`, over and over on one port and one folder. Its log goes to a file."""

    def __init__(self, folder: Path, *, redis_url: str | None) -> None:
        self.usage = folder / "usage"
        self._log = folder / "serve.log"
        self.port = free_port()
        self._flags = ["--port", str(self.port), "--usage-dir", str(self.usage), "--request-log", "off"]
        self._flags += ["--workers", "4", "--service-time", "0.02", "--batch-timeout", "0.01"]
        self._flags += ["--redis", redis_url] if redis_url else []
        self._config = folder / "batcher.toml"
        self._config.write_text(f"usage_segment_bytes = {_SEGMENT_BYTES}\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when it listens."""
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "batcher", "serve", "--config", str(self._config), *self._flags]
            self._process = subprocess.Popen(command, stderr=log)
        until = time.monotonic() + _START_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(self._log.read_text()[-2000:])
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(_STOP_S)

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1.0).close()
        except OSError:
            return False
        return True


async def _load(server: Server, *, num_kills: int, num_callers: int, seed: int) -> Books:
    rng = random.Random(seed)
    books = Books()
    is_over = asyncio.Event()
    callers = [Caller(number, port=server.port, model=_MODEL, books=books, seed=seed) for number in range(num_callers)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(caller.run(is_over)) for caller in callers]
        for number in range(num_kills):
            await asyncio.to_thread(server.start)
            await asyncio.sleep(rng.uniform(*_LIVES_S))
            server.kill()
            if sys.stderr.isatty():
                print(f"\r{number + 1} kills, {len(books.answers):,} answers", end="", file=sys.stderr)
        await asyncio.to_thread(server.start)
        await asyncio.sleep(_LIVES_S[0])
        is_over.set()
        async with asyncio.timeout(_DRAIN_S):
            await asyncio.wait(tasks)
    return books


def _read(folder: Path) -> Written:
    records: Counter[str] = Counter()
    digests: Counter[str] = Counter()
    num_torn = 0
    segments = sorted(folder.iterdir())
    for segment in segments:
        *lines, end = segment.read_bytes().split(b"\n")
        num_torn += bool(end)
        for line in lines:
            record = json.loads(line)
            records[record["request_id"]] += 1
            digests[record["idempotency"]] += 1
    return Written(records, digests, num_torn, len(segments))


def _bill(folder: Path) -> Bill:
    command = [sys.executable, "-m", "batcher", "usage", str(folder), "--by", "tenant", "--format", "json"]
    (row,) = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    return Bill(row["requests"], row["input_tokens"], row["output_tokens"])


def _judge(books: Books, written: Written, bill: Bill) -> list[str]:
    """What is wrong; nothing if the bar is met."""
    ids = {request_id for request_id, _, _ in books.answers}
    unrecorded = sum(written.records[request_id] == 0 for request_id in ids)
    repeated = sum(count > 1 for count in written.records.values())
    expected = Bill(len(books.billable), sum(price[0] for price in books.billable), sum(price[1] for price in books.billable))
    wrong = []
    if unrecorded:
        wrong.append(f"{unrecorded} answers that were received have no record")
    if repeated:
        wrong.append(f"{repeated} request ids have more than one record")
    if bill != expected:
        wrong.append(f"the bill is {bill}; the questions are {expected}")
    return wrong


def main(
    kills: Annotated[int, typer.Option(min=1, max=10_000, help="How often the server is killed.")] = 50,
    callers: Annotated[int, typer.Option(min=1, max=1000, help="Callers at a time.")] = 96,
    redis: Annotated[bool, typer.Option("--redis", help="Claims and answers in a real Redis, which is not killed.")] = False,
    seed: Annotated[int, typer.Option(help="Draws questions and instants.")] = 1,
) -> None:
    """Kill the server under load, again and again, and check every answer's usage record and the bill."""
    typer.echo(f"seed {seed}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis_url = None
        if redis:
            (folder / "redis").mkdir()
            redis_url = stack.enter_context(RedisServer(folder / "redis")).url
        server = Server(folder, redis_url=redis_url)
        stack.callback(server.kill)
        books = asyncio.run(_load(server, num_kills=kills, num_callers=callers, seed=seed))
        server.stop()
        written, bill = _read(server.usage), _bill(server.usage)
    _tell(books, written, bill, kills)
    wrong = _judge(books, written, bill)
    for each in wrong:
        typer.echo(f"MISSED: {each}")
    if wrong:
        raise typer.Exit(1)
    typer.echo("every answer received has one record, and every question is billed once")


def _tell(books: Books, written: Written, bill: Bill, num_kills: int) -> None:
    rows = [
        ("kills", num_kills),
        ("questions", books.num_questions),
        ("tries", books.num_tries),
        ("tries that broke", books.num_broken),
        ("answers received in full", len(books.answers)),
        ("of them replayed", books.num_replayed),
        ("usage records", written.records.total()),
        ("of them repeats of a question", written.records.total() - len(written.digests)),
        ("torn lines", written.num_torn),
        ("segments", written.num_segments),
        ("requests billed", bill.num_requests),
    ]
    rows += [(f"status {status}", count) for status, count in sorted(books.statuses.items())]
    typer.echo(table([(name, f"{number:,}") for name, number in rows]))


if __name__ == "__main__":
    typer.run(main)
