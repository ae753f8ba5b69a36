"""The options that runs and sweeps share, and the plan that they spell."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from batcher.errors import ConfigError
from batcher.sim.workload import parse_arrivals
from loadtest.plan import Plan, parse_mix, parse_senders
from loadtest.target import Check, Target, run_target

ENDPOINTS = ("run",)

Url = Annotated[str, typer.Argument(help="Where the server is, such as http://127.0.0.1:8000.")]
Endpoint = Annotated[str, typer.Option(help="The contract to speak: 'run' is POST /v1/run. Left aside with --body.")]
Duration = Annotated[float, typer.Option(help="Seconds of traffic.")]
Arrivals = Annotated[
    str, typer.Option(help="poisson, constant, burst, ramp (0 to the rate), steps:RATExSECONDS,... or trace:FILE.")
]
Rate = Annotated[float | None, typer.Option(help="Requests per second. Default 100; steps, traces and --key bring their own.")]
SpeedUp = Annotated[float, typer.Option(help="How much faster than recorded a trace is replayed.")]
MixOption = Annotated[str | None, typer.Option("--mix", help="Tiers by share; their keys are dev-TIER. [paid=0.2,free=0.8]")]
Keys = Annotated[list[str] | None, typer.Option("--key", help="KEY:TIER:RATE, a key with its own rate. Repeatable.")]
Seed = Annotated[int, typer.Option(help="Draws the whole schedule; the same seed, the same traffic.")]
InputSize = Annotated[int, typer.Option(help="Characters of each input.")]
CheckOption = Annotated[Check | None, typer.Option("--check", help="Answer and question must be equal, or contained. [echo]")]
Body = Annotated[str | None, typer.Option(help="Body with {input} for the request's own; @FILE reads a file.")]
PathOption = Annotated[str | None, typer.Option("--path", help="Path after the URL.")]
Headers = Annotated[list[str] | None, typer.Option("--header", help="'name: value'; {key} is the API key. Repeatable.")]
OutputField = Annotated[str | None, typer.Option(help="Where the answer is in the JSON: a.b.0. [output]")]
IdField = Annotated[str | None, typer.Option(help="Where the answer's id is; '' for none. [id]")]
Insecure = Annotated[bool, typer.Option("--insecure", help="Accept any certificate.")]
PoisonShare = Annotated[float, typer.Option(help="Part of the inputs that must get a 500.")]
PoisonPrefix = Annotated[str, typer.Option(help="What such inputs start with.")]
Timeout = Annotated[float, typer.Option(help="Seconds until a request without an answer is given up.")]
SloOption = Annotated[float, typer.Option("--slo", help="Seconds that count as good.")]
Connections = Annotated[int | None, typer.Option(help="Connections opened beforehand. [half a second's requests]")]
MaxConnections = Annotated[int | None, typer.Option(help="Most connections at once. [five seconds' requests]")]
Out = Annotated[Path | None, typer.Option(help="Folder for report.json, the raw samples, report.html and pictures.")]


class Spelled(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line said, before it is known to make sense."""

    url: str
    endpoint: str
    duration_s: float
    arrivals: str
    rate: float | None
    speed_up: float
    mix: str | None
    keys: list[str] | None
    seed: int
    input_size: int
    check: Check | None
    body: str | None
    path: str | None
    headers: list[str] | None
    output_field: str | None
    id_field: str | None
    is_insecure: bool
    poison_share: float
    poison_prefix: str
    timeout_s: float
    slo_s: float
    connections: int | None
    max_connections: int | None


def make_plan(spelled: Spelled) -> Plan:
    """The plan that was spelled. Raises `ConfigError` for what contradicts itself or cannot work."""
    if spelled.keys and (spelled.mix is not None or spelled.rate is not None):
        raise ConfigError("--key brings its own rate and tier: leave out --mix and --rate")
    mix = parse_senders(spelled.keys) if spelled.keys else parse_mix(spelled.mix or "paid=0.2,free=0.8")
    rate = mix.total if spelled.keys else spelled.rate
    if rate is None and spelled.arrivals.partition(":")[0] not in ("steps", "trace"):
        rate = 100.0
    return Plan(
        target=_make_target(spelled),
        arrivals=parse_arrivals(spelled.arrivals, rate=rate, duration_s=spelled.duration_s, speed_up=spelled.speed_up),
        arrivals_name=spelled.arrivals,
        mix=mix,
        duration_s=spelled.duration_s,
        seed=spelled.seed,
        input_size=spelled.input_size,
        poison_share=spelled.poison_share,
        poison_prefix=spelled.poison_prefix,
        timeout_s=spelled.timeout_s,
        slo_s=spelled.slo_s,
        warm_connections=spelled.connections,
        max_connections=spelled.max_connections,
    )


def _make_target(spelled: Spelled) -> Target:
    if spelled.endpoint not in ENDPOINTS:
        raise ConfigError(f"unknown endpoint {spelled.endpoint!r}; there is {', '.join(ENDPOINTS)}, or give a --body")
    headers = tuple(_parse_header(header) for header in spelled.headers or ())
    check = spelled.check or Check.ECHO
    if spelled.body is None:
        preset = run_target(spelled.url, path=spelled.path or "/v1/run", check=check)
        target = msgspec.structs.replace(preset, headers=preset.headers + headers)
    else:
        url = spelled.url if spelled.path is None else spelled.url.rstrip("/") + "/" + spelled.path.lstrip("/")
        target = Target(url=url, body=_read_body(spelled.body), headers=headers, check=check)
    return msgspec.structs.replace(
        target,
        output_field=target.output_field if spelled.output_field is None else spelled.output_field,
        id_field=target.id_field if spelled.id_field is None else spelled.id_field,
        is_insecure=spelled.is_insecure,
    )


def _parse_header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise ConfigError(f"a header is written 'name: value', not {text!r}")
    return name.strip(), value.strip()


def _read_body(body: str) -> str:
    if not body.startswith("@"):
        return body
    try:
        return Path(body[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the body from {body[1:]}: {error}") from error
