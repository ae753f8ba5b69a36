"""The command line: it reads settings and hands them over. What a command does is imported when it is asked for."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from batcher.config import Device, Dtype, Isolation, KvMode, Mode, Switch
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


_POLICIES = "When a batch leaves: paced, size-or-timeout, static, single; or what a step runs: continuous, static, single."


@app.callback()
def batcher() -> None:
    pass


@app.command()
def serve(
    config: Annotated[
        Path | None, typer.Option(envvar=CONFIG_VARIABLE, help="A TOML file; every flag is also a key of it.")
    ] = None,
    mode: Annotated[Mode | None, typer.Option(help="What a GPU is: a call of run_batch, or a model run step by step.")] = None,
    backend: Annotated[str | None, typer.Option(help="simulated, generate, or MODULE:ATTR that is a run_batch.")] = None,
    workers: Annotated[int | None, typer.Option(help="Number of GPUs.")] = None,
    isolation: Annotated[Isolation | None, typer.Option(help="Where a worker runs: here, or in its own process.")] = None,
    policy: Annotated[str | None, typer.Option(help=_POLICIES)] = None,
    max_batch_size: Annotated[int | None, typer.Option(help="Most inputs in a batch, up to 50.")] = None,
    batch_timeout: Annotated[float | None, typer.Option(help="Longest wait beside a free worker, in seconds.")] = None,
    service_time: Annotated[float | None, typer.Option(help="What a batch is expected to take, in seconds.")] = None,
    model: Annotated[str | None, typer.Option(help="smollm2, simulated, a folder or a GGUF file.")] = None,
    dtype: Annotated[Dtype | None, typer.Option(help="Of the model's weights and its KV cache.")] = None,
    device: Annotated[Device | None, typer.Option(help="Where the model runs.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Number of engines: 1.")] = None,
    kv: Annotated[KvMode | None, typer.Option(help="KV memory in blocks as tokens come, or reserved whole.")] = None,
    prefill_chunk: Annotated[int | None, typer.Option(help="Most prompt tokens of a step; 0 cuts no prompt.")] = None,
    prefill_stretch: Annotated[
        float | None, typer.Option(help="Prompts beside decodes may make a step so many times as long; 0: any.")
    ] = None,
    prefix_cache: Annotated[Switch | None, typer.Option(help="Keep what was computed of prompts' beginnings.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Most sequences that run at once.")] = None,
    kv_blocks: Annotated[int | None, typer.Option(help="KV blocks of 16 tokens.")] = None,
    kv_memory: Annotated[float | None, typer.Option(help="The same in GiB.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Most tokens of prompt and answer together.")] = None,
    max_waiting: Annotated[int | None, typer.Option(help="Most requests that wait; more are refused.")] = None,
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
    simulated_time_scale: Annotated[float | None, typer.Option(help="Simulated model: its times are this much longer.")] = None,
    simulated_answer: Annotated[str | None, typer.Option(help="Simulated model: echo or repeat the last turn.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
) -> None:
    """Serve: by default batch mode on 16 simulated GPUs, on http://127.0.0.1:8000, with the keys dev-paid and dev-free.

    Every flag can also be set as BATCHER_NAME in the environment or as a key of the file; the flag wins, then the environment.
    """
    flags: dict[str, Any] = {name: value for name, value in locals().items() if value is not None and name != "config"}
    settings = load_settings(file=config, environment=os.environ, flags=flags)
    from batcher.service import log
    from batcher.service.server import leave
    from batcher.service.server import serve as serve_until_signal

    log.configure(settings.log_level)
    serve_until_signal(settings)
    leave()


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
