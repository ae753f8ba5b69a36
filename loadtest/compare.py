"""Offers the same traffic to several servers in turn, and tells how they differ.

One plan and one seed, so that the requests are the same to the letter; one server at a time, so that none takes the
machine from another. A machine drifts, so with several rounds the servers take turns (A B A B), and a figure is the median
of its rounds with their range: a difference within the range is none.
"""

import contextlib
import shlex
import signal
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence

import msgspec

from batcher.errors import ConfigError
from loadtest.outcomes import count_errors, count_refused
from loadtest.plan import Plan
from loadtest.report import Report, make_report
from loadtest.runner import Recording, run
from loadtest.scenarios.server import running

MAX_SERVERS, MAX_ROUNDS, MAX_WARMUP = 32, 100, 10_000
WARMUP_USERS = 4
_WARMUP_SEED = 2**40
"""Added to the run's seed: the warm-up must not fill a prefix cache with the prompts that are measured."""


class Contender(msgspec.Struct, frozen=True):
    """A server to measure: a command that starts it, or the URL where it runs."""

    name: str
    spelling: str
    command: tuple[str, ...] = ()
    url: str = ""

    @contextlib.contextmanager
    def serving(self, start_timeout_s: float) -> Iterator[str]:
        """Its URL, while the block lasts. Raises `ServerFailed`."""
        if self.url:
            yield self.url
            return
        with running(self.command, start_timeout_s=start_timeout_s) as server:
            yield server.url


def parse_contender(text: str) -> Contender:
    """What `NAME=URL` or `NAME=COMMAND ARGS...` names. Raises `ConfigError`.

    `batcher` is this installation's own. A `batcher serve` without a port gets one from the system; another command must
    say where it listens in one line of JSON, as `batcher serve` does: `{"event": "listening", "url": ...}`.
    """
    name, equals, rest = (part.strip() for part in text.partition("="))
    if not name or not equals or not rest:
        raise ConfigError(f"a server is written NAME=COMMAND or NAME=URL, not {text!r}")
    if rest.startswith(("http://", "https://")):
        return Contender(name, rest, url=rest)
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise ConfigError(f"the command of server {name!r}: {error}") from None
    if words[0] == "batcher":
        if words[1:2] == ["serve"] and not any(word.split("=")[0] == "--port" for word in words):
            words += ["--port", "0"]
        words = [sys.executable, "-m", *words]
    return Contender(name, rest, command=tuple(words))


class Figure(msgspec.Struct, frozen=True):
    """One column of the comparison."""

    key: str
    title: str
    unit: str
    read: Callable[[Report], float | None]
    is_small_better: bool = True


def _read_ms(block: str, quantile: str) -> Callable[[Report], float | None]:
    def read(report: Report) -> float | None:
        seconds = getattr(getattr(report, block), quantile)
        return None if seconds is None else float(seconds) * 1e3

    return read


def _output_token_rate(report: Report) -> float | None:
    return None if report.tokens is None else report.tokens.output_rate


FIGURES = (
    Figure("ok", "ok", "", lambda report: report.outcomes["ok"], is_small_better=False),
    Figure("refused", "refused", "", count_refused),
    Figure("errors", "errors", "", count_errors),
    Figure("latency_p50_ms", "latency p50", "ms", _read_ms("latency_s", "p50")),
    Figure("latency_p95_ms", "latency p95", "ms", _read_ms("latency_s", "p95")),
    Figure("ttft_p50_ms", "TTFT p50", "ms", _read_ms("ttft_s", "p50")),
    Figure("ttft_p95_ms", "TTFT p95", "ms", _read_ms("ttft_s", "p95")),
    Figure("tpot_p50_ms", "TPOT p50", "ms", _read_ms("tpot_s", "p50")),
    Figure("tpot_p95_ms", "TPOT p95", "ms", _read_ms("tpot_s", "p95")),
    Figure("output_token_rate", "output tokens", "/s", _output_token_rate, is_small_better=False),
    Figure("goodput_rate", "good", "/s", lambda report: report.goodput_rate, is_small_better=False),
)


class Spread(msgspec.Struct, frozen=True):
    """One figure of one server over its rounds; null where nothing was measured."""

    median: float | None
    low: float | None
    high: float | None
    rounds: list[float | None]
    ratio: float | None
    """The median by the first server's; null where either is missing, or the first's is 0."""


class Standing(msgspec.Struct, frozen=True):
    """One server's part of the comparison."""

    name: str
    server: str
    verdicts: list[str]
    figures: dict[str, Spread]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """compare.json. `reasons` says which runs may not be believed, and whether some are missing."""

    seed: int
    arrivals: str
    duration_s: float
    num_rounds: int
    reasons: list[str]
    servers: list[Standing]


Measure = Callable[[Plan], Recording]
OnRun = Callable[[Contender, int, Recording, Report], None]


def compare(
    contenders: Sequence[Contender],
    plan_for: Callable[[str], Plan],
    *,
    num_rounds: int,
    num_warmup: int,
    start_timeout_s: float,
    on_run: OnRun,
    measure: Measure = run,
) -> Comparison:
    """Measure each server in each round, one at a time; `plan_for` makes the plan for a URL.

    Ends early, with what was measured, when a run is interrupted. Raises `ConfigError` for what cannot be compared,
    `ServerFailed` for a server that does not start and `CannotConnect` for one that is not there: none is left running.
    """
    _check(contenders, num_rounds, num_warmup)
    reports: dict[str, list[Report]] = {contender.name: [] for contender in contenders}
    for number, contender in ((number, contender) for number in range(1, num_rounds + 1) for contender in contenders):
        with contender.serving(start_timeout_s) as url:
            plan = plan_for(url)
            if num_warmup and measure(_warmup_plan(plan, num_warmup)).is_interrupted:
                break
            recording = measure(plan)
        report = make_report(recording)
        reports[contender.name].append(report)
        on_run(contender, number, recording, report)
        if recording.is_interrupted:
            break
    return _make_comparison([contender for contender in contenders if reports[contender.name]], reports, plan, num_rounds)


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM is a Ctrl-C while the block lasts: by default it would end this process and leave the server running."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check(contenders: Sequence[Contender], num_rounds: int, num_warmup: int) -> None:
    if not 1 <= len(contenders) <= MAX_SERVERS:
        raise ConfigError(f"from 1 to {MAX_SERVERS} servers, not {len(contenders)}")
    if len({contender.name for contender in contenders}) < len(contenders):
        raise ConfigError("two servers have one name")
    if not 1 <= num_rounds <= MAX_ROUNDS:
        raise ConfigError(f"from 1 to {MAX_ROUNDS} rounds, not {num_rounds}")
    if not 0 <= num_warmup <= MAX_WARMUP:
        raise ConfigError(f"from 0 to {MAX_WARMUP:,} requests of warm-up, not {num_warmup}")


def _warmup_plan(plan: Plan, num_warmup: int) -> Plan:
    """A few requests of the same kind, a few at a time, that are not measured."""
    return msgspec.structs.replace(
        plan, arrivals=None, concurrency=min(WARMUP_USERS, num_warmup), num_requests=num_warmup, seed=plan.seed + _WARMUP_SEED
    )


def _make_comparison(
    measured: Sequence[Contender], reports: dict[str, list[Report]], plan: Plan, num_rounds: int
) -> Comparison:
    first = reports[measured[0].name] if measured else []
    standings = [
        Standing(
            contender.name,
            contender.spelling,
            [report.verdict for report in reports[contender.name]],
            {figure.key: _spread(figure, reports[contender.name], first) for figure in FIGURES},
        )
        for contender in measured
    ]
    reasons = [
        f"{contender.name}, round {number}: {reason}"
        for contender in measured
        for number, report in enumerate(reports[contender.name], start=1)
        for reason in report.reasons
    ]
    num_measured = sum(len(reports[contender.name]) for contender in measured)
    if num_measured < num_rounds * len(reports):
        reasons.append(f"interrupted after {num_measured} of {num_rounds * len(reports)} runs")
    return Comparison(
        seed=plan.seed,
        arrivals=plan.arrivals_name,
        duration_s=plan.duration_s,
        num_rounds=num_rounds,
        reasons=reasons,
        servers=standings,
    )


def _spread(figure: Figure, reports: Sequence[Report], first: Sequence[Report]) -> Spread:
    values = [figure.read(report) for report in reports]
    median, base = _median(values), _median([figure.read(report) for report in first])
    known = [value for value in values if value is not None]
    ratio = median / base if median is not None and base else None
    return Spread(median, min(known, default=None), max(known, default=None), values, ratio)


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
