"""F3: what the whole front door costs a request in CPU, over the plain way in; and what refusing a flood costs those who pay.

The plain server has its stages bare: development keys, no limits, no rules, nothing written down. The whole one has all of them
on, under limits that nobody reaches. Both run at the same time and are loaded in turns, so that both meet the same mood of the
machine, and it is the differences within a turn whose median is told. A server of its own then refuses keys over their limit.
"""

import contextlib
import statistics
import tempfile
from hashlib import sha256
from pathlib import Path

from batcher.sim.workload import Mix, Poisson, Sender
from loadtest.samples import NOT_ERRORS, REJECTIONS, Samples
from loadtest.scenarios.bench import Bench, Figure, Scenario, serve_arguments, to_ms
from loadtest.scenarios.proctree import Usage
from loadtest.scenarios.server import Server, serving
from loadtest.stats import latencies, quantiles
from loadtest.target import Target, run_target

NUM_WORKERS = 16
RATE = 2000.0
NUM_ROUNDS = 3
MAX_COST_US = 60.0

PAID_RATE, FREE_RATE = 2000.0, 10_000.0
FREE_LIMIT = 60
"""Requests a minute of each free key in the flood: so few that all are over it at once, and it is their limit that they are
refused for, and not want of capacity."""
NUM_FREE_KEYS = 10
SETTLED_S = 2.0
"""By then each free key is over its limit."""
MAX_GROWTH_MIB = 16.0

FAR = 1_000_000_000
"""A limit that is counted and never reached."""

PLAIN = 'request_log = "off"\n'

RULES = """
[[rules]]
name = "phrases"
phrases = ["project heron", "heron-7", "for internal use", "plutonium", "do not distribute"]

[[rules]]
name = "keys"
regex = "sk-[a-z0-9]{20}"
max_length = 23
verdict = "stop"
"""


def measure(bench: Bench) -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="loadtest-") as name:
        folder = Path(name)
        (folder / "rules.toml").write_text(RULES)
        return [*_cost(bench, folder), *_flood(bench, folder)]


def whole(folder: Path, senders: tuple[Sender, ...], *, free_limit: int = FAR) -> str:
    """The settings that have every stage on; each sender's key is configured, by its digest."""
    limits = "\n".join(f"{kind}_per_minute = {FAR}" for kind in ("tokens", "total_requests", "total_tokens"))
    keys = "\n".join(
        f'[[keys]]\ntenant = "{sender.key}"\ntier = "{sender.tier}"\nsha256 = "{sha256(sender.key.encode()).hexdigest()}"'
        for sender in senders
    )
    return f"""
usage_dir = "{folder / "usage"}"
safety_rules = "{folder / "rules.toml"}"

[[tiers]]
name = "paid"
reserved_share = 0.1
requests_per_minute = {FAR}
{limits}

[[tiers]]
name = "free"
wait_budget_s = 0.15
requests_per_minute = {free_limit}
{limits}

{keys}
"""


def senders(*, paid: float, free: float, num_free_keys: int) -> tuple[Sender, ...]:
    """Keys that together ask at these rates, or in this proportion. Without keys of its own a server knows them, too, as
    development keys: so both servers have as many tenants."""
    return (
        Sender("dev-paid", "paid", paid),
        *(Sender(f"dev-free-{number}", "free", free / num_free_keys) for number in range(num_free_keys)),
    )


def messages_target(url: str) -> Target:
    """The native grammar's whole answer."""
    return Target(
        url=url + "/v1/messages",
        body='{"model":"simulated","max_tokens":256,"messages":[{"role":"user","content":"{input}"}]}',
        headers=(("x-api-key", "{key}"),),
        output_field="content",
    )


def _cost(bench: Bench, folder: Path) -> list[Figure]:
    keys = senders(paid=0.2, free=0.8, num_free_keys=NUM_FREE_KEYS)
    plain_us, run_us, messages_us = [], [], []
    with _configured(folder, "plain", PLAIN) as plain, _configured(folder, "whole", whole(folder, keys)) as full:
        for turn in range(1, NUM_ROUNDS + 1):
            plain_us.append(_cpu_us(bench, f"plain, round {turn}", plain, run_target(plain.url), Mix(keys)))
            run_us.append(_cpu_us(bench, f"whole, round {turn}", full, run_target(full.url), Mix(keys)))
            messages_us.append(_cpu_us(bench, f"whole messages, round {turn}", full, messages_target(full.url), Mix(keys)))
    figures = [Figure(name="plain POST /v1/run, CPU a request", value=statistics.median(plain_us), unit="µs")]
    for route, whole_us in (("/v1/run", run_us), ("/v1/messages", messages_us)):
        over_us = statistics.median(ours - floor for ours, floor in zip(whole_us, plain_us, strict=True))
        figures += [
            Figure(name=f"whole POST {route}, CPU a request", value=statistics.median(whole_us), unit="µs"),
            Figure(name=f"whole POST {route} over the plain way", value=over_us, unit="µs", at_most=MAX_COST_US),
        ]
    return figures


def _configured(folder: Path, name: str, settings: str) -> contextlib.AbstractContextManager[Server]:
    file = folder / f"{name}.toml"
    file.write_text(settings)
    return serving(serve_arguments(num_workers=NUM_WORKERS, extra=["--config", str(file)]))


def _cpu_us(bench: Bench, name: str, server: Server, target: Target, mix: Mix) -> float:
    before = server.usage()
    duration_s = bench.duration_s / (3 * NUM_ROUNDS)
    measured = bench.run(name, server.url, Poisson(RATE), duration_s=duration_s, target=target, mix=mix)
    return (server.usage().cpu_s - before.cpu_s) / max(measured.report.sent, 1) * 1e6


def _flood(bench: Bench, folder: Path) -> list[Figure]:
    keys = senders(paid=PAID_RATE, free=FREE_RATE, num_free_keys=NUM_FREE_KEYS)
    duration_s = SETTLED_S + bench.duration_s / 4
    usages: list[Usage] = []
    with _configured(folder, "flood", whole(folder, keys, free_limit=FREE_LIMIT)) as server:
        looks = [(at, lambda: usages.append(server.usage())) for at in (SETTLED_S, duration_s - 0.2)]
        measured = bench.run(
            "keys over their limit",
            server.url,
            Poisson(PAID_RATE + FREE_RATE),
            duration_s=duration_s,
            mix=Mix(keys),
            actions=looks,
        )
    samples = measured.samples
    paid = quantiles(latencies(samples, from_s=SETTLED_S, tier="paid"))
    refusals = quantiles(refusal_latencies(samples, from_s=SETTLED_S, tier="free"))
    is_watched = len(usages) == 2
    busy = (usages[1].cpu_s - usages[0].cpu_s) / (duration_s - 0.2 - SETTLED_S) if is_watched else None
    growth_mib = (usages[1].rss_bytes - usages[0].rss_bytes) / 2**20 if is_watched else None
    return [
        Figure(name="paid p95 beside the refusals", value=to_ms(paid.p95), unit="ms", at_most=500.0),
        Figure(name="paid refusals", value=len(refusal_latencies(samples, from_s=SETTLED_S, tier="paid")), at_most=0),
        Figure(
            name="refusals a second", value=refusals.count / (duration_s - SETTLED_S), unit="1/s", at_least=FREE_RATE * 0.95
        ),
        Figure(name="refusal p95", value=to_ms(refusals.p95), unit="ms"),
        Figure(name="CPU meanwhile", value=None if busy is None else busy * 100.0, unit="% of a core"),
        Figure(name="memory growth meanwhile", value=growth_mib, unit="MiB", at_most=MAX_GROWTH_MIB),
        Figure(name="errors", value=sum(code not in NOT_ERRORS for code in samples.ending), at_most=0),
    ]


def refusal_latencies(samples: Samples, *, from_s: float, tier: str) -> list[float]:
    """Seconds from the intended instant, of refused requests meant to leave at `from_s` or later."""
    of_tier = [sender.tier == tier for sender in samples.senders]
    rows = zip(samples.planned_at, samples.ended_at, samples.ending, samples.sender, strict=True)
    return [
        ended_at - planned_at
        for planned_at, ended_at, code, sender in rows
        if code in REJECTIONS and planned_at >= from_s and of_tier[sender]
    ]


SCENARIO = Scenario("f3", "CPU a request of the whole front door; 10,000 refusals a second", 60.0, measure)
