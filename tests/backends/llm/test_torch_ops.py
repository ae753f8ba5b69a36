"""The reference operations against definitions written out with loops: each token by itself, no blocks, no batch."""

import math

import pytest
import torch
from torch import Tensor

from backends.llm.ops import HeadShape, Rope, StepTensors
from backends.llm.torch_ops import DECODES_AT_ONCE, TorchOps
from batcher.types import BLOCK_SIZE

SHAPE = HeadShape(num_heads=6, num_kv_heads=2, head_dim=8)
EPS = 1e-5


def random(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def make_step(parts: list[tuple[int, int]], num_blocks: int) -> StepTensors:
    """A step of sequences (start, query_len) whose blocks are scattered over the pool."""
    scattered = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    width = max(-(-(start + length) // BLOCK_SIZE) for start, length in parts)
    tables = []
    positions: list[int] = []
    slots: list[int] = []
    for start, length in parts:
        own = [scattered.pop() for _ in range(-(-(start + length) // BLOCK_SIZE))]
        tables.append(own + [0] * (width - len(own)))
        mine = range(start, start + length)
        positions += mine
        slots += [own[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for position in mine]
    lengths = torch.tensor([length for _, length in parts])
    kv_lens = [start + length for start, length in parts]
    return StepTensors(
        tokens=torch.zeros(len(positions), dtype=torch.int64),
        positions=torch.tensor(positions),
        cache_slots=torch.tensor(slots),
        block_tables=torch.tensor(tables, dtype=torch.int32),
        query_starts=torch.cat((torch.zeros(1, dtype=torch.int64), lengths.cumsum(0))).int(),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
        sampled_rows=lengths.cumsum(0) - 1,
        num_decodes=next((index for index, (_, length) in enumerate(parts) if length > 1), len(parts)),
        max_query_len=int(lengths.max()),
    )


def fill(cache: Tensor, step: StepTensors, shape: HeadShape) -> list[tuple[Tensor, Tensor]]:
    """Gives every position of every sequence random keys and values; returns them in order, [kv_len, G, D] each."""
    filled = []
    for index, (table, kv_len) in enumerate(zip(step.block_tables.tolist(), step.kv_lens.tolist(), strict=True)):
        keys, values = random(2, kv_len, shape.num_kv_heads, shape.head_dim, seed=index).to(cache.dtype)
        for position in range(kv_len):
            at = table[position // BLOCK_SIZE], position % BLOCK_SIZE
            cache[0, at[0], at[1]], cache[1, at[0], at[1]] = keys[position], values[position]
        filled.append((keys, values))
    return filled


def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query [H, D] over keys and values [positions, G, D], as the definition reads."""
    group = len(q) // keys.shape[1]
    out = []
    for head in range(len(q)):
        scores = keys[:, head // group].double() @ q[head].double() / math.sqrt(q.shape[1])
        out.append(scores.softmax(0) @ values[:, head // group].double())
    return torch.stack(out)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(0, 1)], id="first-token"),
        pytest.param([(40, 1), (0, 1), (15, 1), (16, 1)], id="decodes"),
        pytest.param([(index, 1) for index in range(DECODES_AT_ONCE + 3)], id="many-decodes"),
        pytest.param([(0, 37)], id="prompt"),
        pytest.param([(0, 600)], id="long-prompt"),
        pytest.param([(300, 5), (32, 17)], id="chunks"),
        pytest.param([(70, 1), (3, 1), (16, 20), (0, 33), (31, 1)], id="mixed"),
    ],
)
def test_attention_is_causal_over_each_sequences_own_blocks(parts: list[tuple[int, int]]) -> None:
    ops = TorchOps()
    step = make_step(parts, num_blocks=64)
    (cache,) = ops.allocate_cache(1, 64, SHAPE, torch.float32)
    cache.normal_(generator=torch.Generator().manual_seed(9))  # What is not theirs must not count.
    filled = fill(cache, step, SHAPE)
    q = random(len(step.positions), SHAPE.num_heads, SHAPE.head_dim, seed=5)
    attended = ops.attention(q, step, cache, SHAPE)
    begins = step.query_starts.tolist()
    expected = [
        attend(q[row], keys[: position + 1], values[: position + 1]).flatten()
        for index, (keys, values) in enumerate(filled)
        for row in range(begins[index], begins[index + 1])
        for position in (int(step.positions[row]),)
    ]
    torch.testing.assert_close(attended.double(), torch.stack(expected), rtol=1e-5, atol=1e-5)


def test_keys_are_rotated_and_stored_with_values_and_nothing_else_changes() -> None:
    ops = TorchOps()
    step = make_step([(30, 1), (14, 5)], num_blocks=8)
    (cache,) = ops.allocate_cache(1, 8, SHAPE, torch.float32)
    qkv = random(6, (SHAPE.num_heads + 2 * SHAPE.num_kv_heads) * SHAPE.head_dim)
    angles = random(40, SHAPE.head_dim // 2, seed=2)
    q_norm, k_norm = random(SHAPE.head_dim, seed=3), random(SHAPE.head_dim, seed=4)
    rope = Rope(angles.cos(), angles.sin())
    for norms in ((None, None), (q_norm, k_norm)):
        cache.zero_()
        q = ops.rotate_and_store(qkv, step, cache, SHAPE, rope, norms[0], norms[1], EPS)
        heads = qkv.view(6, -1, SHAPE.head_dim)

        def turned(x: Tensor, row: int, weight: Tensor | None) -> Tensor:
            if weight is not None:
                x = x / (x.square().mean() + EPS).sqrt() * weight
            # Pair (i, i + D/2) is a complex number that turns by its angle.
            angle = angles[int(step.positions[row])]
            pairs = torch.complex(x[: len(x) // 2], x[len(x) // 2 :]) * torch.polar(torch.ones_like(angle), angle)
            return torch.cat((pairs.real, pairs.imag))

        written = cache.clone().flatten(1, 2)
        for row, slot in enumerate(step.cache_slots.tolist()):
            for head in range(SHAPE.num_heads):
                torch.testing.assert_close(q[row, head], turned(heads[row, head], row, norms[0]), rtol=1e-5, atol=1e-5)
            for group in range(SHAPE.num_kv_heads):
                key, value = heads[row, SHAPE.num_heads + group], heads[row, SHAPE.num_heads + SHAPE.num_kv_heads + group]
                torch.testing.assert_close(written[0, slot, group], turned(key, row, norms[1]), rtol=1e-5, atol=1e-5)
                assert torch.equal(written[1, slot, group], value)
        written[:, step.cache_slots] = 0
        assert not written.any()


def test_norms() -> None:
    ops = TorchOps()
    x, weight = random(3, 16), random(16, seed=1)
    expected = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight
    torch.testing.assert_close(ops.rms_norm(x, weight, EPS), expected)
    residual = random(3, 16, seed=2)
    added = residual + x
    torch.testing.assert_close(ops.add_rms_norm(x, residual, weight, EPS), ops.rms_norm(added, weight, EPS))
    assert torch.equal(residual, added)


def test_silu_mul() -> None:
    gate, up = random(3, 7), random(3, 7, seed=1)
    torch.testing.assert_close(TorchOps().silu_mul(torch.cat((gate, up), dim=1)), gate * torch.sigmoid(gate) * up)


def test_linear() -> None:
    x, weight, bias = random(3, 5), random(4, 5, seed=1), random(4, seed=2)
    torch.testing.assert_close(TorchOps().linear(weight, None)(x), x @ weight.T)
    torch.testing.assert_close(TorchOps().linear(weight, bias)(x), x @ weight.T + bias)


def test_bfloat16_is_rounded_only_at_each_operations_end() -> None:
    """Against the same operation in float32 on the same inputs: half a unit of the last place, 2 ** -9 of the value."""
    ops = TorchOps()
    x, weight, gate_up = random(5, 64).bfloat16(), random(64, seed=1).bfloat16(), random(5, 32, seed=2).bfloat16()
    torch.testing.assert_close(
        ops.rms_norm(x, weight, EPS).float(), ops.rms_norm(x.float(), weight.float(), EPS), rtol=2**-8, atol=1e-6
    )
    torch.testing.assert_close(ops.silu_mul(gate_up).float(), ops.silu_mul(gate_up.float()), rtol=2**-8, atol=1e-6)
    step = make_step([(70, 1), (16, 20)], num_blocks=16)
    (cache,) = ops.allocate_cache(1, 16, SHAPE, torch.bfloat16)
    fill(cache, step, SHAPE)
    q = random(21, SHAPE.num_heads, SHAPE.head_dim).bfloat16()
    attended, expected = ops.attention(q, step, cache, SHAPE), ops.attention(q.float(), step, cache.float(), SHAPE)
    torch.testing.assert_close(attended.float(), expected, rtol=2**-7, atol=2**-7)
