"""report.json: what a run measured, and whether it may be believed. Every key is documented beside its field.

The shape is stable: keys may be added, none changes its meaning. A generator that could not keep its schedule has
measured itself, so the verdict comes first, and INVALID figures must not be read as the server's.
"""

import hashlib
from collections import Counter
from typing import Literal

import msgspec

from batcher.sim.workload import Sender
from loadtest.measures import Measures, Slos, Tally, last_good_at, tally_senders
from loadtest.runner import Recording
from loadtest.samples import NOT_OUTCOMES, Ending, Samples
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


class Report(Measures, frozen=True, kw_only=True):
    """The whole of report.json."""

    verdict: Literal["VALID", "INVALID"]
    reasons: list[str]
    """Why the run is INVALID; empty when it is VALID."""
    seed: int
    url: str
    arrivals: str
    offered_rate: float
    """Planned requests by the planned seconds. In a closed loop the answers decided it."""
    duration_s: float
    """Of the planned schedule; of a closed loop what it took."""
    measured_s: float
    """Of the schedule that was offered: less than `duration_s` only when the run was interrupted. Rates divide by it."""
    planned: int
    dropped: int
    """Planned and not sent, since no connection was free or it was more than a second late."""
    slo_s: float | None
    """Null where any latency is good, and only the SLOs of the tokens count."""
    slo_ttft_s: float | None = None
    slo_tpot_s: float | None = None
    loop: Literal["open", "closed"] = "open"
    """Open: requests left by a schedule. Closed: each user waited for the last answer, so latency is not corrected for
    those who would have asked meanwhile."""
    concurrency: int | None = None
    """Users of the closed loop; null in an open one."""
    statuses: dict[str, int]
    """Answers by HTTP status."""
    first_error: str | None = None
    """Status and text of the first error that the server itself gave (a 504, another 5xx, 4xx or 3xx, or an error event),
    cut to some 200 characters; null where there was none."""
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


def make_report(recording: Recording) -> Report:
    """Everything that report.json holds, from the raw samples."""
    plan, samples, measured_s = recording.plan, recording.samples, max(recording.measured_s, 1e-9)
    is_closed = plan.concurrency is not None
    duration_s = measured_s if is_closed else plan.duration_s
    by_sender = tally_senders(samples, Slos(plan.slo_s, plan.slo_ttft_s, plan.slo_tpot_s))
    until_s = last_good_at(samples)
    total, tiers = Tally(), {sender.tier: Tally() for sender in samples.senders}
    for sender, tally in zip(samples.senders, by_sender, strict=True):
        total.add(tally)
        tiers[sender.tier].add(tally)
    lags = quantiles(send_lags(samples))
    cpu_share = recording.generator_cpu_s / max(recording.wall_s, 1e-9)
    reasons = _doubts(recording, total, lags, cpu_share)
    whole = total.measures(measured_s=measured_s, until_s=until_s)
    busiest = sorted(zip(samples.senders, by_sender, strict=True), key=lambda pair: -pair[1].num_sent)[:MAX_KEYS_SHOWN]
    return Report(
        verdict="INVALID" if reasons else "VALID",
        reasons=reasons,
        seed=plan.seed,
        url=plan.target.url,
        arrivals=plan.arrivals_name,
        offered_rate=len(samples) / duration_s,
        duration_s=duration_s,
        measured_s=recording.measured_s,
        planned=len(samples),
        dropped=total.endings[Ending.DROPPED],
        **{name: getattr(whole, name) for name in Measures.__struct_fields__},
        slo_s=plan.slo_s,
        slo_ttft_s=plan.slo_ttft_s,
        slo_tpot_s=plan.slo_tpot_s,
        loop="closed" if is_closed else "open",
        concurrency=plan.concurrency,
        statuses={str(status): num for status, num in sorted(Counter(samples.status).items()) if status},
        first_error=_hide_keys(samples) or None,
        mismatched=total.endings[Ending.MISMATCHED],
        duplicated=samples.num_unasked + samples.num_repeated,
        poison=_report_poison(samples) if plan.poison_share else None,
        tiers={
            tier: tally.measures(measured_s=measured_s, until_s=until_s) for tier, tally in sorted(tiers.items(), reverse=True)
        },
        keys={label_key(sender): tally.measures(measured_s=measured_s, until_s=until_s) for sender, tally in busiest},
        num_keys=len(samples.senders),
        send_lag_s=SendLag(lags.p50, lags.p99, lags.max),
        generator_cpu_s=recording.generator_cpu_s,
        generator_cpu_share=cpu_share,
        seconds=windows(samples, width_s=SECOND_S, end_s=measured_s),
    )


def label_key(sender: Sender) -> str:
    """The key as a report may show it: reports are passed around, and a real key is a secret."""
    if not sender.key or sender.key.startswith("dev-"):
        return sender.key or "all"
    return f"{sender.key[:4]}...{hashlib.sha256(sender.key.encode()).hexdigest()[:8]}"


def _hide_keys(samples: Samples) -> str:
    """The first error without the key that it may quote."""
    text = samples.first_error
    for sender in samples.senders:
        text = text.replace(sender.key, label_key(sender)) if sender.key else text
    return text


def _report_poison(samples: Samples) -> Poison:
    endings = Counter(code for code, is_poison in zip(samples.ending, samples.is_poison, strict=True) if is_poison)
    sent = sum(num for code, num in endings.items() if code not in NOT_OUTCOMES)
    return Poison(sent, endings[Ending.POISON_FAILED], endings[Ending.POISON_ANSWERED])


def _doubts(recording: Recording, total: Tally, lags: Quantiles, cpu_share: float) -> list[str]:
    """Why the figures tell of the generator and not of the server."""
    planned, dropped = len(recording.samples), total.endings[Ending.DROPPED]
    reasons = []
    if recording.is_interrupted:
        num_requests = recording.plan.num_requests
        whole = (
            f"of {recording.plan.duration_s:g} s"
            if num_requests is None
            else f"s: {total.num_sent:,} of {num_requests:,} requests"
        )
        reasons.append(f"interrupted after {recording.measured_s:.1f} {whole}")
    if dropped:
        reasons.append(f"{dropped:,} sends were dropped: the generator had no free connection, or was over a second late")
    if total.num_sent < planned:
        reasons.append(f"sent {total.num_sent:,} of {planned:,} planned requests")
    if lags.p99 is not None and lags.p99 > MAX_SEND_LAG_P99_S:
        reasons.append(f"send lag p99 is {lags.p99 * 1e3:.1f} ms, more than {MAX_SEND_LAG_P99_S * 1e3:g}")
    if cpu_share > MAX_CPU_SHARE:
        reasons.append(f"the generator used {cpu_share:.0%} of its core, more than {MAX_CPU_SHARE:.0%}")
    return reasons
