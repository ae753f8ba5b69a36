"""`python -m benchmarks.engine`: our engine beside transformers' two, on the same weights, prompts and lengths.

The machine drifts by a factor between minutes, so engines run in turns and are compared round by round. With the defaults it
takes ten minutes or more on two cores, most of it transformers', and several times that where others work on them, too.
"""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from batcher.config import Device, Dtype
from batcher.sim.tables import table
from benchmarks.bench import Bench, make_config
from benchmarks.models import Subject
from benchmarks.options import Chunk, DeviceName, DtypeName, ModelName, RandomShape, Rounds, Seed, open_and_tell, parse_counts
from benchmarks.runs import Contender, Run, make_prompts, rotated, spread, spread_of_ratios

OURS, GENERATE, CONTINUOUS = NAMES = ("ours", "generate", "continuous")
_WARMUP_TOKENS = 4
"""Output of the run that is not counted: builds what each engine builds at its first step of a size."""

Results = dict[str, list[Run]]


def main(
    model: ModelName = "smollm2",
    random_llama: RandomShape = None,
    dtype: DtypeName = Dtype.BFLOAT16,
    device: DeviceName = Device.CPU,
    at_a_time: Annotated[str, typer.Option(help="Requests that are there at once.")] = "1,8,32,64",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 128,
    output: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 64,
    rounds: Rounds = 5,
    only: Annotated[str, typer.Option(help="Engines to run, of " + ",".join(NAMES))] = ",".join(NAMES),
    prefill_chunk: Chunk = 512,
    seed: Seed = 1,
) -> None:
    """Output tokens a second, time to the first token and time per output token; medians over the rounds, with their range."""
    names = only.split(",")
    if unknown := [name for name in names if name not in NAMES]:
        raise typer.BadParameter(f"--only: no engine is called {unknown[0]!r}; these are: {', '.join(NAMES)}")
    counts = parse_counts(at_a_time)
    subject = open_and_tell(model, dtype, device, random_llama)
    if subject.load_weights is None and names != [OURS]:
        raise typer.BadParameter(f"--only {OURS}: the simulated model has no weights for others")
    typer.echo(f"work      {prompt} prompt + {output} output tokens, greedy, end of text ignored, {rounds} rounds, seed {seed}")
    peer = _load_peer(subject) if names != [OURS] else None
    for count in counts:
        makers: dict[str, Callable[[int], Contender]] = {
            OURS: lambda count: _make_ours(subject, count, prompt + output, prefill_chunk),
            GENERATE: lambda _: _make_generate(peer),
            CONTINUOUS: lambda count: _make_continuous(peer, count, prompt, output, prefill_chunk or prompt),
        }
        contenders = [makers[name](count) for name in names]
        if count == counts[0]:
            for contender in contenders:
                typer.echo(f"          {contender}")
        try:
            results = measure(
                contenders,
                rounds=rounds,
                num_output=output,
                # A fresh seed each round: nobody finds the last round's prompts in a cache.
                draw=lambda index, count=count: make_prompts(  # type: ignore[misc]
                    count, prompt, vocab_size=subject.model.info.vocab_size, seed=seed * 1_000_000 + count * 1000 + index
                ),
            )
        finally:
            for contender in contenders:
                contender.close()
        typer.echo(table((HEADINGS, *rows_of(count, results))))
    typer.echo("medians over the rounds (lowest-highest); ratios are of tokens/s, round by round")


def _load_peer(subject: Subject) -> Any:
    from benchmarks.peers import peer_model  # Takes seconds to import, and ours alone does not need it.

    assert subject.config is not None
    assert subject.load_weights is not None
    return peer_model(subject.config, subject.load_weights())


def _make_ours(subject: Subject, count: int, max_len: int, prefill_chunk: int) -> Contender:
    return Bench(subject.model, make_config(at_a_time=count, max_len=max_len, prefill_chunk=prefill_chunk))


def _make_generate(peer: Any) -> Contender:
    from benchmarks.peers import Generate

    return Generate(peer)


def _make_continuous(peer: Any, count: int, prompt: int, output: int, prefill_chunk: int) -> Contender:
    from benchmarks.peers import Continuous

    return Continuous(peer, at_a_time=count, prompt_len=prompt, num_output=output, max_step_tokens=prefill_chunk + count)


def measure(contenders: list[Contender], *, rounds: int, num_output: int, draw: Callable[[int], list[list[int]]]) -> Results:
    """Each contender once in each round, on the prompts that `draw` gives for it; a warm-up round is not kept.

    Raises RuntimeError if one does not answer in full."""
    by_name = {contender.name: contender for contender in contenders}
    results: Results = {name: [] for name in by_name}
    warmup = draw(rounds)
    for contender in contenders:
        contender.run(warmup, min(num_output, _WARMUP_TOKENS))
    for index in range(rounds):
        prompts = draw(index)
        for name in rotated(list(by_name), index):
            run = by_name[name].run([list(prompt) for prompt in prompts], num_output)
            if run.num_tokens != len(prompts) * num_output:
                raise RuntimeError(f"{name} gave {run.num_tokens} tokens and not {len(prompts)} times {num_output}")
            results[name].append(run)
    return results


HEADINGS = ("at a time  engine", "tokens/s", "TPOT p50 ms", "TTFT p50 ms", "to generate", "to continuous")


def rows_of(count: int, results: Results) -> list[tuple[str, ...]]:
    """A line for each engine; ratios to those that ran beside it."""
    rates = {name: [run.tokens_per_s for run in runs] for name, runs in results.items()}
    return [
        (
            f"{count:>9}  {name}",
            spread(rates[name]),
            spread([run.tpot_p50_s for run in runs], digits=1, scale=1000.0),
            spread([run.ttft_p50_s for run in runs], digits=0, scale=1000.0),
            *(
                spread_of_ratios(rates[name], rates[other]) if other in rates and other != name else "-"
                for other in (GENERATE, CONTINUOUS)
            ),
        )
        for name, runs in results.items()
    ]


if __name__ == "__main__":
    typer.run(main)
