"""The options that all benchmarks share, said once."""

from typing import Annotated

import typer

from batcher.config import Device, Dtype
from batcher.errors import ConfigError
from benchmarks.machine import describe
from benchmarks.models import RandomLlama, Subject, open_subject

ModelName = Annotated[str, typer.Option("--model", help="smollm2, a folder, a .gguf file, or simulated (takes no time).")]
RandomShape = Annotated[
    RandomLlama | None, typer.Option("--random-llama", help="Random weights of this shape instead of a model.")
]
DtypeName = Annotated[Dtype, typer.Option("--dtype", help="Of weights, keys and values.")]
DeviceName = Annotated[Device, typer.Option("--device")]
Rounds = Annotated[int, typer.Option("--rounds", min=1, max=100, help="Each engine runs once in each round.")]
Chunk = Annotated[int, typer.Option("--prefill-chunk", min=0, help="Prompt tokens of one step; 0 cuts no prompt.")]
Seed = Annotated[int, typer.Option("--seed", help="Draws the prompts.")]


def open_and_tell(name: str, dtype: Dtype, device: Device, random_llama: RandomLlama | None) -> Subject:
    """The model that is asked for; prints what it is and what it runs on."""
    try:
        subject = open_subject(name, dtype=dtype, device=device, random_llama=random_llama)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(describe(subject.device))
    weights = f"random weights of {random_llama.value}" if random_llama is not None else name
    typer.echo(f"model     {weights}, {dtype.value}, {subject.device}")
    return subject


def parse_counts(text: str) -> list[int]:
    """`1,8,32` -> [1, 8, 32]."""
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a list of whole numbers like 1,8,32") from error
    if not all(count > 0 for count in counts):
        raise typer.BadParameter(f"{text!r}: each number must be above 0")
    return counts
