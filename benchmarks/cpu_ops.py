"""What a step costs on this CPU, operation by operation, beside what the machine could do at best.

Random weights in SmolLM2-135M's shape: the time does not depend on their values. A shared machine drifts by half within
minutes, so every round measures each variant once, in turns, and medians over the rounds are printed: read ratios, not
milliseconds.

    python -m benchmarks.cpu_ops [--rounds 15] [--no-reference]
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import cast

import torch
from torch import Tensor

from backends.llm.cpu_ops import create_cpu_ops
from backends.llm.model import Transformer
from backends.llm.ops import Linear, Ops, StepTensors
from backends.llm.torch_ops import TorchOps
from batcher.types import BLOCK_SIZE
from benchmarks.models import SHAPES, RandomLlama

SMOLLM2 = SHAPES[RandomLlama.SMALL]
NUM_BLOCKS = 1024
CONTEXT = 192
STEPS = [
    *((f"decode, batch {batch}, context {CONTEXT}", [(CONTEXT - 1, 1)] * batch) for batch in (1, 8, 32, 64)),
    ("decode, batch 1, context 8,000", [(7_999, 1)]),
    ("prefill, 128 tokens", [(0, 128)]),
    ("prefill, 1,024 tokens", [(0, 1_024)]),
    ("prefill, tokens 7,000 to 7,512", [(7_000, 512)]),
    ("mixed, 31 decodes and a chunk of 128", [*[(CONTEXT - 1, 1)] * 31, (128, 128)]),
]
"""A name, and (positions there, tokens now) of each sequence."""


class TimedOps:
    """Any Ops, with the time of each operation summed up by name."""

    def __init__(self, ops: Ops) -> None:
        self._linear = ops.linear
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.allocate_cache = ops.allocate_cache
        self.rms_norm = self._timed("rms_norm", ops.rms_norm)
        self.add_rms_norm = self._timed("add_rms_norm", ops.add_rms_norm)
        self.rotate_and_store = self._timed("rotate_and_store", ops.rotate_and_store)
        self.attention = self._timed("attention", ops.attention)
        self.silu_mul = self._timed("silu_mul", ops.silu_mul)

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        name = "head" if len(weight) == SMOLLM2.vocab_size else f"linear {weight.shape[1]} to {weight.shape[0]}"
        return self._timed(name, self._linear(weight, bias))

    def _timed(self, name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*args: object) -> Tensor:
            begin = time.perf_counter()
            result = function(*args)
            self.seconds[name] += time.perf_counter() - begin
            return result

        return run


def random_weights(dtype: torch.dtype) -> dict[str, Tensor]:
    hidden, inner = SMOLLM2.hidden_size, SMOLLM2.intermediate_size
    kv = SMOLLM2.num_kv_heads * SMOLLM2.head_dim
    shapes = {"model.embed_tokens": (SMOLLM2.vocab_size, hidden), "model.norm": (hidden,)}
    for index in range(SMOLLM2.num_layers):
        layer = f"model.layers.{index}."
        shapes |= {layer + "input_layernorm": (hidden,), layer + "post_attention_layernorm": (hidden,)}
        shapes |= {layer + "self_attn.q_proj": (hidden, hidden), layer + "self_attn.o_proj": (hidden, hidden)}
        shapes |= {layer + "self_attn.k_proj": (kv, hidden), layer + "self_attn.v_proj": (kv, hidden)}
        shapes |= {layer + "mlp.gate_proj": (inner, hidden), layer + "mlp.up_proj": (inner, hidden)}
        shapes |= {layer + "mlp.down_proj": (hidden, inner)}
    return {f"{name}.weight": (torch.randn(shape) * 0.02).to(dtype) for name, shape in shapes.items()}


def make_step(parts: list[tuple[int, int]]) -> StepTensors:
    """Blocks are scattered over the cache, as after hours of service."""
    free = torch.randperm(NUM_BLOCKS).tolist()
    width = max(-(-(start + length) // BLOCK_SIZE) for start, length in parts)
    tables = torch.tensor([[free.pop() for _ in range(width)] for _ in parts], dtype=torch.int32)
    lengths = torch.tensor([length for _, length in parts])
    positions = torch.cat([torch.arange(start, start + length) for start, length in parts])
    rows = torch.arange(len(parts)).repeat_interleave(lengths)
    kv_lens = [start + length for start, length in parts]
    return StepTensors(
        tokens=torch.randint(SMOLLM2.vocab_size, (len(positions),)),
        positions=positions,
        cache_slots=tables[rows, positions // BLOCK_SIZE].long() * BLOCK_SIZE + positions % BLOCK_SIZE,
        block_tables=tables,
        query_starts=torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int(),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
        sampled_rows=lengths.cumsum(0) - 1,
        num_decodes=sum(length == 1 for _, length in parts),
        max_query_len=int(lengths.max()),
    )


def measure_machine(rounds: int) -> tuple[float, float]:
    """Bytes/s of reading memory, and operations/s of a large bfloat16 multiplication with packed weights."""
    memory = torch.ones(1 << 27)  # 512 MiB, beyond any cache
    x, weight = torch.randn(2_048, 2_048).bfloat16(), torch.randn(2_048, 2_048).bfloat16()
    multiply = create_cpu_ops().linear(weight, None)
    bandwidth = memory.nbytes / statistics.median(_seconds(lambda: memory.sum()) for _ in range(rounds))
    rate = 2 * 2_048**3 / statistics.median(_seconds(lambda: multiply(x)) for _ in range(rounds))
    return bandwidth, rate


def _seconds(run: Callable[[], object]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def floor_s(step: StepTensors, bandwidth: float, rate: float) -> float:
    """Reading all weights and the step's keys and values once, or multiplying, whichever takes longer."""
    layer = SMOLLM2.hidden_size * (2 * SMOLLM2.hidden_size + 2 * SMOLLM2.num_kv_heads * SMOLLM2.head_dim)
    layer += 3 * SMOLLM2.hidden_size * SMOLLM2.intermediate_size
    layers, head = layer * SMOLLM2.num_layers, SMOLLM2.vocab_size * SMOLLM2.hidden_size
    kv = 2 * SMOLLM2.num_layers * SMOLLM2.num_kv_heads * SMOLLM2.head_dim * int(step.kv_lens.sum())
    operations = 2 * (layers * len(step.tokens) + head * len(step.sampled_rows))
    return max(2 * (layers + head + kv) / bandwidth, operations / rate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--no-reference", action="store_true", help="leave the operations in plain torch out")
    arguments = parser.parse_args()
    bandwidth, rate = measure_machine(arguments.rounds)
    print(f"{torch.get_num_threads()} threads, reading {bandwidth / 1e9:.1f} GB/s, bfloat16 {rate / 1e12:.2f} TFLOP/s")
    fast = TimedOps(create_cpu_ops())
    all_ops = [fast] if arguments.no_reference else [fast, TimedOps(TorchOps())]
    models = [Transformer(SMOLLM2, random_weights(torch.bfloat16), cast(Ops, ops), SMOLLM2.context_len) for ops in all_ops]
    with torch.inference_mode():
        caches = [model.allocate_caches(NUM_BLOCKS) for model in models]
        for name, parts in STEPS:
            seconds: list[list[float]] = [[] for _ in models]
            for round_ in range(arguments.rounds + 1):
                for index, model in enumerate(models):
                    seconds[index].append(_seconds(partial(model.forward, make_step(parts), caches[index])))
                if round_ == 0:  # Warms up.
                    seconds = [[] for _ in models]
                    fast.seconds.clear()
            report(name, seconds, floor_s(make_step(parts), bandwidth, rate), fast, arguments.rounds)


def report(name: str, seconds: list[list[float]], floor: float, fast: TimedOps, rounds: int) -> None:
    mine, *reference = (statistics.median(each) * 1e3 for each in seconds)
    beside = f", plain torch {reference[0]:.1f}" if reference else ""
    print(f"\n{name}: {mine:.1f} ms (least {min(seconds[0]) * 1e3:.1f}; floor {floor * 1e3:.1f}{beside})", flush=True)
    shares = sorted(fast.seconds.items(), key=lambda item: -item[1])
    print("    " + ", ".join(f"{operation} {total / rounds * 1e3:.2f}" for operation, total in shares), flush=True)


if __name__ == "__main__":
    main()
