"""What every scenario is made of: figures with bars, and a bench that offers traffic and remembers whether to believe it."""

import math
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from batcher.sim.workload import Arrivals, Mix
from loadtest.console import print_report
from loadtest.files import save_run
from loadtest.plan import Plan, parse_mix
from loadtest.progress import choose_progress
from loadtest.render import render
from loadtest.report import Report, make_report
from loadtest.runner import Action, run
from loadtest.samples import Samples
from loadtest.target import Check, Target, run_target

DEFAULT_MIX = parse_mix("paid=0.2,free=0.8")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One number that a scenario measured, and what it must be. Without a bar it is told for its own sake."""

    name: str
    value: float | None
    """None where nothing was measured: then no bar is met."""
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None

    @property
    def bar(self) -> str:
        parts = [f"{sign} {limit:,g}" for sign, limit in (("≤", self.at_most), ("≥", self.at_least)) if limit is not None]
        return " and ".join(parts)

    @property
    def is_met(self) -> bool | None:
        """None without a bar."""
        if self.at_most is None and self.at_least is None:
            return None
        low, high = self.at_least, self.at_most
        return self.value is not None and (-math.inf if low is None else low) <= self.value <= (
            math.inf if high is None else high
        )


class Measured(msgspec.Struct, frozen=True):
    report: Report
    samples: Samples


class Bench:
    """Offers traffic for one scenario. `doubts` collects the INVALID runs."""

    def __init__(self, console: Console, *, duration_s: float, seed: int, out: Path | None) -> None:
        self.console = console
        self.duration_s = duration_s
        self.seed = seed
        self.doubts: list[str] = []
        self._out = out

    def run(
        self,
        name: str,
        url: str,
        arrivals: Arrivals,
        *,
        duration_s: float | None = None,
        mix: Mix = DEFAULT_MIX,
        check: Check = Check.ECHO,
        target: Target | None = None,
        poison_share: float = 0.0,
        poison_from_s: float = 0.0,
        poison_to_s: float = math.inf,
        actions: Sequence[Action] = (),
    ) -> Measured:
        """Offer one run's traffic, tell its report, and keep it below the output folder. What is asked is `target`, by itself
        `POST /v1/run` at the URL with this check."""
        self.say(f"\n[bold]{name}[/bold]")
        plan = msgspec.structs.replace(
            self._plan(url, arrivals, duration_s or self.duration_s),
            target=target or run_target(url, check=check),
            mix=mix,
            poison_share=poison_share,
            poison_from_s=poison_from_s,
            poison_to_s=poison_to_s,
        )
        recording = run(plan, progress=choose_progress(), actions=actions)
        report = make_report(recording)
        print_report(self.console, report)
        self.doubts += [f"{name}: {reason}" for reason in report.reasons]
        if self._out is not None:
            folder = self._out / "".join(letter if letter.isalnum() else "-" for letter in name)
            save_run(folder, report, recording.samples)
            render(folder, report, recording.samples)
        return Measured(report, recording.samples)

    def measure_quietly(self, url: str, arrivals: Arrivals, *, duration_s: float) -> Report:
        """One step of a search: nothing is told or kept, and an INVALID run is the search's business."""
        return make_report(run(self._plan(url, arrivals, duration_s)))

    def _plan(self, url: str, arrivals: Arrivals, duration_s: float) -> Plan:
        return Plan(
            target=run_target(url),
            arrivals=arrivals,
            arrivals_name=type(arrivals).__name__.lower(),
            mix=DEFAULT_MIX,
            duration_s=duration_s,
            seed=self.seed,
        )

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)


class Scenario(msgspec.Struct, frozen=True):
    """`measure` does the work; `duration_s` is how long its traffic lasts unless another length is asked for."""

    name: str
    title: str
    duration_s: float
    measure: Callable[[Bench], list[Figure]]


def serve_arguments(*, num_workers: int, isolation: str = "inline", extra: Sequence[str] = ()) -> list[str]:
    """The command line of a batch-mode server on simulated GPUs that take 0.2 s a batch, as SPEC S1.1 has them."""
    options = {
        "--port": "0",
        "--backend": "simulated",
        "--workers": str(num_workers),
        "--isolation": isolation,
        "--policy": "paced",
        "--max-batch-size": "50",
        "--batch-timeout": "0.15",
        "--service-time": "0.2",
    }
    return ["serve", *(word for option in options.items() for word in option), *extra]


def print_figures(console: Console, scenario: Scenario, figures: Sequence[Figure], doubts: Sequence[str]) -> None:
    table = Table(title=f"{scenario.name.upper()}  {scenario.title}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("figure")
    table.add_column("measured", justify="right")
    table.add_column("")
    table.add_column("bar", justify="right")
    table.add_column("")
    for figure in figures:
        value = "–" if figure.value is None else f"{figure.value:,.4g}" if abs(figure.value) < 1000 else f"{figure.value:,.0f}"
        met = {None: "", True: "[green]met[/green]", False: "[bold red]MISSED[/bold red]"}[figure.is_met]
        table.add_row(figure.name, value, figure.unit, figure.bar, met)
    console.print()
    console.print(table)
    console.print(f"on {platform.machine()}, Python {platform.python_version()}", style="dim", highlight=False)
    for doubt in doubts:
        console.print(f"INVALID  {doubt}", style="red", highlight=False)


def to_ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
