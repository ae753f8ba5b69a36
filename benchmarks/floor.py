"""`python -m benchmarks.floor`: how far our engine's steps are above what the machine allows (SPEC S2, S10).

A rate says little without the hardware's; the ratio to the floor says what is left to win. Decode steps are timed from the end
of the step before, so that scheduling and text are in them. Takes a minute or more on two cores.
"""

import statistics
from itertools import pairwise
from typing import Annotated

import typer

from batcher.config import Device, Dtype
from batcher.sim.tables import table
from benchmarks.bench import Bench, make_config, num_blocks_of, roomy
from benchmarks.device_rates import measure_bandwidth, measure_flops
from benchmarks.models import Subject
from benchmarks.options import Chunk, DeviceName, DtypeName, ModelName, RandomShape, Rounds, Seed, open_and_tell, parse_counts
from benchmarks.recorder import StepRecord
from benchmarks.roofline import Machine, ModelCost, cost_of, matmul_shapes
from benchmarks.runs import make_prompts, spread

BARS = ((16, 3.0), (64, 4.0))
"""Up to this batch, a decode step takes at most this many times its floor."""
_WARMUP_TOKENS = 4


def main(
    model: ModelName = "smollm2",
    random_llama: RandomShape = None,
    dtype: DtypeName = Dtype.BFLOAT16,
    device: DeviceName = Device.CPU,
    at_a_time: Annotated[str, typer.Option(help="Batches of decodes.")] = "1,8,16,32,64",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 128,
    output: Annotated[int, typer.Option(min=4, help="Tokens of each answer.")] = 64,
    prefill: Annotated[str, typer.Option(help="Lengths of single prompts whose prefill is timed.")] = "128,512,1024,2048",
    rounds: Rounds = 3,
    prefill_chunk: Chunk = 512,
    seed: Seed = 1,
) -> None:
    """Decode steps and prefills, measured over their floor by memory bandwidth and by multiplications."""
    subject = open_and_tell(model, dtype, device, random_llama)
    if subject.config is None:
        raise typer.BadParameter("the simulated model has no floor: it reads no weights")
    counts, lengths = parse_counts(at_a_time), parse_counts(prefill)
    cost = cost_of(subject.config, bytes_per_weight=subject.dtype.itemsize)
    rates: list[Machine] = []
    max_len = max(prompt + output, max(lengths) + 1)
    num_blocks = roomy(max(max(counts) * num_blocks_of(prompt + output), num_blocks_of(max_len)))
    config = make_config(
        at_a_time=max(counts), max_len=max_len, prefill_chunk=prefill_chunk, prefill_stretch=0.0, num_blocks=num_blocks
    )
    bench = Bench(subject.model, config)
    decodes: dict[int, list[StepRecord]] = {count: [] for count in counts}
    prefills: dict[int, list[list[StepRecord]]] = {length: [] for length in lengths}
    vocab_size = subject.model.info.vocab_size
    try:
        for index in range(-1, rounds):  # Round -1 warms up.
            rates.append(_measure_machine(subject))
            for count in counts:
                prompts = make_prompts(count, prompt, vocab_size=vocab_size, seed=seed * 1000 + count)
                bench.run(prompts, output if index >= 0 else _WARMUP_TOKENS)
                decodes[count] += decode_steps(bench.steps, count) if index >= 0 else []
            for length in lengths:
                prompts = make_prompts(1, length, vocab_size=vocab_size, seed=f"{seed} {length} {index}")
                bench.run(prompts, 1)
                prefills[length] += [list(bench.steps)] if index >= 0 else []
    finally:
        bench.close()
    machine = Machine(max(each.bytes_per_s for each in rates), max(each.flops_per_s for each in rates))
    typer.echo(
        f"rates     GB/s read {spread([each.bytes_per_s for each in rates], digits=1, scale=1e-9)}, "
        f"TFLOP/s multiplied {spread([each.flops_per_s for each in rates], digits=2, scale=1e-12)}"
    )
    typer.echo(table((DECODE_HEADINGS, *(decode_row(count, steps, cost, machine) for count, steps in decodes.items()))))
    typer.echo(table((PREFILL_HEADINGS, *(prefill_row(length, runs, cost, machine) for length, runs in prefills.items()))))
    typer.echo("medians (lowest-highest); the floor is the slower of all bytes and all multiplications, at the best rates seen")


def _measure_machine(subject: Subject) -> Machine:
    assert subject.config is not None
    bytes_per_s = measure_bandwidth(subject.device)
    return Machine(bytes_per_s, measure_flops(matmul_shapes(subject.config), subject.dtype, subject.device))


DECODE_HEADINGS = ("decode, batch", "context", "step ms", "floor ms", "by", "times floor", "bar")


def decode_steps(steps: list[StepRecord], count: int) -> list[StepRecord]:
    """The steps of exactly `count` decodes that follow another such step, with `launched_at` at the end of that one."""
    return [
        step._replace(launched_at=before.ended_at)
        for before, step in pairwise(steps)
        if before.is_decode and step.is_decode and len(before.parts) == len(step.parts) == count
    ]


def decode_row(count: int, steps: list[StepRecord], cost: ModelCost, machine: Machine) -> tuple[str, ...]:
    if not steps:
        return (str(count), *("-" for _ in DECODE_HEADINGS[1:]))
    times_s = [step.ended_at - step.launched_at for step in steps]
    floors_s = [cost.floor_s(step.parts, machine) for step in steps]
    ratio = statistics.median(time_s / floor_s for time_s, floor_s in zip(times_s, floors_s, strict=True))
    middle = steps[len(steps) // 2]
    is_memory = cost.num_bytes(middle.parts) / machine.bytes_per_s >= cost.num_flops(middle.parts) / machine.flops_per_s
    bar = next((bar for up_to, bar in BARS if count <= up_to), None)
    return (
        str(count),
        f"{statistics.mean(part.start for step in steps for part in step.parts):.0f}",
        spread(times_s, digits=1, scale=1000.0),
        f"{1000.0 * statistics.median(floors_s):.1f}",
        "bytes" if is_memory else "products",
        f"{ratio:.2f}",
        "-" if bar is None else f"{bar:g}: {'met' if ratio <= bar else 'MISSED'}",
    )


PREFILL_HEADINGS = ("prefill, tokens", "tokens/s", "floor tokens/s", "times floor")


def prefill_row(length: int, runs: list[list[StepRecord]], cost: ModelCost, machine: Machine) -> tuple[str, ...]:
    """One prompt alone, from the launch of its first step to its first token."""
    times_s = [steps[-1].ended_at - steps[0].launched_at for steps in runs]
    floors_s = [sum(cost.floor_s(step.parts, machine) for step in steps) for steps in runs]
    ratio = statistics.median(time_s / floor_s for time_s, floor_s in zip(times_s, floors_s, strict=True))
    rates = [length / time_s for time_s in times_s]
    return str(length), spread(rates), f"{length / statistics.median(floors_s):,.0f}", f"{ratio:.2f}"


if __name__ == "__main__":
    typer.run(main)
