"""Shows a run while it lasts: a live panel on a terminal, one line a second anywhere else.

It works once a second on what the last second left behind, so it costs the generator well under a percent.
"""

import sys
from types import TracebackType
from typing import Protocol, Self

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from loadtest.samples import NOT_ERRORS, REJECTIONS, Ending
from loadtest.stats import quantile


class Beat(msgspec.Struct, frozen=True):
    """What there is to show after one more second."""

    now: float
    duration_s: float
    num_requests: int | None
    """A closed loop's own end; None where the duration alone is."""
    num_turned: int
    num_pending: int
    counts: list[int]
    """By `Ending`, since the start."""
    latencies_s: list[float]
    """Of the last second's good answers."""


class Progress(Protocol):
    """Whoever wants to know how a run goes. Entered when it starts, left when it ends."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None: ...

    def show(self, beat: Beat) -> None: ...


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def show(self, beat: Beat) -> None:
        return None


class Lines(Silent):
    """One line a second, on standard error."""

    def show(self, beat: Beat) -> None:
        print(describe_beat(beat), file=sys.stderr, flush=True)


class Panel(Silent):
    """A bar and one line of figures that stay in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def show(self, beat: Beat) -> None:
        done, whole = (beat.now, beat.duration_s) if beat.num_requests is None else (sum(beat.counts), beat.num_requests)
        bar = ProgressBar(total=whole, completed=min(done, whole), width=60)
        self._live.update(Group(bar, Text(describe_beat(beat))), refresh=True)


def choose_progress() -> Progress:
    """What fits where standard error goes."""
    console = Console(stderr=True)
    return Panel(console) if console.is_terminal else Lines()


def describe_beat(beat: Beat) -> str:
    latencies_s = sorted(beat.latencies_s)
    figures = (
        "  ".join(f"{name} {quantile(latencies_s, permille) * 1e3:.0f} ms" for name, permille in _SHOWN)
        if latencies_s
        else "no answer"
    )
    num_rejected = sum(beat.counts[ending] for ending in REJECTIONS)
    num_errors = sum(num for ending, num in zip(Ending, beat.counts, strict=True) if ending not in NOT_ERRORS)
    if beat.num_requests is None:
        words = [f"{beat.now:5.1f} s of {beat.duration_s:g}", f"sent {beat.num_turned:,}"]
    else:
        words = [f"{beat.now:5.1f} s", f"{sum(beat.counts):,} of {beat.num_requests:,} requests"]
    words += [
        f"{len(latencies_s):,} ok/s",
        figures,
        f"waiting {beat.num_pending:,}",
    ]
    words += [f"{name} {num:,}" for name, num in (("refused", num_rejected), ("errors", num_errors)) if num]
    if beat.counts[Ending.DROPPED]:
        words.append(f"DROPPED {beat.counts[Ending.DROPPED]:,}")
    return " · ".join(words)


_SHOWN = (("p50", 500), ("p95", 950), ("p99", 990))
