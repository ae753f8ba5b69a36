"""The command line: `loadtest run | sweep | compare | report | scenario`.

Exit codes: 0 all is well, 1 a bar was missed, 2 it could not be run, 3 the measurement is INVALID.
"""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.markup import escape

from batcher.errors import BatcherError
from batcher.version import Version
from loadtest.compare import Contender, compare, parse_contender, sigterm_as_interrupt
from loadtest.compare_output import print_comparison, write_comparison
from loadtest.console import print_knee, print_report, print_step
from loadtest.files import load_run, save_run
from loadtest.options import Out, Spelled, spelled
from loadtest.plan import Plan
from loadtest.progress import choose_progress
from loadtest.render import render
from loadtest.report import Report, make_report
from loadtest.runner import Recording, run
from loadtest.scenarios.catalogue import SCENARIOS, run_scenario
from loadtest.spelling import make_plan
from loadtest.sweep import Search, Slo, sweep

INVALID_EXIT = 3

app = typer.Typer(
    help="Offers traffic to an HTTP service on a fixed schedule, and says honestly what came of it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def loadtest(version: Version = False) -> None:
    pass


@app.command("run")
@spelled()
def run_command(what: Spelled, out: Out = None) -> None:
    """Offer traffic for a while and report. Ctrl-C ends it early, with a report of what was measured."""
    report = _run_and_report(make_plan(what), out)
    raise typer.Exit(0 if report.is_valid else INVALID_EXIT)


@app.command("sweep")
@spelled("rate", "keys", "speed_up", "concurrency", "num_requests", "poison_share", "poison_prefix", duration_s=5.0)
def sweep_command(
    what: Spelled,
    quantile: Annotated[str, typer.Option(help="The quantile that must be within the SLO.")] = "p95",
    ok_share: Annotated[float, typer.Option(help="Part of the requests that must get a good answer.")] = 0.99,
    start_rate: Annotated[float, typer.Option(help="The first rate to try.")] = 250.0,
    max_rate: Annotated[float, typer.Option(help="The highest rate to try.")] = 20_000.0,
    precision: Annotated[float, typer.Option(help="Stop when the knee is known to this part of itself.")] = 0.05,
    settle: Annotated[float, typer.Option(help="Seconds of rest after each step.")] = 1.0,
) -> None:
    """Find the highest rate that meets an SLO."""
    console = Console()
    plan = make_plan(what)
    knee = sweep(
        lambda rate: make_report(run(make_plan(msgspec.structs.replace(what, rate=rate)))),
        Search(start_rate=start_rate, max_rate=max_rate, precision=precision),
        Slo(plan.slo_s, quantile, ok_share, ttft_s=plan.slo_ttft_s, tpot_s=plan.slo_tpot_s),
        settle_s=settle,
        on_step=lambda step: print_step(console, step),
    )
    print_knee(console, knee)
    raise typer.Exit(0 if knee.rate is not None else 1)


@app.command("compare")
@spelled("url")
def compare_command(
    what: Spelled,
    server: Annotated[
        list[str], typer.Option(help="NAME=COMMAND that starts it, such as 'paged=batcher serve ...', or NAME=URL. Repeatable.")
    ],
    rounds: Annotated[int, typer.Option(help="Measure each so often, taking turns.")] = 1,
    warmup: Annotated[int, typer.Option(help="Requests before each run that are not measured.")] = 4,
    start_timeout: Annotated[float, typer.Option(help="Seconds until a server that is not ready has failed.")] = 180.0,
    out: Annotated[Path | None, typer.Option(help="Folder for the comparison, and a folder in it for each run.")] = None,
) -> None:
    """Offer the same traffic to several servers in turn, each started for it and stopped after it."""
    console = Console()

    def tell(contender: Contender, number: int, recording: Recording, report: Report) -> None:
        console.print(f"[bold]{escape(contender.name)}[/bold], round {number}: {report.outcomes['ok']:,} ok", highlight=False)
        if out is not None:
            folder = out / f"{''.join(letter if letter.isalnum() else '-' for letter in contender.name)}-{number}"
            save_run(folder, report, recording.samples)
            render(folder, report, recording.samples)

    with sigterm_as_interrupt():
        comparison = compare(
            [parse_contender(text) for text in server],
            lambda url: make_plan(msgspec.structs.replace(what, url=url)),
            num_rounds=rounds,
            num_warmup=warmup,
            start_timeout_s=start_timeout,
            on_run=tell,
        )
    print_comparison(console, comparison)
    if out is not None:
        _say_where(console, *write_comparison(out, comparison))
    raise typer.Exit(INVALID_EXIT if comparison.reasons else 0)


@app.command("report")
def report_command(folder: Annotated[Path, typer.Argument(help="A folder that `run --out` wrote.")]) -> None:
    """Draw a saved run again."""
    report, samples = load_run(folder)
    console = Console()
    print_report(console, report)
    _say_where(console, *render(folder, report, samples))


@app.command("scenario")
def scenario_command(
    name: Annotated[str | None, typer.Argument(help="Such as b1.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Say which there are.")] = False,
    duration: Annotated[float | None, typer.Option(help="Seconds of traffic, instead of the scenario's own.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the whole traffic.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder for the figures, and a folder in it for each run.")] = None,
) -> None:
    """Start batcher, offer it a named traffic, and hold what was measured against its bars."""
    console = Console()
    if show_list or name is None:
        for scenario in SCENARIOS.values():
            console.print(f"{scenario.name}  {scenario.title} ({scenario.duration_s:g} s)", highlight=False)
        raise typer.Exit(0 if show_list else 2)
    is_met, is_valid = run_scenario(console, name, duration_s=duration, seed=seed, out=out)
    raise typer.Exit((0 if is_met else 1) if is_valid else INVALID_EXIT)


def _run_and_report(plan: Plan, out: Path | None) -> Report:
    recording = run(plan, progress=choose_progress())
    report = make_report(recording)
    console = Console()
    print_report(console, report)
    if out is not None:
        save_run(out, report, recording.samples)
        _say_where(console, *render(out, report, recording.samples))
    return report


def _say_where(console: Console, page: Path, missing: str | None) -> None:
    console.print(f"written: {page}", highlight=False, soft_wrap=True)
    if missing is not None:
        console.print(missing, style="yellow", highlight=False, markup=False)


def main() -> None:
    """The entry point of the script `loadtest`."""
    try:
        app()
    except BatcherError as error:
        Console(stderr=True).print(f"loadtest: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
