"""`python -m benchmarks.conformance`: does the service answer as its OpenAPI document says, whatever it is asked? (Bar F2.)

Schemathesis asks what the document allows and what it forbids: every example, every bound of every field and header, methods
that there are not, requests without a key, and random ones of either kind. Each answer is compared with the document: its
status, its headers, its content type and its body's schema. Both modes are asked, with simulated backends. With the same seed
the same is asked. Takes some minutes on two cores; exit status 1 if anything was found.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import schemathesis
import typer
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import from_schema
from schemathesis.engine.events import EngineEvent, FatalError, NonFatalError, ScenarioFinished
from schemathesis.engine.recorder import CheckFailureInfo, ScenarioRecorder
from schemathesis.hooks import HookContext, unregister
from schemathesis.schemas import BaseSchema

from batcher.config import Mode
from batcher.sim.tables import table
from loadtest.scenarios.server import OPERATOR_KEY, serving

_RANDOM_OPERATIONS = 8
"""Operations that are asked at random; the others have nothing that could be drawn."""

_SERVER_ERRORS = ["503", "504", "529"]
"""Documented, and no faults: not ready, too late, no room."""

_KEY_HEADER = "Idempotency-Key"
_SAME_KEY_EVERY = 10

_MAX_SHOWN_CHARS = 1500

FLAGS: dict[Mode, tuple[str, ...]] = {
    Mode.BATCH: ("--service-time", "0.002"),
    Mode.CONTINUOUS: ("--mode", "continuous", "--model", "simulated", "--simulated-time-scale", "0"),
}


_FRESH_KEY = re.compile(r"[ -~]{1,100}")


class _KeyFreshener:
    """Makes most Idempotency-Keys unique: nearly all would be the same one, and 422 before anything else is looked at."""

    def __init__(self) -> None:
        self._num_seen = 0

    def __call__(self, context: HookContext, case: Any, kwargs: dict[str, Any]) -> None:
        headers = case.headers or {}
        key = headers.get(_KEY_HEADER)
        if isinstance(key, str) and _FRESH_KEY.fullmatch(key):
            self._num_seen += 1
            if self._num_seen % _SAME_KEY_EVERY:
                headers[_KEY_HEADER] = f"{key}-{self._num_seen}"


class Finding(msgspec.Struct, frozen=True):
    """An answer that is not as the document says."""

    operation: str
    check: str
    title: str
    told: str
    """What is wrong, and how to ask for it again."""


class Asked(msgspec.Struct, frozen=True):
    """What was asked of one server, and what was found."""

    statuses: dict[str, Counter[int]]
    """Of each operation: how many answers had which status."""
    findings: list[Finding]

    @property
    def num_cases(self) -> int:
        return sum(statuses.total() for statuses in self.statuses.values())


def ask(url: str, *, num_cases: int, seed: int, has_coverage: bool = True) -> Asked:
    """Asks the server at `url` for at least `num_cases`. Without coverage, bounds and methods are left to chance."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json", config=_configure(num_cases, seed, has_coverage))
    statuses: dict[str, Counter[int]] = {}
    findings: dict[tuple[str, str, str], Finding] = {}
    for event in _execute(schema):
        if isinstance(event, ScenarioFinished):
            recorder = event.recorder
            answers = [interaction.response for interaction in recorder.interactions.values()]
            counted = statuses.setdefault(recorder.label, Counter())
            counted.update(answer.status_code if answer is not None else 0 for answer in answers)
        for finding in _findings(event):
            findings.setdefault((finding.operation, finding.check, finding.title), finding)
    return Asked(statuses, list(findings.values()))


def _execute(schema: BaseSchema) -> Iterator[EngineEvent]:
    freshen = _KeyFreshener()
    schemathesis.hook("before_call")(freshen)  # There is no such hook for one schema alone.
    try:
        yield from from_schema(schema).execute()
    finally:
        unregister(freshen)


def _configure(num_cases: int, seed: int, has_coverage: bool) -> SchemathesisConfig:
    settings: dict[str, Any] = {
        "seed": seed,
        "headers": {"x-api-key": OPERATOR_KEY},
        "continue-on-failure": True,
        "generation": {"max-examples": -(-num_cases // _RANDOM_OPERATIONS), "database": "none"},
        "phases": {"stateful": {"enabled": False}, "coverage": {"enabled": has_coverage}},
        "checks": {
            "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", *_SERVER_ERRORS]},
            # A schema cannot say all: prompt and max_tokens have to fit the model together, a second body with the same
            # Idempotency-Key is another one, and models are few.
            "positive_data_acceptance": {"expected-statuses": ["2xx", "400", "404", "409", "422", "429", *_SERVER_ERRORS]},
            "negative_data_rejection": {"expected-statuses": ["4xx", *_SERVER_ERRORS]},
        },
    }
    return SchemathesisConfig.from_dict(settings)


def _findings(event: EngineEvent) -> Iterator[Finding]:
    if isinstance(event, FatalError):
        yield Finding("", "engine", type(event.exception).__name__, str(event.exception))
    elif isinstance(event, NonFatalError):
        yield Finding(event.label, "engine", type(event.value).__name__, str(event.value))
    elif isinstance(event, ScenarioFinished):
        for check, failed in _failures(event.recorder):
            told = f"{failed.failure.message}\n{failed.code_sample}"[:_MAX_SHOWN_CHARS]
            yield Finding(event.recorder.label, check, failed.failure.title, told)


def _failures(recorder: ScenarioRecorder) -> Iterator[tuple[str, CheckFailureInfo]]:
    for checks in recorder.checks.values():
        for check in checks:
            if check.failure_info is not None:
                yield check.name, check.failure_info


def main(
    cases: Annotated[int, typer.Option(min=1, help="At least so many of each mode.")] = 5000,
    seed: Annotated[int, typer.Option(help="Of what is drawn.")] = 1,
) -> None:
    """Asks both modes whatever their OpenAPI document allows and forbids, and tells what comes back otherwise."""
    findings = []
    for mode, flags in FLAGS.items():
        with serving(["serve", "--port", "0", "--request-log", "off", *flags]) as server:
            asked = ask(server.url, num_cases=cases, seed=seed)
        rows = [
            (operation, f"{statuses.total():,}", ", ".join(f"{status}: {num:,}" for status, num in sorted(statuses.items())))
            for operation, statuses in sorted(asked.statuses.items())
        ]
        typer.echo(f"{mode}: {asked.num_cases:,} cases, {len(asked.findings)} findings, seed {seed}")
        typer.echo(table([("operation", "cases", "answers"), *rows]))
        findings += asked.findings
    for finding in findings:
        typer.echo(f"\n{finding.operation}: {finding.check}: {finding.title}\n{finding.told}")
    raise typer.Exit(bool(findings))


if __name__ == "__main__":
    typer.run(main)
