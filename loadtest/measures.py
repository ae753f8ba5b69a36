"""What the whole run, each tier and each key are measured by, from the raw rows.

One pass over the rows fills a tally for each key, and tallies add up, so that a figure of a tier is made of samples and
never of other figures. Only good answers are in a latency, a TTFT, a gap or a count of tokens: a fast refusal must not
improve a percentile, and a stream that broke off has no pace.
"""

from array import array
from collections import Counter

import msgspec

from loadtest.samples import NOT_OUTCOMES, REJECTIONS, Ending, Samples
from loadtest.stats import Quantiles, quantiles
from loadtest.tokens import StopReason, Tokens


class TokenCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of good answers, by the server's own count. Rates divide by the seconds until the last good answer of the run,
    and by no less than the measured ones: tokens that came after the schedule's end took that time, too."""

    input: int
    output: int
    output_rate: float
    total_rate: float
    gaps_left_out: int
    """Gaps that are not in `gap_s`, since the run had more than can be kept."""


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
    """Time to first token, of streamed answers: from the intended instant to the first event with text."""
    tpot_s: Quantiles = Quantiles()
    """Time per output token, of streamed answers: one mean per answer, (last text - first text) / (output tokens - 1)."""
    gap_s: Quantiles = Quantiles()
    """Between two events with text, of all streamed answers together. The TTFT is not in it."""
    tokens: TokenCounts | None = None
    """Null where no good answer told its usage."""
    stop_reasons: dict[str, int] | None = None
    """Why good answers ended; null as `tokens`."""
    throughput_rate: float
    """Outcome `ok`, by the measured seconds."""
    goodput_rate: float
    """Outcome `ok` within `slo_s` of the intended instant (and within the SLOs of TTFT and TPOT, where there are any), by
    the measured seconds."""


class Slos(msgspec.Struct, frozen=True):
    """Seconds that count as good; None: any."""

    latency_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None

    def admit(self, latency_s: float, ttft_s: float | None, tpot_s: float | None) -> bool:
        """Whether nothing that was measured is over its bound."""
        pairs = ((latency_s, self.latency_s), (ttft_s, self.ttft_s), (tpot_s, self.tpot_s))
        return all(value is None or bound is None or value <= bound for value, bound in pairs)


class Tally:
    """The raw samples of one key, or of several added together."""

    def __init__(self) -> None:
        self.endings: Counter[int] = Counter()
        self.latencies_s: list[float] = []
        self.service_latencies_s: list[float] = []
        self.rejection_latencies_s: list[float] = []
        self.ttfts_s: list[float] = []
        self.tpots_s: list[float] = []
        self.gaps_s: array[float] = array("f")
        self.max_gap_s = 0.0
        self.stop_reasons: Counter[int] = Counter()
        self.num_input_tokens = 0
        self.num_output_tokens = 0
        self.num_gaps_left_out = 0
        self.num_good = 0

    @property
    def num_sent(self) -> int:
        return sum(num for ending, num in self.endings.items() if ending not in NOT_OUTCOMES)

    def add(self, other: "Tally") -> None:
        self.endings.update(other.endings)
        self.latencies_s += other.latencies_s
        self.service_latencies_s += other.service_latencies_s
        self.rejection_latencies_s += other.rejection_latencies_s
        self.ttfts_s += other.ttfts_s
        self.tpots_s += other.tpots_s
        self.gaps_s += other.gaps_s
        self.max_gap_s = max(self.max_gap_s, other.max_gap_s)
        self.stop_reasons.update(other.stop_reasons)
        self.num_input_tokens += other.num_input_tokens
        self.num_output_tokens += other.num_output_tokens
        self.num_gaps_left_out += other.num_gaps_left_out
        self.num_good += other.num_good

    def add_good(self, latency_s: float, service_latency_s: float, slos: Slos) -> None:
        """One good answer of an endpoint that generates no text."""
        self.latencies_s.append(latency_s)
        self.service_latencies_s.append(service_latency_s)
        self.num_good += slos.latency_s is None or latency_s <= slos.latency_s

    def add_generated(
        self, latency_s: float, service_latency_s: float, slos: Slos, tokens: Tokens, row: int, planned_at: float
    ) -> None:
        """One good answer of generated text, in row `row`."""
        ttft_s, tpot_s = tokens.ttft_s(row, planned_at), tokens.tpot_s(row)
        self.latencies_s.append(latency_s)
        self.service_latencies_s.append(service_latency_s)
        self.num_good += slos.admit(latency_s, ttft_s, tpot_s)
        if ttft_s is not None:
            self.ttfts_s.append(ttft_s)
        if tpot_s is not None:
            self.tpots_s.append(tpot_s)
        self.gaps_s += tokens.gaps_of(row)
        self.max_gap_s = max(self.max_gap_s, tokens.max_gap_s[row])
        self.num_gaps_left_out += max(tokens.num_deltas[row] - 1, 0) - tokens.num_gaps[row]
        self.stop_reasons[tokens.stop_reason[row]] += 1
        self.num_input_tokens += tokens.input_tokens[row]
        self.num_output_tokens += tokens.output_tokens[row]

    def measures(self, *, measured_s: float, until_s: float) -> Measures:
        """`until_s` is the instant of the run's last good answer."""
        gap_s = quantiles(self.gaps_s)
        if self.num_gaps_left_out:
            gap_s = msgspec.structs.replace(gap_s, max=max(gap_s.max or 0.0, self.max_gap_s))
        return Measures(
            sent=self.num_sent,
            outcomes=_name_endings(self.endings),
            latency_s=quantiles(self.latencies_s),
            service_latency_s=quantiles(self.service_latencies_s),
            rejection_latency_s=quantiles(self.rejection_latencies_s),
            ttft_s=quantiles(self.ttfts_s),
            tpot_s=quantiles(self.tpots_s),
            gap_s=gap_s,
            tokens=self._count_tokens(max(measured_s, until_s)) if self.stop_reasons else None,
            stop_reasons=_name_stops(self.stop_reasons) if self.stop_reasons else None,
            throughput_rate=len(self.latencies_s) / measured_s,
            goodput_rate=self.num_good / measured_s,
        )

    def _count_tokens(self, seconds: float) -> TokenCounts:
        return TokenCounts(
            input=self.num_input_tokens,
            output=self.num_output_tokens,
            output_rate=self.num_output_tokens / seconds,
            total_rate=(self.num_input_tokens + self.num_output_tokens) / seconds,
            gaps_left_out=self.num_gaps_left_out,
        )


def tally_senders(samples: Samples, slos: Slos) -> list[Tally]:
    """The raw samples of each sender."""
    tallies = [Tally() for _ in samples.senders]
    tokens = samples.tokens
    rows = zip(samples.sender, samples.ending, samples.planned_at, samples.sent_at, samples.ended_at, strict=True)
    for row, (sender, code, planned_at, sent_at, ended_at) in enumerate(rows):
        tally = tallies[sender]
        tally.endings[code] += 1
        if code == Ending.OK and tokens is None:
            tally.add_good(ended_at - planned_at, ended_at - sent_at, slos)
        elif code == Ending.OK and tokens is not None:
            tally.add_generated(ended_at - planned_at, ended_at - sent_at, slos, tokens, row, planned_at)
        elif code in REJECTIONS:
            tally.rejection_latencies_s.append(ended_at - planned_at)
    return tallies


def last_good_at(samples: Samples) -> float:
    """The instant of the last good answer, 0 where there is none."""
    rows = zip(samples.ended_at, samples.ending, strict=True)
    return max((ended_at for ended_at, code in rows if code == Ending.OK), default=0.0)


def _name_endings(endings: Counter[int]) -> dict[str, int]:
    return {
        ending.name.lower(): endings[ending]
        for ending in Ending
        if ending not in NOT_OUTCOMES and (endings[ending] or ending is Ending.OK)
    }


def _name_stops(stops: Counter[int]) -> dict[str, int]:
    return {reason.name.lower(): stops[reason] for reason in StopReason if reason is not StopReason.NONE}
