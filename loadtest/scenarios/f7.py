"""F7: a thousand clients of each kind of abuse beside good traffic, which must not feel them; and nothing of them may stay.

The good traffic is measured alone and then beside each kind in turn, on one server with every stage of the front door on. What
is left is measured when all of it is over: memory, descriptors, what /metrics tells and how long it is. A crowd that does no
harm comes first, so that what a thousand clients of any sort leave in an allocator is not taken for a leak. A second server, in
continuous mode, has streams that nobody reads and answers whose callers leave all at once.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import msgspec

from batcher.sim.workload import Mix, Poisson, Sender
from loadtest.samples import Ending
from loadtest.scenarios.abuse import Toll, abusing
from loadtest.scenarios.abuse_kinds import KINDS, LIMITED_KEY, abuser_keys, message_body
from loadtest.scenarios.bench import Bench, Figure, Scenario, serve_arguments, to_ms
from loadtest.scenarios.f3 import RULES
from loadtest.scenarios.prometheus import series
from loadtest.scenarios.server import Server, serving
from loadtest.stats import latencies, quantiles

NUM_WORKERS = 8
RATE = 500.0
NUM_CLIENTS = 1000
MAX_RATIO = 1.2
MAX_GROWTH_MIB = 12.0
"""Of hundreds that have gone through: the server gives back what is spare once that is 8, and a few more are in pieces."""
BODY_TIMEOUT_S = 3.0
"""The server's patience with its clients: short, so that each kind comes to the end of it within its turn."""
ABUSER_LIMIT = 600
"""Requests a minute of each of an abuser's keys: enough to be let in, and no more than a tenth of the GPUs."""
FAR = 10**12
"""A limit that is counted and never reached."""
QUIET_S = 11.0
"""Until memory is looked at when nothing is held any more: clients are cut off, and spare memory is given back each 10 s."""
SETTLE_S = 15.0
"""What the last abuse may take to be over for the server."""
MAX_LEFT_S = 1.0
"""From when all have left to when nothing runs for them: two steps and the way there (CASES B24)."""

HARMLESS = ["crowd", "listeners"]
"""In batch mode and in continuous mode."""
IN_CONTINUOUS = ["unread-streams", "long-answers"]
IN_BATCH = [name for name in KINDS if name not in (*HARMLESS, *IN_CONTINUOUS)]

HELD = (
    "batcher_live_requests",
    "batcher_running_requests",
    "batcher_waiting_requests",
    "batcher_waiting_bytes",
    "batcher_waiting_turns",
    "batcher_waiting_tokens",
    "batcher_inflight_batches",
    "batcher_parked_batches",
    "batcher_open_streams",
    "batcher_limit_reservations",
    "batcher_idempotent_running",
    'batcher_kv_blocks{state="held"}',
)
"""What /metrics tells of requests that are not over."""

GOOD = (Sender("good-paid", "paid", 0.2), *(Sender(f"good-free-{number}", "free", 0.08) for number in range(10)))


class Remains(msgspec.Struct, frozen=True):
    """Of a server when nobody asks for anything."""

    rss_bytes: int
    num_descriptors: int
    names: frozenset[str]
    page_bytes: int
    held: float
    """The sum of what it holds of requests: 0 unless something leaks."""


def measure(bench: Bench) -> list[Figure]:
    turn_s = bench.duration_s / (1 + len(IN_BATCH))
    with tempfile.TemporaryDirectory(prefix="loadtest-") as name:
        folder = Path(name)
        (folder / "rules.toml").write_text(RULES)
        (folder / "batcher.toml").write_text(settings(folder))
        arguments = ["--config", str(folder / "batcher.toml")]
        with serving(serve_arguments(num_workers=NUM_WORKERS, extra=arguments)) as server:
            figures = list(_beside(bench, server, turn_s))
        continuous = ["serve", "--port", "0", "--mode", "continuous", "--model", "simulated", "--simulated-answer", "repeat"]
        with serving([*continuous, *arguments]) as server:
            figures += _left_streams(bench, server, turn_s / 2)
    return figures


def settings(folder: Path) -> str:
    """Every stage on: limits that the good never reach, rules, a usage log, the log of requests. The store of kept answers is
    small, so that it is full before the end."""
    far = "\n".join(f"{kind}_per_minute = {FAR}" for kind in ("requests", "tokens", "total_requests", "total_tokens"))
    keys = [(sender.key, sender.tier, FAR) for sender in GOOD]
    keys += [(key, "free", ABUSER_LIMIT) for key in abuser_keys()]
    keys += [(LIMITED_KEY, "free", 1)]
    return "\n".join(
        (
            f'usage_dir = "{folder / "usage"}"',
            f'safety_rules = "{folder / "rules.toml"}"',
            f"body_timeout = {BODY_TIMEOUT_S}",
            "idempotency_bytes = 1_000_000",
            f'[[tiers]]\nname = "paid"\nreserved_share = 0.1\n{far}',
            f'[[tiers]]\nname = "free"\nwait_budget_s = 0.15\n{far}',
            '[[keys]]\ntenant = "operator"\ntier = "paid"\nis_operator = true',
            f'sha256 = "{sha256(b"dev-operator").hexdigest()}"',
            *(
                f'[[keys]]\ntenant = "{key}"\ntier = "{tier}"\nrequests_per_minute = {limit}\n'
                f'sha256 = "{sha256(key.encode()).hexdigest()}"'
                for key, tier, limit in keys
            ),
        )
    )


def _beside(bench: Bench, server: Server, turn_s: float) -> Iterator[Figure]:
    with abusing(server.url, "crowd", num_clients=NUM_CLIENTS, seed=bench.seed):
        time.sleep(turn_s / 2)
    num_bad, alone_s = _good(bench, server, "alone", turn_s)
    yield Figure(name="good p95 alone", value=to_ms(alone_s), unit="ms")
    before = remains(server)
    for kind in IN_BATCH:
        with abusing(server.url, kind, num_clients=NUM_CLIENTS, seed=bench.seed) as abuse:
            busy_from, since = server.usage(), time.monotonic()
            num_failed, beside_s = _good(bench, server, f"beside {kind}", turn_s)
            busy = (server.usage().cpu_s - busy_from.cpu_s) / (time.monotonic() - since)
            abuse.end()
        num_bad += num_failed
        bench.say(_tell(abuse.toll, busy))
        ratio = None if beside_s is None or not alone_s else beside_s / alone_s
        yield Figure(name=f"good p95 beside {kind}, to alone", value=ratio, unit="times", at_most=MAX_RATIO)
    yield Figure(name="good requests refused, failed or lost", value=num_bad, at_most=0)
    after = remains(server)
    mib = 2**20
    yield Figure(name="memory growth", value=(after.rss_bytes - before.rss_bytes) / mib, unit="MiB", at_most=MAX_GROWTH_MIB)
    yield Figure(name="memory in the end", value=after.rss_bytes / mib, unit="MiB")
    yield Figure(name="names on /metrics that are new", value=len(after.names - before.names), at_most=0)
    yield Figure(name="growth of /metrics, digits of its numbers", value=after.page_bytes - before.page_bytes, unit="bytes")
    yield Figure(name="held of requests in the end", value=after.held, at_most=0)
    yield Figure(name="descriptors left", value=after.num_descriptors - before.num_descriptors, at_most=0)


def _good(bench: Bench, server: Server, name: str, turn_s: float) -> tuple[int, float | None]:
    """(requests that did not end well, p95 in seconds)."""
    samples = bench.run(name, server.url, Poisson(RATE), duration_s=turn_s, mix=Mix(GOOD)).samples
    return sum(code != Ending.OK for code in samples.ending), quantiles(latencies(samples)).p95


def _tell(toll: Toll, busy: float) -> str:
    tally = toll.tally
    answers = ", ".join(f"{answer} {num:,}" for answer, num in sorted(tally.answers.items()))
    return (
        f"abuse: {tally.visits:,} visits, answered {answers or 'nothing'}; {tally.unconnected} not connected; "
        f"it took {toll.cpu_share:.0%} of a core, the server {busy:.0%}"
    )


def remains(server: Server) -> Remains:
    """Waits until nothing is held, for as long as that may take, and for what is freed after it."""
    until = time.monotonic() + SETTLE_S
    while (held := _held(server.read("/metrics"))) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(QUIET_S)
    num_descriptors = len(os.listdir(f"/proc/{server.pid}/fd"))  # First: the connection of the next question is one.
    page = server.read("/metrics")
    return Remains(
        rss_bytes=server.usage().rss_bytes,
        num_descriptors=num_descriptors,
        names=frozenset(series(page)),
        page_bytes=len(page),
        held=held,
    )


def _held(page: str) -> float:
    return sum(value for name, value in series(page).items() if name.partition("{")[0] in HELD or name in HELD)


def _left_streams(bench: Bench, server: Server, turn_s: float) -> Iterator[Figure]:
    # From its first answer on the gate knows a rate, and admits by it.
    server.ask("/v1/messages", message_body("good", max_tokens=10))
    with abusing(server.url, "listeners", num_clients=NUM_CLIENTS, seed=bench.seed) as listeners:
        time.sleep(turn_s)
        listeners.end()
    bench.say(_tell(listeners.toll, 0.0))
    before = remains(server)
    for kind in IN_CONTINUOUS:
        bench.say(f"\n[bold]{kind}[/bold]")
        with abusing(server.url, kind, num_clients=NUM_CLIENTS, seed=bench.seed) as abuse:
            time.sleep(turn_s)
            page = server.read("/metrics")
            num_running = sum(value for name, value in series(page).items() if name.startswith("batcher_running_requests"))
            abuse.end()
        left_at = time.monotonic()
        while _held(server.read("/metrics")) and time.monotonic() < left_at + SETTLE_S:
            time.sleep(0.02)
        left_s = time.monotonic() - left_at
        bench.say(_tell(abuse.toll, 0.0))
        if kind == "long-answers":
            yield Figure(name=f"{kind}: sequences that ran when all left", value=num_running, at_least=1)
        yield Figure(name=f"{kind}: until nothing ran for who left", value=left_s, unit="s", at_most=MAX_LEFT_S)
    after = remains(server)
    growth_mib = (after.rss_bytes - before.rss_bytes) / 2**20
    yield Figure(name="continuous mode: memory growth", value=growth_mib, unit="MiB", at_most=MAX_GROWTH_MIB)
    yield Figure(name="continuous mode: held of requests in the end", value=after.held, at_most=0)
    yield Figure(name="continuous mode: descriptors left", value=after.num_descriptors - before.num_descriptors, at_most=0)


SCENARIO = Scenario("f7", "1,000 clients of each kind of abuse beside 500/s of good traffic", 100.0, measure)
