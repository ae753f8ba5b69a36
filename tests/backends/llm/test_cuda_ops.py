"""The Triton kernels against the reference: on a GPU if there is one, else in Triton's interpreter."""

import importlib.util
import os
import random

import pytest
import torch
from torch import Tensor

from backends.llm.ops import HeadShape, Ops, Rope, StepTensors
from backends.llm.torch_ops import TorchOps
from batcher.types import BLOCK_SIZE

if importlib.util.find_spec("triton") is None:
    pytest.skip("triton is not installed, so its kernels cannot be run", allow_module_level=True)

HAS_GPU = "TRITON_INTERPRET" not in os.environ  # tests/conftest.py
from backends.llm.cuda_ops import CudaOps  # noqa: E402

DEVICE = torch.device("cuda" if HAS_GPU else "cpu")
DOT_DTYPES = [torch.float32, torch.bfloat16] if HAS_GPU else [torch.float32]
"""The interpreter computes with numpy, which knows no bfloat16 product."""
EPS = 1e-5


def make_pair() -> tuple[Ops, Ops]:
    """The reference and ours."""
    return TorchOps(DEVICE), CudaOps(DEVICE, num_processors=8)


def tolerance(dtype: torch.dtype) -> float:
    """float32 sums in another order; bfloat16 rounds to 8 bits (the interpreter cuts them off), once more or once less."""
    return 1e-5 if dtype == torch.float32 else 2e-2


def random_tensor(*size: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator).to(DEVICE, dtype)


def make_step(parts: list[tuple[int, int]], num_blocks: int) -> StepTensors:
    """A step of (new tokens, tokens before) for each sequence, decodes first, in shuffled blocks."""
    free = list(range(num_blocks))
    random.Random(0).shuffle(free)
    tables = [[free.pop() for _ in range(-(-(new + old) // BLOCK_SIZE))] for new, old in parts]
    width = max(map(len, tables))
    positions = [old + index for new, old in parts for index in range(new)]
    owners = [owner for owner, (new, _) in enumerate(parts) for _ in range(new)]
    slots = [
        tables[owner][position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        for owner, position in zip(owners, positions, strict=True)
    ]
    starts = [0]
    for new, _ in parts:
        starts.append(starts[-1] + new)
    return StepTensors(
        tokens=torch.zeros(len(positions), dtype=torch.int64, device=DEVICE),
        positions=torch.tensor(positions, device=DEVICE),
        cache_slots=torch.tensor(slots, device=DEVICE),
        block_tables=torch.tensor(
            [[*table, *[0] * (width - len(table))] for table in tables], dtype=torch.int32, device=DEVICE
        ),
        query_starts=torch.tensor(starts, dtype=torch.int32, device=DEVICE),
        kv_lens=torch.tensor([new + old for new, old in parts], dtype=torch.int32, device=DEVICE),
        sampled_rows=torch.tensor([end - 1 for end in starts[1:]], device=DEVICE),
        num_decodes=sum(new == 1 for new, _ in parts),
        max_query_len=max(new for new, _ in parts),
    )


def make_rope(num_positions: int, head_dim: int) -> Rope:
    angles = torch.arange(num_positions)[:, None] / 100.0 ** (torch.arange(head_dim // 2) / (head_dim // 2))
    return Rope(angles.cos().to(DEVICE), angles.sin().to(DEVICE))


@pytest.mark.parametrize("dtype", DOT_DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        (HeadShape(6, 2, 32), [(1, 0), (1, 15), (1, 200)]),
        (HeadShape(4, 4, 16), [(70, 0)]),
        (HeadShape(9, 3, 64), [(1, 33), (16, 16), (5, 100)]),
    ],
    ids=["decodes", "prompt", "mixed"],
)
def test_attention_over_what_was_stored(parts: list[tuple[int, int]], shape: HeadShape, dtype: torch.dtype) -> None:
    num_blocks = 40
    pair = make_pair()
    caches = [ops.allocate_cache(1, num_blocks, shape, dtype)[0] for ops in pair]
    rope = make_rope(256, shape.head_dim)
    width = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim
    q_norm, k_norm = (random_tensor(shape.head_dim, dtype=dtype, seed=seed) for seed in (1, 2))
    # What was there before, in chunks of their own, then the step itself.
    before = make_step([(old, 0) for _, old in parts if old], num_blocks) if any(old for _, old in parts) else None
    step = make_step(parts, num_blocks)
    if before is not None:
        index = [number for number, (_, old) in enumerate(parts) if old]
        tables = step.block_tables[index]
        slots = [
            int(tables[row][position // BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE
            for row, number in enumerate(index)
            for position in range(parts[number][1])
        ]
        before = before._replace(block_tables=tables, cache_slots=torch.tensor(slots, device=DEVICE))
    results = []
    for ops, cache in zip(pair, caches, strict=True):
        if before is not None:
            qkv = random_tensor(len(before.positions), width, dtype=dtype, seed=3)
            ops.rotate_and_store(qkv, before, cache, shape, rope, q_norm, k_norm, EPS)
        qkv = random_tensor(len(step.positions), width, dtype=dtype, seed=4)
        q = ops.rotate_and_store(qkv, step, cache, shape, rope, None, None, EPS)
        results.append((q, ops.attention(q, step, cache, shape)))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=tolerance(dtype), atol=tolerance(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [64, 576])
def test_norms(size: int, dtype: torch.dtype) -> None:
    x, residual = random_tensor(5, size, dtype=dtype), random_tensor(5, size, dtype=dtype, seed=1)
    weight = random_tensor(size, dtype=dtype, seed=2)
    reference, ours = pair = make_pair()
    torch.testing.assert_close(
        ours.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), rtol=tolerance(dtype), atol=tolerance(dtype)
    )
    sums = [residual.clone(), residual.clone()]
    normed = [ops.add_rms_norm(x, each, weight, EPS) for ops, each in zip(pair, sums, strict=True)]
    torch.testing.assert_close(sums[1], sums[0], rtol=tolerance(dtype), atol=tolerance(dtype))
    torch.testing.assert_close(normed[1], normed[0], rtol=tolerance(dtype), atol=tolerance(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_silu_mul(dtype: torch.dtype) -> None:
    gate_up = random_tensor(3, 2 * 1536, dtype=dtype)
    expected = TorchOps(DEVICE).silu_mul(gate_up)
    torch.testing.assert_close(
        CudaOps(DEVICE, num_processors=8).silu_mul(gate_up), expected, rtol=tolerance(dtype), atol=tolerance(dtype)
    )


def test_linear_is_the_definition() -> None:
    x, weight, bias = (random_tensor(*size, dtype=torch.float32) for size in ((3, 8), (5, 8), (5,)))
    torch.testing.assert_close(CudaOps(DEVICE, num_processors=8).linear(weight, bias)(x), x @ weight.T + bias)
