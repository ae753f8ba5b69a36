"""Many clients of one kind of abuse at once, in a process of its own: `python -m loadtest.scenarios.abuse URL KIND`.

It says `{"event": "begun"}` on standard output when all its clients have been let loose, goes on until its standard input ends,
and then tells what became of them. A process of its own, so that its cost is not the load generator's, whose lateness would
make the good traffic look slow.
"""

import argparse
import asyncio
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random

import msgspec
import uvloop

from loadtest.scenarios.abuse_kinds import KINDS, Kind
from loadtest.scenarios.abuse_lines import PATIENCE_S, Tally, connected
from loadtest.target import SplitUrl, split_url

SPREAD_S = 1.0
"""The clients begin one after the other within it: that a thousand connections come in one instant is another scenario's."""
_END_S = 20.0
"""What an abuse may take to end once it is told to."""
_MAX_FILES = 65_536


class Toll(msgspec.Struct):
    """What an abuse did, and what doing it has cost."""

    tally: Tally = msgspec.field(default_factory=Tally)
    cpu_share: float = 0.0
    """Of one core, while it lasted: a busy abuser takes from the server it shares the machine with."""


async def _client(kind: Kind, number: int, num_clients: int, address: SplitUrl, seed: int, tally: Tally) -> None:
    """Visits again and again, no more often than its kind does."""
    loop = asyncio.get_running_loop()
    random = Random(f"{seed} {kind.name} {number}")
    variant = kind.variants[number % len(kind.variants)]
    await asyncio.sleep(SPREAD_S * number / num_clients)
    while True:
        next_at = loop.time() + kind.period_s * random.uniform(0.9, 1.1)
        tally.visits += 1
        try:
            async with asyncio.timeout(PATIENCE_S + 1.0), connected(address, tally) as line:
                await variant.manner(line, random, variant.make)
        except ConnectionRefusedError:
            tally.unconnected += 1
        except (OSError, TimeoutError):
            tally.note("cut")
        await asyncio.sleep(max(0.0, next_at - loop.time()))


async def _abuse(kind: Kind, address: SplitUrl, num_clients: int, seed: int) -> Toll:
    toll = Toll()
    begun_at, begun_cpu_s = time.monotonic(), time.process_time()
    clients = [
        asyncio.ensure_future(_client(kind, number, num_clients, address, seed, toll.tally)) for number in range(num_clients)
    ]
    await asyncio.sleep(SPREAD_S)
    print('{"event": "begun"}', flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    toll.cpu_share = (time.process_time() - begun_cpu_s) / (time.monotonic() - begun_at)
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)
    return toll


class Abuse:
    """An abuse that runs; `toll` is known when it has ended."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self.toll = Toll()

    def end(self) -> None:
        """All its clients leave at once. Idempotent."""
        if self._process.poll() is None:
            said, _ = self._process.communicate(timeout=_END_S)
            self.toll = msgspec.json.decode(said, type=Toll)


@contextmanager
def abusing(url: str, kind: str, *, num_clients: int, seed: int) -> Iterator[Abuse]:
    """An abuse from when all its clients are there to the end of the block."""
    command = [sys.executable, "-m", "loadtest.scenarios.abuse", url, kind, f"--clients={num_clients}", f"--seed={seed}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        abuse = Abuse(process)
        try:
            assert process.stdout is not None
            begun = process.stdout.readline()
            assert b"begun" in begun, f"{kind} did not begin"
            yield abuse
            abuse.end()
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (_MAX_FILES if hard == resource.RLIM_INFINITY else hard, hard))
    toll = uvloop.run(_abuse(KINDS[arguments.kind], split_url(arguments.url), arguments.clients, arguments.seed))
    print(msgspec.json.encode(toll).decode(), flush=True)


if __name__ == "__main__":
    main()
