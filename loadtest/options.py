"""The options that spell a run, once for all commands that perform one.

`Spelled` is the list: a field is an option, its default is what the option is when it is left out. `spelled` makes the
commands take it, so that `run`, `sweep` and `compare` cannot drift apart. (A parameter list in each command was refused
when it had grown to twenty, three times.)
"""

import copy
import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
import typer

from loadtest.prompts import TokenUnit
from loadtest.target import Check

LENGTHS = "128, uniform:LOW-HIGH, lognormal:MEDIAN,SIGMA[,MAX], 8@0.75,256@0.25, or trace:FILE."


def _option(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text)


def _of_messages(text: str, *names: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="With --endpoint messages")


class Spelled(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line said, before it is known to make sense. None is what was not said."""

    url: Annotated[str, typer.Argument(help="Where the server is, such as http://127.0.0.1:8000.")]
    endpoint: Annotated[
        str, _option("The contract to speak: run is POST /v1/run, messages is POST /v1/messages. Left aside with --body.")
    ] = "run"
    rate: Annotated[
        float | None,
        _option("Requests (or conversations) per second. [100; messages: 1] Steps, traces and --key bring their own."),
    ] = None
    duration_s: Annotated[
        float | None, _option("Seconds of traffic. [30; of a number of requests an hour at most]", "--duration")
    ] = None
    arrivals: Annotated[
        str | None, _option("poisson, constant, burst, ramp (0 to the rate), steps:RATExSECONDS,... or trace:FILE. [poisson]")
    ] = None
    speed_up: Annotated[float, _option("How much faster than recorded a trace is replayed.")] = 1.0
    concurrency: Annotated[
        int | None, _option("A closed loop: so many at a time, each asking again when its answer has ended. For throughput.")
    ] = None
    num_requests: Annotated[int | None, _option("A closed loop ends after so many.", "--requests")] = None
    mix: Annotated[
        str | None,
        _option("Tiers by share; their keys are dev-TIER. [paid=0.2,free=0.8; one for all where no header has {key}]"),
    ] = None
    keys: Annotated[list[str] | None, _option("KEY:TIER:RATE, a key with its own rate. Repeatable.", "--key")] = None
    seed: Annotated[int, _option("Draws the whole traffic; the same seed, the same traffic.")] = 0
    timeout_s: Annotated[
        float | None, _option("Seconds until a request without its whole answer is given up. [10; messages: 120]", "--timeout")
    ] = None
    slo_s: Annotated[float | None, _option("Seconds of latency that count as good. [0.5; messages: any]", "--slo")] = None
    connections: Annotated[int | None, _option("Connections opened beforehand. [half a second's requests]")] = None
    max_connections: Annotated[int | None, _option("Most connections at once. [as the timeout and the rate need]")] = None
    path: Annotated[str | None, _option("Path after the URL.")] = None
    headers: Annotated[list[str] | None, _option("'name: value'; {key} is the API key. Repeatable.", "--header")] = None
    is_insecure: Annotated[bool, _option("Accept any certificate.", "--insecure")] = False

    input_size: Annotated[int, _option("Characters of each input.")] = 100
    check: Annotated[Check | None, _option("Answer and question must be equal, or contained. [echo]")] = None
    body: Annotated[str | None, _option("Body with {input} for the request's own; @FILE reads a file.")] = None
    output_field: Annotated[str | None, _option("Where the answer is in the JSON: a.b.0. [output]")] = None
    id_field: Annotated[str | None, _option("Where the answer's id is; '' for none. [id]")] = None
    poison_share: Annotated[float, _option("Part of the inputs that must get a 500.")] = 0.0
    poison_prefix: Annotated[str, _option("What such inputs start with.")] = "BOOM"

    model: Annotated[str | None, _of_messages("The model to ask. [smollm2]")] = None
    prompt_tokens: Annotated[str | None, _of_messages(f"Tokens of each prompt: {LENGTHS} [128]")] = None
    output_tokens: Annotated[str | None, _of_messages("max_tokens of each request, in the same spelling. [128]")] = None
    max_prompt_tokens: Annotated[int | None, _of_messages("Longer prompts are cut down to it.")] = None
    token_unit: Annotated[
        TokenUnit | None, _of_messages("What is one token of a prompt; a byte for the simulated model. [word]")
    ] = None
    shared_prefix_tokens: Annotated[int | None, _of_messages("Tokens before each prompt that many share. [0]")] = None
    prefix_groups: Annotated[int | None, _of_messages("So many different shared prefixes. [1]")] = None
    turns: Annotated[int | None, _of_messages("Turns of each conversation; a later one repeats the history. [1]")] = None
    think_time_s: Annotated[float | None, _of_messages("Seconds from an answer to the next turn. [0]", "--think-time")] = None
    temperature: Annotated[float | None, _of_messages("Of sampling; 0 takes the likeliest. [0]")] = None
    top_p: Annotated[float | None, _of_messages("Sample among the likeliest of this total probability.")] = None
    top_k: Annotated[int | None, _of_messages("Sample among so many.")] = None
    stop_sequences: Annotated[list[str] | None, _of_messages("A text that ends the answer. Repeatable.", "--stop")] = None
    is_streamed: Annotated[bool | None, _of_messages("Answers as events, or whole. [stream]", "--stream/--no-stream")] = None
    slo_ttft_s: Annotated[float | None, _of_messages("Seconds of TTFT that count as good. [1]", "--slo-ttft")] = None
    slo_tpot_s: Annotated[float | None, _of_messages("Seconds of TPOT that count as good. [0.05]", "--slo-tpot")] = None


Out = Annotated[Path | None, typer.Option(help="Folder for report.json, the raw samples, report.html and pictures.")]


def spelled(*left_out: str, **defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command of a function whose first parameter is the `Spelled`: its other parameters are options, too.

    Fields in `left_out` are no options of this command, and those in `defaults` have another default here; a URL that is
    left out is empty.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(Spelled, include_extras=True)
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        names = [name for name in Spelled.__struct_fields__ if name not in left_out]
        required = object()
        parameters = []
        for name, default in zip(Spelled.__struct_fields__, _defaults(required), strict=True):
            if name in names:
                value = defaults.get(name, default)
                value = inspect.Parameter.empty if value is required else value
                hint = _without_bracket(hints[name]) if name in defaults else hints[name]
                parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=hint))
        parameters += [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]

        @functools.wraps(function)
        def command(**values: Any) -> None:
            said = {"url": ""} | {name: values.pop(name) for name in names}
            function(Spelled(**said), **values)

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _without_bracket(hint: Any) -> Any:
    """The option without the default that its help tells: the command has its own, which is shown beside the help."""
    option = copy.copy(hint.__metadata__[0])
    option.help = option.help.partition(" [")[0]
    return Annotated[hint.__origin__, option]


def _defaults(required: object) -> list[object]:
    """One for each field of `Spelled`; `required` where there is none."""
    given = Spelled.__struct_defaults__
    return [required] * (len(Spelled.__struct_fields__) - len(given)) + list(given)
