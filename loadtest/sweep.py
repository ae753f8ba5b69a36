"""Finds the knee: the highest rate at which a server still meets its SLO.

Rates double until one fails, then the gap is halved until it is narrow. A step whose run is INVALID says nothing about the
server: it bounds the search as the generator's limit, and the result says so. (Raising the rate step by step was refused:
it takes as many runs as there are steps, and most of them far below the knee.)
"""

import time
from collections.abc import Callable
from enum import StrEnum

import msgspec

from batcher.errors import ConfigError
from loadtest.report import Report
from loadtest.stats import Quantiles

MAX_STEPS = 40


class Judgement(StrEnum):
    MET = "met"
    MISSED = "missed"
    INVALID = "invalid"


class Slo(msgspec.Struct, frozen=True):
    """What a step must keep: p95 (or another quantile) of good answers within `latency_s`, and few requests without one.

    A bound that is None is none. Of generated text, the same quantile of TTFT and of TPOT must be within theirs.
    """

    latency_s: float | None
    quantile: str = "p95"
    ok_share: float = 0.99
    ttft_s: float | None = None
    tpot_s: float | None = None

    def __post_init__(self) -> None:
        if self.quantile not in ("p50", "p90", "p95", "p99", "p999", "max"):
            raise ConfigError(f"the quantile must be one of p50, p90, p95, p99, p999, max, not {self.quantile!r}")
        if not 0.0 < self.ok_share <= 1.0:
            raise ConfigError(f"the share of good answers must be more than 0 and at most 1, not {self.ok_share}")

    def judge(self, report: Report) -> Judgement:
        if not report.is_valid:
            return Judgement.INVALID
        pairs = ((report.latency_s, self.latency_s), (report.ttft_s, self.ttft_s), (report.tpot_s, self.tpot_s))
        are_within = all(self._is_within(measured, bound_s) for measured, bound_s in pairs)
        return Judgement.MET if are_within and ok_share(report) >= self.ok_share else Judgement.MISSED

    def _is_within(self, measured: Quantiles, bound_s: float | None) -> bool:
        measured_s = getattr(measured, self.quantile)
        return bound_s is None or (measured_s is not None and measured_s <= bound_s)


class Step(msgspec.Struct, frozen=True):
    rate: float
    report: Report
    judgement: Judgement

    @property
    def ok_share(self) -> float:
        return ok_share(self.report)


class Knee(msgspec.Struct, frozen=True):
    """`rate` is the highest that met the SLO, None where none did. `bound_by` tells what stopped the search above it."""

    rate: float | None
    bound_by: Judgement
    """MISSED: the server; INVALID: the generator; MET: the highest rate allowed."""
    bound_rate: float

    def describe_limit(self) -> str:
        if self.bound_by is Judgement.MET:
            return "the highest rate asked for: the server's limit is above it"
        if self.bound_by is Judgement.INVALID:
            return f"the generator could not offer {self.bound_rate:,.0f}/s: the server's limit may be higher"
        return f"{self.bound_rate:,.0f}/s missed the SLO"


class Search:
    """Which rate to try next. `tell` it what came of the last one; then `next_rate` is another one, or None at the end."""

    def __init__(self, *, start_rate: float, max_rate: float, precision: float) -> None:
        if not 0.0 < start_rate <= max_rate:
            raise ConfigError(f"the start rate must be more than 0 and at most {max_rate:g}, not {start_rate:g}")
        if not 0.001 <= precision <= 1.0:
            raise ConfigError(f"the precision must be from 0.001 to 1, not {precision}")
        self._max_rate = max_rate
        self._precision = precision
        self._start_rate = start_rate
        self._highest_met: float | None = None
        self._lowest_not_met: tuple[float, Judgement] | None = None

    def next_rate(self) -> float | None:
        met, bound = self._highest_met, self._lowest_not_met
        if bound is None:
            if met is None:
                return self._start_rate
            return None if met >= self._max_rate else min(met * 2.0, self._max_rate)
        if met is None:
            # Even the start failed: halve, as far down as a sixty-fourth.
            return bound[0] / 2.0 if bound[0] > self._start_rate / 64.0 else None
        return None if bound[0] - met <= self._precision * bound[0] else (met + bound[0]) / 2.0

    def tell(self, rate: float, judgement: Judgement) -> None:
        if judgement is Judgement.MET:
            self._highest_met = max(rate, self._highest_met or 0.0)
        elif self._lowest_not_met is None or rate < self._lowest_not_met[0]:
            self._lowest_not_met = (rate, judgement)

    def knee(self) -> Knee:
        if self._lowest_not_met is None:
            return Knee(self._highest_met, Judgement.MET, self._max_rate)
        rate, judgement = self._lowest_not_met
        return Knee(self._highest_met, judgement, rate)


def sweep(
    measure: Callable[[float], Report], search: Search, slo: Slo, *, settle_s: float, on_step: Callable[[Step], None]
) -> Knee:
    """Run `measure(rate)` for each rate that the search asks for, with a pause after each for queues to empty.

    An INVALID step is tried once more, since a machine that was busy for a moment says nothing about the generator.
    Interrupting a step ends the sweep with what it knows.
    """
    for _ in range(MAX_STEPS):
        rate = search.next_rate()
        if rate is None:
            break
        for attempt in (1, 2):
            report = measure(rate)
            step = Step(rate, report, slo.judge(report))
            on_step(step)
            time.sleep(settle_s)
            if step.judgement is not Judgement.INVALID or attempt == 2 or _is_interrupted(report):
                break
        if _is_interrupted(report):
            break
        search.tell(rate, step.judgement)
    return search.knee()


def ok_share(report: Report) -> float:
    """Good answers, as a part of what was sent."""
    return report.outcomes["ok"] / max(report.sent, 1)


def _is_interrupted(report: Report) -> bool:
    return report.measured_s < report.duration_s
