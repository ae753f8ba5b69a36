"""The CPU kernels against the reference, and against themselves: the same bits whatever else is in the batch."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from backends.llm import compile as compile_
from backends.llm import cpu_ops
from backends.llm.compile import CannotCompile, load_kernels
from backends.llm.cpu_ops import CpuOps
from backends.llm.ops import HeadShape, Rope, StepTensors
from backends.llm.torch_ops import TorchOps
from tests.backends.llm.test_torch_ops import EPS, make_step, random

SMOLLM2 = HeadShape(num_heads=9, num_kv_heads=3, head_dim=64)
SHAPES = [
    pytest.param(SMOLLM2, id="smollm2"),
    pytest.param(HeadShape(8, 2, 128), id="llama"),
    pytest.param(HeadShape(4, 4, 16), id="no-groups"),
    pytest.param(HeadShape(7, 1, 48), id="one-kv-head"),
    pytest.param(HeadShape(34, 2, 80), id="more-heads-in-a-group-than-a-tile-has"),
]
MIXED = [(70, 1), (3, 1), (0, 1), (63, 1), (64, 1), (16, 20), (0, 33), (31, 1), (47, 17)]
"""(positions there, tokens now): decodes, first tokens, chunks that begin and end inside blocks and at their edges."""
NUM_BLOCKS = 220
DTYPES = [pytest.param(torch.float32, id="f32"), pytest.param(torch.bfloat16, id="bf16")]


@pytest.fixture(scope="module", params=["native", "portable"])
def ops(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuOps]:
    """With all that this CPU can do, and as on one that has nothing but what every compiler knows of."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "portable":
            flags = [flag for flag in compile_.FLAGS if flag not in ("-march=native", "-O3")]
            patch.setattr(compile_, "FLAGS", (*flags, "-O1"))  # Quicker to compile.
            patch.setattr(cpu_ops, "_can_multiply", lambda dtype: True)
        try:
            yield CpuOps(load_kernels(tmp_path_factory.mktemp("kernels")))
        except CannotCompile as error:
            pytest.skip(f"the kernels cannot be compiled here: {error}")
        finally:
            torch.set_num_threads(threads)


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """In float32 two orders of summing differ by some roundings of 2 ** -24; in bfloat16 results may also differ by one unit of
    the last place (2 ** -7 of the value), after inputs that were rounded to 2 ** -9 of theirs."""
    rtol, atol = (1e-5, 1e-5) if dtype == torch.float32 else (2**-7, 2**-7)
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol)


def rope(num_positions: int, shape: HeadShape) -> Rope:
    angles = random(num_positions, shape.head_dim // 2, seed=2)
    return Rope(angles.cos(), angles.sin())


def qkv_of(step: StepTensors, shape: HeadShape, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return random(len(step.positions), (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim, seed=seed).to(dtype)


def attend(ops: CpuOps | TorchOps, step: StepTensors, shape: HeadShape, dtype: torch.dtype, qk_norm: bool = False) -> Tensor:
    """All of a step's attention, the positions before the step's own written by a step of their own."""
    (cache,) = ops.allocate_cache(1, NUM_BLOCKS, shape, dtype)
    tables = rope(int(step.kv_lens.max()), shape)
    q_norm, k_norm = (random(shape.head_dim, seed=seed).to(dtype) if qk_norm else None for seed in (3, 4))
    before = positions_before(step)
    if len(before.positions):
        ops.rotate_and_store(qkv_of(before, shape, dtype, seed=7), before, cache, shape, tables, q_norm, k_norm, EPS)
    q = ops.rotate_and_store(qkv_of(step, shape, dtype), step, cache, shape, tables, q_norm, k_norm, EPS)
    return ops.attention(q, step, cache, shape)


def positions_before(step: StepTensors) -> StepTensors:
    """A step that writes every position that `step` attends to and does not write itself."""
    positions: list[int] = []
    slots: list[int] = []
    begins = step.query_starts.tolist()
    for index, (table, kv_len) in enumerate(zip(step.block_tables.tolist(), step.kv_lens.tolist(), strict=True)):
        mine = range(kv_len - (begins[index + 1] - begins[index]))
        positions += mine
        slots += [table[position // 16] * 16 + position % 16 for position in mine]
    return step._replace(
        positions=torch.tensor(positions, dtype=torch.int64), cache_slots=torch.tensor(slots, dtype=torch.int64)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_over_what_was_stored(ops: CpuOps, shape: HeadShape, dtype: torch.dtype) -> None:
    step = make_step(MIXED, NUM_BLOCKS)
    assert_near(attend(ops, step, shape, dtype), attend(TorchOps(), step, shape, dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_heads_are_normed_before_they_are_rotated(ops: CpuOps, dtype: torch.dtype) -> None:
    step = make_step([(5, 1), (0, 9)], NUM_BLOCKS)
    expected = attend(TorchOps(), step, SMOLLM2, dtype, qk_norm=True)
    # The norm is rounded before the rotation: a unit more, and scores of up to 10 that it moves by 2 ** -8 of themselves.
    rtol, atol = (1e-5, 1e-5) if dtype == torch.float32 else (2**-5, 2**-5)
    torch.testing.assert_close(attend(ops, step, SMOLLM2, dtype, qk_norm=True), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(2999, 1)], id="one-decode-cut-over-threads"),
        pytest.param([(511, 1), (512, 1), (1023, 1)], id="at-the-edges-of-partitions"),
        pytest.param([(1000, 100)], id="a-chunk-across-an-edge"),
        pytest.param([(0, 1), (700, 1), (480, 40)], id="long-and-short"),
    ],
)
def test_long_contexts(ops: CpuOps, parts: list[tuple[int, int]], dtype: torch.dtype) -> None:
    step = make_step(parts, NUM_BLOCKS)
    assert_near(attend(ops, step, SMOLLM2, dtype), attend(TorchOps(), step, SMOLLM2, dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sequence_attends_alike_alone_in_a_batch_and_in_chunks(ops: CpuOps, dtype: torch.dtype) -> None:
    """To the bit: whether its contexts are cut over threads, and where its chunks begin, changes nothing."""
    length, shape = 1300, SMOLLM2
    whole = make_step([(0, length)], NUM_BLOCKS)
    qkv, tables = qkv_of(whole, shape, dtype), rope(length, shape)
    (cache,) = ops.allocate_cache(1, NUM_BLOCKS, shape, dtype)
    q = ops.rotate_and_store(qkv, whole, cache, shape, tables, None, None, EPS)
    expected = ops.attention(q, whole, cache, shape)
    for begin, end in ((0, 1), (0, 17), (500, 530), (1100, 1101), (1299, 1300)):
        slots, positions = whole.cache_slots[begin:end].clone(), whole.positions[begin:end].clone()
        for copies in (1, 12):  # Alone, and among so many that none is cut over threads.
            step = StepTensors(
                tokens=positions.repeat(copies),
                positions=positions.repeat(copies),
                cache_slots=slots.repeat(copies),
                block_tables=whole.block_tables.repeat(copies, 1),
                query_starts=(torch.arange(copies + 1) * (end - begin)).int(),
                kv_lens=torch.full((copies,), end, dtype=torch.int32),
                sampled_rows=torch.arange(copies),
                num_decodes=copies if end - begin == 1 else 0,
                max_query_len=end - begin,
            )
            rotated = ops.rotate_and_store(qkv[begin:end].repeat(copies, 1), step, cache, shape, tables, None, None, EPS)
            assert torch.equal(ops.attention(rotated, step, cache, shape), expected[begin:end].repeat(copies, 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_but_the_steps_slots_is_written(ops: CpuOps, dtype: torch.dtype) -> None:
    step = make_step([(30, 1), (14, 5)], num_blocks=8)
    (cache,) = ops.allocate_cache(1, 8, SMOLLM2, dtype)
    ops.rotate_and_store(qkv_of(step, SMOLLM2, dtype), step, cache, SMOLLM2, rope(40, SMOLLM2), None, None, EPS)
    per_word = 4 // dtype.itemsize
    blocks = cache.view(8, SMOLLM2.num_kv_heads, 2, -1)
    keys = blocks[:, :, 0].reshape(8, SMOLLM2.num_kv_heads, 64 // per_word, 16, per_word).permute(0, 3, 1, 2, 4)
    values = blocks[:, :, 1].reshape(8, SMOLLM2.num_kv_heads, 16 // per_word, 64, per_word).permute(0, 2, 4, 1, 3)
    for half in (keys.flatten(2).flatten(0, 1), values.flatten(0, 2).flatten(1)):  # [slots, channels]
        assert sorted(half.any(dim=1).nonzero().flatten().tolist()) == sorted(step.cache_slots.tolist())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(1, 576), (70, 576), (3, 37), (2, 16), (5, 15)])
def test_norms_and_activation(ops: CpuOps, rows: int, size: int, dtype: torch.dtype) -> None:
    reference = TorchOps()
    x, weight = random(rows, size).to(dtype), random(size, seed=1).to(dtype)
    assert_near(ops.rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS), dtype)
    mine, theirs = random(rows, size, seed=2).to(dtype), random(rows, size, seed=2).to(dtype)
    assert_near(ops.add_rms_norm(x, mine, weight, EPS), reference.add_rms_norm(x, theirs, weight, EPS), dtype)
    assert torch.equal(mine, theirs)
    gate_up = random(rows, 2 * size, seed=3).to(dtype) * 4
    assert_near(ops.silu_mul(gate_up), reference.silu_mul(gate_up), dtype)


def test_kernels_run_on_torchs_own_threads(ops: CpuOps) -> None:
    """A second pool would spin on the cores of the first."""
    a, linear = random(512, 512), ops.linear(random(960, 576), None)
    a @ a
    num_threads = len(list(Path("/proc/self/task").iterdir()))
    linear(random(64, 576))
    ops.silu_mul(random(512, 1024))
    assert len(list(Path("/proc/self/task").iterdir())) <= num_threads


def test_silu_of_what_is_huge(ops: CpuOps) -> None:
    gate = torch.tensor([-1e30, -200.0, -90.0, 0.0, 90.0, 200.0, 1e30, float("inf")] * 2)[None]
    out = ops.silu_mul(torch.cat((gate, torch.ones_like(gate)), dim=1))
    torch.testing.assert_close(out, torch.where(gate > 0, gate, 0.0), rtol=0, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("columns", "depth"), [(960, 576), (33, 16), (1, 8), (70, 6), (64, 7), (40, 4500)])
def test_linear(ops: CpuOps, columns: int, depth: int, dtype: torch.dtype) -> None:
    """Sums in float32 of exact products; the reference rounds once, as the kernel does."""
    weight, bias = random(columns, depth).to(dtype) / depth**0.5, random(columns, seed=1).to(dtype)
    for own_bias in (None, bias):
        linear = ops.linear(weight, own_bias)
        for rows in (0, 1, 2, 14, 15, 31, 150):
            x = random(rows, depth, seed=rows).to(dtype)
            expected = x.double() @ weight.double().T + (0 if own_bias is None else own_bias.double())
            assert_near(linear(x), expected.to(dtype), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_multiplied_alike_whatever_the_batch(ops: CpuOps, dtype: torch.dtype) -> None:
    if not ops.is_row_stable(dtype):
        pytest.skip("this CPU multiplies with the library, which sums by the number of rows")
    for columns, depth in ((960, 576), (40, 4500)):
        linear = ops.linear(random(columns, depth).to(dtype), None)
        x = random(300, depth, seed=1).to(dtype)
        whole = linear(x)
        for rows in (1, 2, 13, 40, 113):
            assert torch.equal(linear(x[:rows]), whole[:rows])


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_by_the_library(ops: CpuOps, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on CPUs whose matrix units only the library uses."""
    monkeypatch.setattr(cpu_ops, "_can_multiply", lambda dtype: False)
    weight, bias = random(48, 32).to(dtype) / 32**0.5, random(48, seed=1).to(dtype)
    linear = ops.linear(weight, bias)
    for rows in (0, 1, 5):
        x = random(rows, 32, seed=rows).to(dtype)
        assert_near(linear(x), (x.double() @ weight.double().T + bias.double()).to(dtype), dtype)


def test_heads_of_odd_sizes_are_left_to_the_reference(ops: CpuOps) -> None:
    shape = HeadShape(4, 2, 24)
    step = make_step([(20, 1), (3, 30)], NUM_BLOCKS)
    assert torch.equal(attend(ops, step, shape, torch.float32), attend(TorchOps(), step, shape, torch.float32))
