"""Whether the engine's answers are transformers' answers, token for token, however they are scheduled.

    python -m benchmarks.exactness                       # SmolLM2, 64 prompts of 1 to 700 tokens, float32, the fast path
    python -m benchmarks.exactness --dtype bfloat16      # first tokens and logits, which is what 16 bits can promise

A model that computes something slightly else still writes good English, so nothing but equality shows that blocks, chunks,
shared prefixes and preemptions lose nothing. Two tokens whose logits differ by less than TIE in float32 are a tie and no error;
each one is printed.
"""

import sys
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Annotated, NamedTuple

import torch
import typer
from transformers import PreTrainedModel

from backends.base import KvLayout
from backends.llm.config import read_config
from backends.llm.cpu_ops import create_cpu_ops
from backends.llm.model import Transformer
from backends.llm.ops import Ops
from backends.llm.runner import TorchBackend
from backends.llm.step_inputs import build_inputs
from backends.llm.tokenizer import load_tokenizer
from backends.llm.torch_ops import TorchOps
from backends.llm.weights import find_model, load_weights
from batcher.config import KvMode, ReplicaConfig, ReplicaPolicy
from batcher.core.replica.scheduler import max_step_tokens
from batcher.types import BLOCK_SIZE, GREEDY, ScheduledSequence, Step
from benchmarks.offline import Case, Served, serve
from benchmarks.reference import as_transformers, compare, generate, next_logits

NUM_BLOCKS = 2048
SMALL_POOL = 40
"""Blocks of a pool in which sequences preempt each other; prompts that fill it alone are left out there."""
FIRST_TOKENS_EQUAL = 0.98
"""Share of the prompts whose first token 16 bits must leave as it is."""
LOGITS_APART = 0.02
"""Most that 16 bits may move the median row of logits, as a share of its length."""
ROOM_FOR_LUCK = 1.25
"""How many times as far as transformers' 16 bits ours may be in the mean: a few rows that go astray decide it."""


class Setting(NamedTuple):
    """One way of scheduling."""

    config: ReplicaConfig
    is_ahead: bool = False


def settings(max_model_len: int, *, chunk: int = 128) -> dict[str, Setting]:
    """Every way in which the same prompts are served, by its name."""

    def config(**changes: object) -> ReplicaConfig:
        fields = {"num_blocks": NUM_BLOCKS, "max_num_seqs": 12, "max_model_len": max_model_len, "prefill_chunk": chunk}
        return ReplicaConfig(**(fields | {"has_prefix_cache": False} | changes))  # type: ignore[arg-type]

    # Nothing is kept free for growth, so that sequences must preempt each other.
    small: dict[str, object] = {"num_blocks": SMALL_POOL, "growth_blocks": 0}
    return {
        "alone": Setting(config(policy=ReplicaPolicy.SINGLE, prefill_chunk=0)),
        "mixed, in chunks": Setting(config()),
        "mixed, whole prompts": Setting(config(prefill_chunk=0)),
        "ahead by a step": Setting(config(), is_ahead=True),
        "shared prefixes": Setting(config(has_prefix_cache=True)),
        "small pool": Setting(config(**small)),
        "small pool, shared prefixes, ahead": Setting(config(**small, has_prefix_cache=True), is_ahead=True),
        "contiguous": Setting(config(kv=KvMode.CONTIGUOUS)),
        "static": Setting(config(policy=ReplicaPolicy.STATIC)),
    }


def layout(max_model_len: int) -> KvLayout:
    """Room for each of the settings."""
    most = max(max_step_tokens(setting.config) for setting in settings(max_model_len).values())
    return KvLayout(num_blocks=NUM_BLOCKS, max_num_seqs=12, max_model_len=max_model_len, max_step_tokens=most)


def make_cases(text: Sequence[int], *, num: int, max_prompt_tokens: int, max_tokens: int, seed: int) -> list[Case]:
    """Prompts of 1 to `max_prompt_tokens` tokens of `text`: half from its beginning, which they share, half from anywhere.

    Lengths around a block's edge are among them."""
    random = Random(seed)
    lengths = [1, BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1, 3 * BLOCK_SIZE, max_prompt_tokens]
    lengths += [random.randint(1, max_prompt_tokens) for _ in range(num - len(lengths))]
    cases = []
    for index, length in enumerate(lengths[:num]):
        begin = 0 if index % 2 else random.randrange(len(text) - length)
        cases.append(Case(list(text[begin : begin + length]), max_tokens))
    return cases


def serve_setting(
    backend: TorchBackend, setting: Setting, cases: Sequence[Case], *, stop_ids: frozenset[int] = frozenset(), seed: int = 0
) -> tuple[Served, list[int]]:
    """Serves the cases that fit into the setting's pool; also returns which they are."""
    room = setting.config.num_blocks * BLOCK_SIZE
    fitting = [index for index, case in enumerate(cases) if len(case.prompt) + case.max_tokens <= room]
    served = serve(
        backend,
        setting.config,
        [cases[index] for index in fitting],
        stop_ids=stop_ids,
        seed=seed,
        is_ahead=setting.is_ahead,
    )
    return served, fitting


class Wrong(Exception):
    """An answer that is not transformers', or too far from it."""


def check_tokens(backend: TorchBackend, model: PreTrainedModel, cases: Sequence[Case], stop_ids: frozenset[int]) -> None:
    """Serves the cases in every setting. Raises Wrong if an answer differs in one of them."""
    started_at = time.perf_counter()
    expected = generate(model, cases, stop_ids=sorted(stop_ids))
    print(f"transformers: {sum(map(len, expected))} tokens in {time.perf_counter() - started_at:.0f} s", flush=True)
    num_wrong = 0
    for name, setting in settings(max_len(cases)).items():
        started_at = time.perf_counter()
        served, fitting = serve_setting(backend, setting, cases, stop_ids=stop_ids)
        differences = compare(model, [cases[at] for at in fitting], served.answers, [expected[at] for at in fitting])
        wrong = [difference for difference in differences if not difference.is_tie]
        num_wrong += len(wrong)
        counters = served.counters
        print(
            f"{name}: {len(fitting) - len(differences)} of {len(fitting)} equal, {len(differences) - len(wrong)} ties, "
            f"{counters.num_steps} steps, {counters.num_preemptions} preemptions, {counters.num_cached_tokens} cached tokens, "
            f"{time.perf_counter() - started_at:.0f} s",
            flush=True,
        )
        for difference in differences:
            print(f"    {difference}")
    if num_wrong:
        raise Wrong(f"{num_wrong} answers differ from transformers' by more than ties")


def check_logits(model: Transformer, wide: PreTrainedModel, narrow: PreTrainedModel, cases: Sequence[Case]) -> None:
    """Computes each prompt in one step, and holds what comes of it against transformers in float32 (`wide`).

    How far 16 bits may move a single row nobody can say: transformers' own (`narrow`) are up to 9 % away. So what is bounded is
    the median, and the mean by theirs. Raises Wrong if a bound is broken."""
    caches = model.allocate_caches(-(-max(len(case.prompt) for case in cases) // BLOCK_SIZE))
    num_equal, ours, theirs = 0, [], []
    for case in cases:
        table = array("i", range(-(-len(case.prompt) // BLOCK_SIZE)))
        part = ScheduledSequence(0, 0, case.prompt, 0, table, True, GREEDY)
        inputs = build_inputs(Step(1, (part,), len(case.prompt)), model.device)
        with torch.inference_mode():
            logits = model.forward(inputs.tensors, caches)[0].cpu()
        exact, rounded = next_logits(wide, case.prompt), next_logits(narrow, case.prompt)
        num_equal += int(logits.argmax()) in (int(exact.argmax()), int(rounded.argmax()))
        ours.append(float((logits - exact).norm() / exact.norm()))
        theirs.append(float((rounded - exact).norm() / exact.norm()))
    print(f"first tokens: {num_equal} of {len(cases)} are transformers', in float32 or in 16 bits")
    for whose, away in (("ours", ours), ("transformers'", theirs)):
        print(f"logits from float32's, {whose}: median {median(away):.2%}, mean {mean(away):.2%}, worst {max(away):.2%}")
    if num_equal < FIRST_TOKENS_EQUAL * len(cases):
        raise Wrong(f"fewer than {FIRST_TOKENS_EQUAL:.0%} of the first tokens are transformers'")
    if median(ours) > LOGITS_APART or mean(ours) > mean(theirs) * ROOM_FOR_LUCK:
        raise Wrong("the logits are further from float32's than 16 bits explain")


def max_len(cases: Sequence[Case]) -> int:
    return max(len(case.prompt) + case.max_tokens for case in cases)


def make_ops(device: torch.device, *, is_reference: bool) -> Ops:
    if is_reference:
        return TorchOps(device)
    if device.type == "cpu":
        return create_cpu_ops()
    from backends.llm.cuda_ops import CudaOps  # Needs triton, which a machine without a GPU may lack.

    return CudaOps(device)


def main(
    model: Annotated[str, typer.Option(help="smollm2, a folder or a .gguf file; of the Llama family")] = "smollm2",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16")] = "float32",
    device: str = "cpu",
    reference_ops: Annotated[bool, typer.Option(help="the plain operations, not the device's fast path")] = False,
    num_prompts: int = 64,
    max_prompt_tokens: int = 700,
    max_tokens: int = 32,
    seed: int = 0,
) -> None:
    """Compares the engine with transformers; exit code 1 if they differ."""
    path = find_model(model)
    config = read_config(path)
    tokenizer = load_tokenizer(path)
    text = tokenizer.encode((Path(__file__).parent.parent / "LICENSE").read_text())
    cases = make_cases(text, num=num_prompts, max_prompt_tokens=max_prompt_tokens, max_tokens=max_tokens, seed=seed)
    reference = as_transformers(config, load_weights(path, config, torch.float32))
    ops = make_ops(torch.device(device), is_reference=reference_ops)
    try:
        if dtype == "float32":
            backend = TorchBackend(config, lambda: load_weights(path, config, torch.float32), ops=ops, device=device)
            backend.load(layout(max_len(cases)))
            check_tokens(backend, reference, cases, tokenizer.stop_ids)
        else:
            weights = load_weights(path, config, getattr(torch, dtype))
            on_device = {name: weight.to(device) for name, weight in weights.items()}
            ours = Transformer(config, on_device, ops, max_len(cases))
            check_logits(ours, reference, as_transformers(config, weights), cases)
    except Wrong as wrong:
        print(wrong)
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
