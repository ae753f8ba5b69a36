"""The command line: it reads settings and hands them over. What a command does is imported when it is asked for."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from batcher.config import Isolation, PolicyName
from batcher.errors import ConfigError
from batcher.settings import CONFIG_VARIABLE, load_settings
from batcher.sim.command import simulate

app = typer.Typer(
    name="batcher",
    help="The service between API callers and GPUs that decides which requests run together.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def batcher() -> None:
    pass


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Option(envvar=CONFIG_VARIABLE, help="A TOML file; every flag is also a key of it.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="batch")] = None,
    backend: Annotated[str | None, typer.Option(help="simulated, or MODULE:ATTR that is a run_batch or has one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Number of GPUs.")] = None,
    isolation: Annotated[Isolation | None, typer.Option(help="Where a worker runs: here, or in its own process.")] = None,
    policy: Annotated[PolicyName | None, typer.Option(help="When a batch leaves.")] = None,
    max_batch_size: Annotated[int | None, typer.Option(help="Most inputs in a batch, up to 50.")] = None,
    batch_timeout: Annotated[float | None, typer.Option(help="Longest wait beside a free worker, in seconds.")] = None,
    service_time: Annotated[float | None, typer.Option(help="What a batch is expected to take, in seconds.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; other than loopback it needs keys.")] = None,
    port: Annotated[int | None, typer.Option(help="0 lets the system choose.")] = None,
    request_timeout: Annotated[float | None, typer.Option(help="A request without an answer by then gets 504, in s.")] = None,
    drain_deadline: Annotated[float | None, typer.Option(help="What SIGTERM leaves to accepted requests, in s.")] = None,
    max_body_bytes: Annotated[int | None, typer.Option(help="Larger bodies get 413.")] = None,
    first_batch_timeout: Annotated[float | None, typer.Option(help="What a fresh worker's first batch may take.")] = None,
    simulated_jitter: Annotated[float | None, typer.Option(help="Simulated GPU: share of its time, more or less.")] = None,
    simulated_poison: Annotated[str | None, typer.Option(help="Simulated GPU: inputs that begin so raise.")] = None,
    simulated_raise_rate: Annotated[float | None, typer.Option(help="Simulated GPU: probability that a batch raises.")] = None,
    simulated_hang_rate: Annotated[float | None, typer.Option(help="Simulated GPU: probability that it hangs.")] = None,
    simulated_die_rate: Annotated[float | None, typer.Option(help="Simulated GPU: probability that it dies.")] = None,
    simulated_seed: Annotated[int | None, typer.Option(help="Simulated GPU: seed of the above.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Serve: by default batch mode on 16 simulated GPUs, on http://127.0.0.1:8000, with the keys dev-paid and dev-free.

    Every flag can also be set as BATCHER_NAME in the environment or as a key of the file; the flag wins, then the environment.
    """
    flags: dict[str, Any] = {name: value for name, value in locals().items() if value is not None and name != "config"}
    settings = load_settings(file=config, environment=os.environ, flags=flags)
    from batcher.service import log
    from batcher.service.server import serve as serve_until_signal

    log.configure(settings.log_level)
    serve_until_signal(settings)


app.command()(simulate)


def main() -> None:
    """The entry point: a setting that cannot work ends with its reason on one line and status 2."""
    try:
        app()
    except ConfigError as error:
        print(f"batcher: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
