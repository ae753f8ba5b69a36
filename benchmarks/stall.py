"""`python -m benchmarks.stall`: how long running streams fall silent when a long prompt arrives (SPEC S6.3).

A prompt that is computed whole is one long step, and everybody waits for it. Cut into chunks it rides along with the decodes:
each step is a little longer and none is long. The size of a chunk trades the gap against the long prompt's own first token;
`paced` is the default of the service, which learns how large a chunk may be (batcher/core/replica/pace.py).
With the defaults on two cores it takes some minutes.
"""

import statistics
from itertools import pairwise
from typing import Annotated, NamedTuple

import typer

from batcher.config import Device, Dtype, ReplicaConfig
from batcher.sim.tables import table
from batcher.types import BLOCK_SIZE
from benchmarks.bench import Ask, Bench, exactly, make_config, num_blocks_of, roomy
from benchmarks.models import Subject
from benchmarks.options import DeviceName, DtypeName, ModelName, RandomShape, Rounds, Seed, open_and_tell
from benchmarks.runs import make_prompts, rotated, spread

BAR = 2.5
"""The largest gap between tokens of a running stream, in median gaps."""
PACED = "paced"
_STEPS_BEFORE = 20
"""Decodes of all streams together before the long prompt arrives: they give the median gap."""
_STEPS_AFTER = 4
_LONG_OUTPUT = 2


class Stall(NamedTuple):
    """Seconds."""

    median_gap_s: float
    """Between tokens of the running streams before the long prompt came."""
    largest_gap_s: float
    """From its arrival to its first token."""
    ttft_s: float
    """The long prompt's."""

    @property
    def ratio(self) -> float:
        return self.largest_gap_s / self.median_gap_s


def main(
    model: ModelName = "smollm2",
    random_llama: RandomShape = None,
    dtype: DtypeName = Dtype.BFLOAT16,
    device: DeviceName = Device.CPU,
    streams: Annotated[int, typer.Option(min=1, help="That run when the long prompt arrives.")] = 16,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of the streams' prompts.")] = 128,
    long_prompt: Annotated[int, typer.Option(min=2)] = 4000,
    prefill_chunk: Annotated[str, typer.Option(help="To compare: paced, or tokens; 0: whole.")] = "0,512,64,paced",
    rounds: Rounds = 3,
    seed: Seed = 1,
) -> None:
    """The largest gap of running streams while a long prompt is computed, over their median gap before; by size of chunk."""
    chunks = prefill_chunk.split(",")
    if wrong := [chunk for chunk in chunks if chunk != PACED and not chunk.isdecimal()]:
        raise typer.BadParameter(f"--prefill-chunk: {wrong[0]!r} is neither {PACED!r} nor a whole number")
    subject = open_and_tell(model, dtype, device, random_llama)
    typer.echo(
        f"work      {streams} streams of {prompt} prompt tokens run, then a prompt of {long_prompt} arrives; "
        f"{rounds} rounds, seed {seed}"
    )
    stalls = measure(subject, chunks, streams=streams, prompt=prompt, long_prompt=long_prompt, rounds=rounds, seed=seed)
    typer.echo(table((HEADINGS, *(row_of(chunk, each) for chunk, each in stalls.items()))))
    typer.echo("medians over the rounds (lowest-highest)")


def measure(
    subject: Subject, chunks: list[str], *, streams: int, prompt: int, long_prompt: int, rounds: int, seed: int
) -> dict[str, list[Stall]]:
    """Each chunk size once in each round, in rotating order; on a GPU, which compiles first, after a round that warms up."""
    outputs = {chunk: output_len(chunk, streams=streams, prompt=prompt, long_prompt=long_prompt) for chunk in chunks}
    max_len = max(long_prompt + _LONG_OUTPUT, prompt + max(outputs.values()))
    num_blocks = roomy(streams * num_blocks_of(prompt + max(outputs.values())) + num_blocks_of(max_len))
    benches = {
        chunk: Bench(subject.model, _config(chunk, at_a_time=streams + 1, max_len=max_len, num_blocks=num_blocks))
        for chunk in chunks
    }
    stalls: dict[str, list[Stall]] = {chunk: [] for chunk in chunks}
    vocab_size = subject.model.info.vocab_size
    try:
        for index in range(-1 if subject.device.type == "cuda" else 0, rounds):
            prompts = make_prompts(streams, prompt, vocab_size=vocab_size, seed=f"streams {seed} {index}")
            (newcomer,) = make_prompts(1, long_prompt, vocab_size=vocab_size, seed=f"long {seed} {index}")
            for chunk in rotated(list(benches), index):
                running = exactly(prompts, outputs[chunk])
                stall = run_into(benches[chunk], running, Ask(newcomer, _LONG_OUTPUT, _LONG_OUTPUT))
                if index >= 0:
                    stalls[chunk].append(stall)
    finally:
        for bench in benches.values():
            bench.close()
    return stalls


def _config(chunk: str, *, at_a_time: int, max_len: int, num_blocks: int) -> ReplicaConfig:
    if chunk == PACED:
        default = ReplicaConfig()
        size, stretch = default.prefill_chunk, default.prefill_stretch
    else:
        size, stretch = int(chunk), 0.0
    return make_config(at_a_time=at_a_time, max_len=max_len, prefill_chunk=size, prefill_stretch=stretch, num_blocks=num_blocks)


def output_len(chunk: str, *, streams: int, prompt: int, long_prompt: int) -> int:
    """Tokens of each stream, so that the first to start still runs when the long prompt is through."""
    size = BLOCK_SIZE if chunk == PACED else int(chunk)
    own_steps, long_steps = (-(-num // size) if size else 1 for num in (streams * prompt, long_prompt))
    # The first decodes while the prompts of the others are computed.
    return own_steps + _STEPS_BEFORE + long_steps + _STEPS_AFTER


def run_into(bench: Bench, running: list[Ask], newcomer: Ask) -> Stall:
    """Lets them run, and submits the newcomer when each of them has decoded _STEPS_BEFORE tokens or more."""
    arrived_at: list[float] = []
    times = bench.recorder.token_times

    def arrive() -> None:
        if not arrived_at and len(times) == len(running) and min(map(len, times.values())) > _STEPS_BEFORE:
            arrived_at.append(max(each[-1] for each in times.values()))
            bench.submit(newcomer)

    run = bench.answer(running, on_step=arrive)
    assert arrived_at, "the streams ended before the long prompt could arrive"
    return stall_of(run.token_times[:-1], arrived_at[0], run.token_times[-1][0])


def stall_of(streams: list[list[float]], arrived_at: float, first_token_at: float) -> Stall:
    """Gaps before are those of steps in which all streams decoded; gaps meanwhile those that end after the arrival and begin
    before the newcomer's first token."""
    all_decode_from = max(times[0] for times in streams)
    before: list[float] = []
    meanwhile: list[float] = []
    for times in streams:
        for earlier, later in pairwise(times):
            if all_decode_from <= earlier and later <= arrived_at:
                before.append(later - earlier)
            elif later > arrived_at and earlier < first_token_at:
                meanwhile.append(later - earlier)
    return Stall(statistics.median(before), max(meanwhile), first_token_at - arrived_at)


HEADINGS = ("chunk", "gap before, median ms", "largest gap ms", "times median", "TTFT of the long prompt ms", f"bar {BAR:g}")


def row_of(chunk: str, stalls: list[Stall]) -> tuple[str, ...]:
    ratio = statistics.median(stall.ratio for stall in stalls)
    return (
        "whole" if chunk == "0" else chunk,
        spread([stall.median_gap_s for stall in stalls], digits=1, scale=1000.0),
        spread([stall.largest_gap_s for stall in stalls], digits=1, scale=1000.0),
        spread([stall.ratio for stall in stalls], digits=2),
        spread([stall.ttft_s for stall in stalls], scale=1000.0),
        "met" if ratio <= BAR else "MISSED",
    )


if __name__ == "__main__":
    typer.run(main)
