"""The command line: it reads settings and hands them over. What a command does is imported when it is asked for."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from batcher.config import Device, Dtype, Isolation, KvMode, LimitMode, Mode, OnFailure, Switch, TokenEstimate
from batcher.errors import ConfigError, Unprinted, Unread
from batcher.keys.command import keys
from batcher.settings import CONFIG_VARIABLE, load_settings
from batcher.settings.telling import Panel, default_of, panel_of
from batcher.sim.command import simulate
from batcher.usage.command import usage
from batcher.version import Version

app = typer.Typer(
    name="batcher",
    help="The service between API callers and GPUs that decides which requests run together.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _flag(name: str, words: str) -> Any:
    """None if it is not given, so that the environment and the file are asked; what it is by itself stands in its help."""
    # The bracket is escaped: the help is markup, and would take it for a style.
    return typer.Option(help=f"{words}  \\[default: {default_of(name)}]", rich_help_panel=panel_of(name))


def _path_flag(name: str, words: str) -> Any:
    """Text as yet: an empty one, made a path, would be the current folder."""
    option = _flag(name, words)
    option.metavar = "PATH"
    return option


_FILE = "A TOML file; every flag is also a key of it."
_POLICIES = "When a batch leaves: paced, size-or-timeout, static, single; or what a step runs: continuous, static, single."
_TIMEOUT = "Seconds until 504 for a request without its answer; in continuous mode, only for one that has not started by then."
_FIRST_BATCH = "Seconds that a fresh worker's first batch may take."
_ESTIMATE = "What is charged for an answer before it is made: max_tokens, expected, or exact (nothing)."
_BUDGET = "The first tier is refused at once where it would wait longer, in seconds; lower tiers in proportion."
_OPEN = "open: go on without it; closed: refuse."
_REDIS_AWAY = "While Redis is away. open: each gateway limits by itself; closed: refuse."
_STRETCH = "A step with prompts beside decodes may take so many times what the decodes alone take; 0: no limit."


@app.callback()
def batcher(version: Version = False) -> None:
    pass


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option(envvar=CONFIG_VARIABLE, help=_FILE, rich_help_panel=Panel.BOTH)] = None,
    mode: Annotated[Mode | None, _flag("mode", "What a GPU is: a call of run_batch, or a model run step by step.")] = None,
    policy: Annotated[str | None, _flag("policy", _POLICIES)] = None,
    host: Annotated[str | None, _flag("host", "Address to listen on; other than loopback it needs keys.")] = None,
    port: Annotated[int | None, _flag("port", "0 lets the system choose.")] = None,
    request_timeout: Annotated[float | None, _flag("request_timeout", _TIMEOUT)] = None,
    wait_budget: Annotated[float | None, _flag("wait_budget", _BUDGET)] = None,
    max_waiting: Annotated[int | None, _flag("max_waiting", "Most requests that wait; more are refused.")] = None,
    max_body_bytes: Annotated[int | None, _flag("max_body_bytes", "Larger bodies get 413.")] = None,
    drain_deadline: Annotated[float | None, _flag("drain_deadline", "Seconds that SIGTERM leaves accepted requests.")] = None,
    keys_file: Annotated[
        str | None, _path_flag("keys_file", "Keys, as `batcher keys` writes them; read again on change.")
    ] = None,
    open_metrics: Annotated[Switch | None, _flag("open_metrics", "/metrics and /load need no operator's key.")] = None,
    token_estimate: Annotated[TokenEstimate | None, _flag("token_estimate", _ESTIMATE)] = None,
    redis: Annotated[str | None, _flag("redis", "redis://HOST:PORT/DB, to share limits and kept answers.")] = None,
    redis_failure: Annotated[OnFailure | None, _flag("redis_failure", _REDIS_AWAY)] = None,
    limit_mode: Annotated[LimitMode | None, _flag("limit_mode", "Ask Redis each time, or lease slices of hot keys.")] = None,
    safety_rules: Annotated[str | None, _path_flag("safety_rules", "A TOML file of what may not come in or go out.")] = None,
    safety_checker: Annotated[str | None, _flag("safety_checker", "MODULE:ATTR that checks both.")] = None,
    safety_failure: Annotated[OnFailure | None, _flag("safety_failure", f"When a checker fails. {_OPEN}")] = None,
    usage_dir: Annotated[str | None, _path_flag("usage_dir", "Folder of the usage log.")] = None,
    usage_failure: Annotated[OnFailure | None, _flag("usage_failure", f"When it cannot be written. {_OPEN}")] = None,
    request_log: Annotated[Switch | None, _flag("request_log", "One line in the log for each request.")] = None,
    tracing: Annotated[Switch | None, _flag("tracing", "Spans for OpenTelemetry; OTEL_* variables say where to.")] = None,
    log_level: Annotated[str | None, _flag("log_level", "debug, info, warning or error.")] = None,
    backend: Annotated[str | None, _flag("backend", "simulated, generate, or MODULE:ATTR that is a run_batch.")] = None,
    workers: Annotated[int | None, _flag("workers", "Number of GPUs.")] = None,
    isolation: Annotated[Isolation | None, _flag("isolation", "Where a worker runs: here, or in its own process.")] = None,
    max_batch_size: Annotated[int | None, _flag("max_batch_size", "Most inputs in a batch, up to 50.")] = None,
    batch_timeout: Annotated[float | None, _flag("batch_timeout", "Longest wait beside a free worker, in seconds.")] = None,
    service_time: Annotated[float | None, _flag("service_time", "Seconds that a batch is expected to take.")] = None,
    first_batch_timeout: Annotated[float | None, _flag("first_batch_timeout", _FIRST_BATCH)] = None,
    model: Annotated[str | None, _flag("model", "smollm2, simulated, a folder or a GGUF file; also for generate.")] = None,
    dtype: Annotated[Dtype | None, _flag("dtype", "Of the model's weights and its KV cache; also for generate.")] = None,
    device: Annotated[Device | None, _flag("device", "Where the model runs; also for generate.")] = None,
    replicas: Annotated[int | None, _flag("replicas", "Number of engines: 1.")] = None,
    kv: Annotated[KvMode | None, _flag("kv", "KV memory in blocks as tokens come, or reserved whole.")] = None,
    prefill_chunk: Annotated[int | None, _flag("prefill_chunk", "Most prompt tokens of a step; 0 cuts no prompt.")] = None,
    prefill_stretch: Annotated[float | None, _flag("prefill_stretch", _STRETCH)] = None,
    prefix_cache: Annotated[Switch | None, _flag("prefix_cache", "Keep what was computed of prompts' beginnings.")] = None,
    max_num_seqs: Annotated[int | None, _flag("max_num_seqs", "Most sequences that run at once.")] = None,
    kv_blocks: Annotated[int | None, _flag("kv_blocks", "KV blocks of 16 tokens.")] = None,
    kv_memory: Annotated[float | None, _flag("kv_memory", "The same in GiB.")] = None,
    max_model_len: Annotated[int | None, _flag("max_model_len", "Most tokens of prompt and answer together.")] = None,
    simulated_jitter: Annotated[float | None, _flag("simulated_jitter", "Share of its time, more or less.")] = None,
    simulated_poison: Annotated[str | None, _flag("simulated_poison", "Inputs that begin so make a batch raise.")] = None,
    simulated_raise_rate: Annotated[float | None, _flag("simulated_raise_rate", "Probability that a batch raises.")] = None,
    simulated_hang_rate: Annotated[float | None, _flag("simulated_hang_rate", "Probability that it hangs.")] = None,
    simulated_die_rate: Annotated[float | None, _flag("simulated_die_rate", "Probability that it dies.")] = None,
    simulated_seed: Annotated[int | None, _flag("simulated_seed", "Draws all of that.")] = None,
    simulated_time_scale: Annotated[float | None, _flag("simulated_time_scale", "Its times are so much longer.")] = None,
    simulated_answer: Annotated[str | None, _flag("simulated_answer", "echo or repeat the last turn.")] = None,
) -> None:
    """Serve: by default batch mode on 16 simulated GPUs, on http://127.0.0.1:8000, with the keys dev-paid and dev-free.

    Every flag can also be set as BATCHER_NAME in the environment or as a key of the file; the flag wins, then the environment.
    """
    flags: dict[str, Any] = {name: value for name, value in locals().items() if value is not None and name != "config"}
    settings = load_settings(file=config, environment=os.environ, flags=flags)
    from batcher.service import log
    from batcher.service.server import leave
    from batcher.service.server import serve as serve_until_signal

    with log.configured(settings.log_level):
        serve_until_signal(settings)
    leave()


app.command()(simulate)
app.command()(usage)
app.add_typer(keys)


def _hold_standard_descriptors() -> None:
    """Where one was closed, as some supervisors do, the next file or socket would be taken for it, and written to."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # The lowest number that is free: this one.


def main() -> None:
    """The entry point: a setting that cannot work ends with its reason on one line and status 2, what cannot be printed
    likewise with status 1, and without a word where nobody reads on."""
    _hold_standard_descriptors()
    try:
        app()
    except ConfigError as error:
        print(f"batcher: {error}", file=sys.stderr)
        sys.exit(2)
    except Unread:
        sys.exit(1)
    except Unprinted as error:
        print(f"batcher: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
