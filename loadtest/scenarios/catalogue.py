"""All scenarios, in an explicit table, and how one is run."""

from pathlib import Path

import msgspec
from rich.console import Console

from batcher.errors import ConfigError
from loadtest.scenarios import b1, b2, b3, b4, b5, f3, f7
from loadtest.scenarios.bench import Bench, Scenario, print_figures

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (b1.SCENARIO, b2.SCENARIO, b3.SCENARIO, b4.SCENARIO, b5.SCENARIO, f3.SCENARIO, f7.SCENARIO)
}
FIGURES_FILE = "figures.json"


def run_scenario(console: Console, name: str, *, duration_s: float | None, seed: int, out: Path | None) -> tuple[bool, bool]:
    """Measure, and print each figure beside its bar; (are all bars met, are all runs VALID).

    Raises `ConfigError` for a name that is not there.
    """
    scenario = SCENARIOS.get(name.lower())
    if scenario is None:
        raise ConfigError(f"unknown scenario {name!r}; there are {', '.join(SCENARIOS)}")
    bench = Bench(console, duration_s=duration_s or scenario.duration_s, seed=seed, out=out)
    figures = scenario.measure(bench)
    print_figures(console, scenario, figures, bench.doubts)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / FIGURES_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    return all(figure.is_met is not False for figure in figures), not bench.doubts
