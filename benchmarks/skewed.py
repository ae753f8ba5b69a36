"""`python -m benchmarks.skewed`: what each fix of SPEC S11 buys on our own engine, each taken away by itself.

- policy: continuous batching beside static, on answers of very different lengths, where static slots stand empty.
- kv: paged beside contiguous in a pool too small for all, where a reservation keeps others out. Answers are short and may be
  long: the engine knows only what they may be.
- prefix: the prefix cache on and off, on prompts that begin with the same thousand tokens.

One round of all took eleven minutes on two busy cores: `--only` and `--rounds 1` ask for less.
"""

import random
import statistics
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, NamedTuple

import typer

from batcher.config import Device, Dtype, KvMode, ReplicaPolicy
from batcher.sim.tables import table
from benchmarks.bench import Ask, Bench, make_config, num_blocks_of
from benchmarks.models import Subject
from benchmarks.options import Chunk, DeviceName, DtypeName, ModelName, RandomShape, Rounds, Seed, open_and_tell
from benchmarks.runs import Run, make_prompts, rotated, spread, spread_of_ratios

SHORT_SHARE = 0.75
_POOL_SHARE = 4
"""The small pool is this part of what contiguous reservations for all slots would take."""
_WARMUP_ASKS = 2


class Part(StrEnum):
    POLICY = "policy"
    KV = "kv"
    PREFIX = "prefix"


class Shape(NamedTuple):
    """What is asked. The defaults are the bar's."""

    num_requests: int = 64
    at_a_time: int = 32
    prompt_len: int = 128
    short_output: int = 8
    long_output: int = 256
    prefix_len: int = 1024
    own_len: int = 32
    prefix_output: int = 16


class Result(NamedTuple):
    run: Run
    num_running: list[int]
    """Sequences that ran, after each step."""
    num_crowded: list[int]
    """The same, of the steps after which others waited: what memory or slots had room for. At the end of a run nobody waits,
    and few run however much room there is."""
    num_prefill_tokens: int
    num_preemptions: int


def main(
    model: ModelName = "smollm2",
    random_llama: RandomShape = None,
    dtype: DtypeName = Dtype.BFLOAT16,
    device: DeviceName = Device.CPU,
    only: Annotated[str, typer.Option(help="Of " + ",".join(Part))] = ",".join(Part),
    requests: Annotated[int, typer.Option(min=4, help="Of the skewed lengths.")] = 64,
    at_a_time: Annotated[int, typer.Option(min=1, help="Slots.")] = 32,
    prompt: Annotated[int, typer.Option(min=1)] = 128,
    short_output: Annotated[int, typer.Option(min=1, help="Tokens of three answers in four.")] = 8,
    long_output: Annotated[int, typer.Option(min=2, help="Tokens of the fourth.")] = 256,
    prefix: Annotated[int, typer.Option(min=16, help="Tokens that all prompts of the prefix part share.")] = 1024,
    rounds: Rounds = 3,
    prefill_chunk: Chunk = 512,
    seed: Seed = 1,
) -> None:
    """Continuous beside static, paged beside contiguous, prefix cache on beside off."""
    try:
        parts = [Part(name) for name in only.split(",")]
    except ValueError as error:
        raise typer.BadParameter(f"--only: {error}") from error
    subject = open_and_tell(model, dtype, device, random_llama)
    shape = Shape(requests, at_a_time, prompt, short_output, long_output, prefix)
    typer.echo(f"seed      {seed}, {rounds} rounds, medians (lowest-highest)")
    for part in parts:
        typer.echo("")
        typer.echo(_MEASURES[part](subject, shape, rounds, prefill_chunk, seed))


def measure_policy(subject: Subject, shape: Shape, rounds: int, prefill_chunk: int, seed: int) -> str:
    max_len = shape.prompt_len + shape.long_output
    benches = {
        policy.value: Bench(
            subject.model,
            make_config(at_a_time=shape.at_a_time, max_len=max_len, prefill_chunk=prefill_chunk, policy=policy),
        )
        for policy in (ReplicaPolicy.CONTINUOUS, ReplicaPolicy.STATIC)
    }
    asks = [skewed_asks(shape, subject, seed * 1000 + index) for index in range(rounds)]
    results = _in_turns(benches, asks)
    rates = {name: [result.run.tokens_per_s for result in each] for name, each in results.items()}
    rows = [
        (name, spread(rates[name]), spread([result.run.duration_s for result in each], digits=1), _mean_running(each))
        for name, each in results.items()
    ]
    return "\n".join(
        (
            f"policy    {shape.num_requests} requests of {shape.prompt_len} tokens, {SHORT_SHARE:.0%} of {shape.short_output} "
            f"and the others of {shape.long_output} output tokens, {shape.at_a_time} slots",
            table((("", "tokens/s", "all done, s", "running, mean"), *rows)),
            f"continuous over static {spread_of_ratios(rates['continuous'], rates['static'])}",
        )
    )


def measure_kv(subject: Subject, shape: Shape, rounds: int, prefill_chunk: int, seed: int) -> str:
    max_len = shape.prompt_len + shape.long_output
    num_blocks = max(num_blocks_of(max_len) + 1, shape.at_a_time * num_blocks_of(max_len) // _POOL_SHARE)
    benches = {
        kv.value: Bench(
            subject.model,
            make_config(at_a_time=shape.at_a_time, max_len=max_len, prefill_chunk=prefill_chunk, kv=kv, num_blocks=num_blocks),
        )
        for kv in (KvMode.PAGED, KvMode.CONTIGUOUS)
    }
    asks = [skewed_asks(shape, subject, seed * 1000 + index) for index in range(rounds)]
    results = _in_turns(benches, asks)
    rates = {name: [result.run.tokens_per_s for result in each] for name, each in results.items()}
    means = {name: [statistics.mean(result.num_running) for result in each] for name, each in results.items()}
    crowded = {
        name: [statistics.mean(result.num_crowded or result.num_running) for result in each] for name, each in results.items()
    }
    rows = [
        (
            name,
            str(max(max(result.num_running) for result in each)),
            spread(means[name], digits=1),
            spread(crowded[name], digits=1),
            spread([result.num_preemptions for result in each]),
            spread(rates[name]),
        )
        for name, each in results.items()
    ]
    return "\n".join(
        (
            f"kv        the same requests, each allowed {shape.long_output} output tokens, in {num_blocks} blocks: a quarter "
            f"of what {shape.at_a_time} reservations would take",
            table((("", "running, most", "mean", "mean while others wait", "preempted", "tokens/s"), *rows)),
            f"paged over contiguous: running {spread_of_ratios(means['paged'], means['contiguous'])}, "
            f"while others wait {spread_of_ratios(crowded['paged'], crowded['contiguous'])}, "
            f"tokens/s {spread_of_ratios(rates['paged'], rates['contiguous'])}",
        )
    )


def measure_prefix(subject: Subject, shape: Shape, rounds: int, prefill_chunk: int, seed: int) -> str:
    max_len = shape.prefix_len + shape.own_len + shape.prefix_output
    benches = {
        name: Bench(
            subject.model,
            make_config(
                at_a_time=shape.at_a_time, max_len=max_len, prefill_chunk=prefill_chunk, has_prefix_cache=name == "cache on"
            ),
        )
        for name in ("cache on", "cache off")
    }
    asks = [prefix_asks(shape, subject, seed * 1000 + index) for index in range(rounds)]
    results = _in_turns(benches, asks)
    ttfts = {name: [result.run.ttft_p50_s for result in each] for name, each in results.items()}
    rates = {name: [result.run.tokens_per_s for result in each] for name, each in results.items()}
    rows = [
        (
            name,
            spread([result.num_prefill_tokens for result in each]),
            spread(ttfts[name], digits=0, scale=1000.0),
            spread(rates[name]),
        )
        for name, each in results.items()
    ]
    return "\n".join(
        (
            f"prefix    {shape.at_a_time} requests at once, {shape.prefix_len} shared and {shape.own_len} own prompt tokens, "
            f"{shape.prefix_output} output tokens; no cache knows the prefix before",
            table((("", "prefill tokens", "TTFT p50 ms", "tokens/s"), *rows)),
            f"off over on: TTFT p50 {spread_of_ratios(ttfts['cache off'], ttfts['cache on'])}; "
            f"on over off: tokens/s {spread_of_ratios(rates['cache on'], rates['cache off'])}",
        )
    )


_MEASURES = {Part.POLICY: measure_policy, Part.KV: measure_kv, Part.PREFIX: measure_prefix}


def skewed_asks(shape: Shape, subject: Subject, seed: int) -> list[Ask]:
    """Short and long answers in an order drawn from the seed; all may be long."""
    num_short = round(SHORT_SHARE * shape.num_requests)
    outputs = [shape.short_output] * num_short + [shape.long_output] * (shape.num_requests - num_short)
    random.Random(seed).shuffle(outputs)
    prompts = make_prompts(shape.num_requests, shape.prompt_len, vocab_size=subject.model.info.vocab_size, seed=seed)
    return [Ask(prompt, output, shape.long_output) for prompt, output in zip(prompts, outputs, strict=True)]


def prefix_asks(shape: Shape, subject: Subject, seed: int) -> list[Ask]:
    vocab_size = subject.model.info.vocab_size
    (prefix,) = make_prompts(1, shape.prefix_len, vocab_size=vocab_size, seed=f"prefix {seed}")
    prompts = make_prompts(shape.at_a_time, shape.own_len, vocab_size=vocab_size, seed=seed, prefix=prefix)
    return [Ask(prompt, shape.prefix_output, shape.prefix_output) for prompt in prompts]


def _in_turns(benches: dict[str, Bench], asks_by_round: Sequence[Sequence[Ask]]) -> dict[str, list[Result]]:
    """Each bench once in each round, in rotating order, on the same asks; closes them."""
    results: dict[str, list[Result]] = {name: [] for name in benches}
    try:
        for bench in benches.values():
            # Backwards, so that no prefix of what is measured is known.
            bench.answer([Ask(ask.prompt[::-1], 2, 2) for ask in asks_by_round[0][:_WARMUP_ASKS]])
        for index, asks in enumerate(asks_by_round):
            for name in rotated(list(benches), index):
                results[name].append(_measure(benches[name], asks))
    finally:
        for bench in benches.values():
            bench.close()
    return results


def _measure(bench: Bench, asks: Sequence[Ask]) -> Result:
    before = bench.engine.statistics().counters
    num_prefill_tokens, num_preemptions = before.num_prefill_tokens, before.num_preemptions
    num_running: list[int] = []
    num_crowded: list[int] = []

    def count() -> None:
        snapshot = bench.engine.statistics()
        num_running.append(snapshot.num_running)
        if snapshot.num_waiting:
            num_crowded.append(snapshot.num_running)

    run = bench.answer(asks, on_step=count)
    after = bench.engine.statistics().counters
    return Result(
        run, num_running, num_crowded, after.num_prefill_tokens - num_prefill_tokens, after.num_preemptions - num_preemptions
    )


def _mean_running(results: list[Result]) -> str:
    return spread([statistics.mean(result.num_running) for result in results], digits=1)


if __name__ == "__main__":
    typer.run(main)
