"""report.json: what a run measured, and whether it may be believed. Every key is documented beside its field.

The shape is stable: keys may be added, none changes its meaning. A generator that could not keep its schedule has
measured itself, so the verdict comes first, and INVALID figures must not be read as the server's.
"""

import hashlib
from collections import Counter
from typing import Literal

import msgspec

from batcher.sim.workload import Sender
from loadtest.runner import Recording
from loadtest.samples import NOT_OUTCOMES, REJECTIONS, Ending, Samples
from loadtest.stats import Quantiles, Window, quantiles, send_lags, windows

MAX_SEND_LAG_P99_S = 0.010
"""Above it the requests left so late that their latency tells of the generator."""
MAX_CPU_SHARE = 0.9
"""A generator this busy reads its answers late. It has one core."""
MAX_KEYS_SHOWN = 50
SECOND_S = 1.0
_READ_FIRST = ("verdict", "reasons", "seed", "url", "arrivals", "offered_rate", "duration_s", "planned", "sent", "dropped")


class SendLag(msgspec.Struct, frozen=True):
    """Seconds that requests left after their instant; null where none was sent."""

    p50: float | None
    p99: float | None
    max: float | None


class Poison(msgspec.Struct, frozen=True):
    """The inputs that must fail. They are in `outcomes` too, and never in a latency."""

    sent: int
    failed: int
    """Got their 500, as they must."""
    answered: int
    """Got an answer, which is wrong."""


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """The block that the whole run, each tier and each key have in common."""

    sent: int
    """Requests that left."""
    outcomes: dict[str, int]
    """How those ended: the lower-case names of `loadtest.samples.Ending`. Their sum is `sent`."""
    latency_s: Quantiles
    """From the instant a request was MEANT to leave to its whole answer. Outcome `ok` only, as for the next two."""
    service_latency_s: Quantiles
    """From the instant it really left."""
    rejection_latency_s: Quantiles
    """From the intended instant to the refusal, of the outcomes rejected_*."""
    ttft_s: Quantiles = Quantiles()
    """Time to first token, of streamed answers."""
    tpot_s: Quantiles = Quantiles()
    """Time per output token, of streamed answers."""
    throughput_rate: float
    """Outcome `ok`, by the measured seconds."""
    goodput_rate: float
    """Outcome `ok` within `slo_s` of the intended instant, by the measured seconds."""


class Report(Measures, frozen=True, kw_only=True):
    """The whole of report.json."""

    verdict: Literal["VALID", "INVALID"]
    reasons: list[str]
    """Why the run is INVALID; empty when it is VALID."""
    seed: int
    url: str
    arrivals: str
    offered_rate: float
    """Planned requests by the planned seconds."""
    duration_s: float
    """Of the planned schedule."""
    measured_s: float
    """Of the schedule that was offered: less than `duration_s` only when the run was interrupted. Rates divide by it."""
    planned: int
    dropped: int
    """Planned and not sent, since no connection was free or it was more than a second late."""
    slo_s: float
    statuses: dict[str, int]
    """Answers by HTTP status."""
    mismatched: int
    """2xx answers that do not belong to their question; the same as `outcomes.mismatched`."""
    duplicated: int
    """Answers to nothing, and answers whose id was seen before."""
    poison: Poison | None
    """Null where no poison was asked for."""
    tiers: dict[str, Measures]
    keys: dict[str, Measures]
    """By API key, the busiest 50. Keys that are not development keys are shortened and hashed."""
    num_keys: int
    """Keys in all, shown or not."""
    send_lag_s: SendLag
    generator_cpu_s: float
    generator_cpu_share: float
    """Of one core."""
    seconds: list[Window]
    """The run second by second, by intended instant."""

    @property
    def is_valid(self) -> bool:
        return self.verdict == "VALID"


def encode_report(report: Report) -> bytes:
    """report.json, with the verdict as its first lines."""
    fields = msgspec.to_builtins(report)
    return msgspec.json.format(msgspec.json.encode({name: fields[name] for name in _READ_FIRST} | fields), indent=2) + b"\n"


class Tally:
    """The raw samples of one key, or of several added together."""

    def __init__(self) -> None:
        self.endings: Counter[int] = Counter()
        self.latencies_s: list[float] = []
        self.service_latencies_s: list[float] = []
        self.rejection_latencies_s: list[float] = []

    @property
    def num_sent(self) -> int:
        return sum(num for ending, num in self.endings.items() if ending not in NOT_OUTCOMES)

    def add(self, other: "Tally") -> None:
        self.endings.update(other.endings)
        self.latencies_s += other.latencies_s
        self.service_latencies_s += other.service_latencies_s
        self.rejection_latencies_s += other.rejection_latencies_s

    def measures(self, *, slo_s: float, measured_s: float) -> Measures:
        return Measures(
            sent=self.num_sent,
            outcomes=_name_endings(self.endings),
            latency_s=quantiles(self.latencies_s),
            service_latency_s=quantiles(self.service_latencies_s),
            rejection_latency_s=quantiles(self.rejection_latencies_s),
            throughput_rate=len(self.latencies_s) / measured_s,
            goodput_rate=sum(latency_s <= slo_s for latency_s in self.latencies_s) / measured_s,
        )


def make_report(recording: Recording) -> Report:
    """Everything that report.json holds, from the raw samples."""
    plan, samples, measured_s = recording.plan, recording.samples, max(recording.measured_s, 1e-9)
    by_sender = tally_senders(samples)
    total, tiers = Tally(), {sender.tier: Tally() for sender in samples.senders}
    for sender, tally in zip(samples.senders, by_sender, strict=True):
        total.add(tally)
        tiers[sender.tier].add(tally)
    lags = quantiles(send_lags(samples))
    cpu_share = recording.generator_cpu_s / max(recording.wall_s, 1e-9)
    reasons = _doubts(recording, total, lags, cpu_share)
    whole = total.measures(slo_s=plan.slo_s, measured_s=measured_s)
    busiest = sorted(zip(samples.senders, by_sender, strict=True), key=lambda pair: -pair[1].num_sent)[:MAX_KEYS_SHOWN]
    return Report(
        verdict="INVALID" if reasons else "VALID",
        reasons=reasons,
        seed=plan.seed,
        url=plan.target.url,
        arrivals=plan.arrivals_name,
        offered_rate=len(samples) / plan.duration_s,
        duration_s=plan.duration_s,
        measured_s=recording.measured_s,
        planned=len(samples),
        dropped=total.endings[Ending.DROPPED],
        **{name: getattr(whole, name) for name in Measures.__struct_fields__},
        slo_s=plan.slo_s,
        statuses={str(status): num for status, num in sorted(Counter(samples.status).items()) if status},
        mismatched=total.endings[Ending.MISMATCHED],
        duplicated=samples.num_unasked + samples.num_repeated,
        poison=_report_poison(samples) if plan.poison_share else None,
        tiers={
            tier: tally.measures(slo_s=plan.slo_s, measured_s=measured_s) for tier, tally in sorted(tiers.items(), reverse=True)
        },
        keys={label_key(sender): tally.measures(slo_s=plan.slo_s, measured_s=measured_s) for sender, tally in busiest},
        num_keys=len(samples.senders),
        send_lag_s=SendLag(lags.p50, lags.p99, lags.max),
        generator_cpu_s=recording.generator_cpu_s,
        generator_cpu_share=cpu_share,
        seconds=windows(samples, width_s=SECOND_S, end_s=measured_s),
    )


def tally_senders(samples: Samples) -> list[Tally]:
    """The raw samples of each sender."""
    tallies = [Tally() for _ in samples.senders]
    rows = zip(samples.sender, samples.ending, samples.planned_at, samples.sent_at, samples.ended_at, strict=True)
    for sender, code, planned_at, sent_at, ended_at in rows:
        tally = tallies[sender]
        tally.endings[code] += 1
        if code == Ending.OK:
            tally.latencies_s.append(ended_at - planned_at)
            tally.service_latencies_s.append(ended_at - sent_at)
        elif code in REJECTIONS:
            tally.rejection_latencies_s.append(ended_at - planned_at)
    return tallies


def label_key(sender: Sender) -> str:
    """The key as a report may show it: reports are passed around, and a real key is a secret."""
    if sender.key.startswith("dev-"):
        return sender.key
    return f"{sender.key[:4]}...{hashlib.sha256(sender.key.encode()).hexdigest()[:8]}"


def _name_endings(endings: Counter[int]) -> dict[str, int]:
    return {
        ending.name.lower(): endings[ending]
        for ending in Ending
        if ending not in NOT_OUTCOMES and (endings[ending] or ending is Ending.OK)
    }


def _report_poison(samples: Samples) -> Poison:
    endings = Counter(code for code, is_poison in zip(samples.ending, samples.is_poison, strict=True) if is_poison)
    sent = sum(num for code, num in endings.items() if code not in NOT_OUTCOMES)
    return Poison(sent, endings[Ending.POISON_FAILED], endings[Ending.POISON_ANSWERED])


def _doubts(recording: Recording, total: Tally, lags: Quantiles, cpu_share: float) -> list[str]:
    """Why the figures tell of the generator and not of the server."""
    planned, dropped = len(recording.samples), total.endings[Ending.DROPPED]
    reasons = []
    if recording.is_interrupted:
        reasons.append(f"interrupted after {recording.measured_s:.1f} of {recording.plan.duration_s:g} s")
    if dropped:
        reasons.append(f"{dropped:,} sends were dropped: the generator had no free connection, or was over a second late")
    if total.num_sent < planned:
        reasons.append(f"sent {total.num_sent:,} of {planned:,} planned requests")
    if lags.p99 is not None and lags.p99 > MAX_SEND_LAG_P99_S:
        reasons.append(f"send lag p99 is {lags.p99 * 1e3:.1f} ms, more than {MAX_SEND_LAG_P99_S * 1e3:g}")
    if cpu_share > MAX_CPU_SHARE:
        reasons.append(f"the generator used {cpu_share:.0%} of its core, more than {MAX_CPU_SHARE:.0%}")
    return reasons
