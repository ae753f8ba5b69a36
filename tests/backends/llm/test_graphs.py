"""What a CUDA graph replays is a padded step, whose rows must be the step's own. Recording needs a GPU; padding does not."""

import torch

from backends.llm.graphs import DecodeGraphs, PaddedStep, bucket_sizes
from backends.llm.ops import HeadShape, StepTensors
from backends.llm.torch_ops import TorchOps
from batcher.types import BLOCK_SIZE

SHAPE = HeadShape(4, 2, 16)
NUM_BLOCKS = 8
CPU = torch.device("cpu")


def make_step(kv_lens: list[int]) -> StepTensors:
    """Decodes at the ends of these contexts, in blocks 0, 1, 2, ..."""
    num = len(kv_lens)
    return StepTensors(
        tokens=torch.arange(num),
        positions=torch.tensor(kv_lens) - 1,
        cache_slots=torch.tensor([2 * row * BLOCK_SIZE + kv_len - 1 for row, kv_len in enumerate(kv_lens)]),
        block_tables=torch.tensor([[2 * row, 2 * row + 1] for row in range(num)], dtype=torch.int32),
        query_starts=torch.arange(num + 1, dtype=torch.int32),
        kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
        sampled_rows=torch.arange(num),
        num_decodes=num,
        max_query_len=1,
    )


def test_buckets_hold_every_number_of_sequences() -> None:
    assert bucket_sizes(1) == [1]
    assert bucket_sizes(6) == [1, 2, 4, 6]
    assert bucket_sizes(64) == [1, 2, 4, 8, 16, 32, 48, 64]
    assert bucket_sizes(70)[-2:] == [64, 70]


def test_a_padded_step_attends_as_the_step_itself_does_also_after_a_larger_one() -> None:
    ops = TorchOps()
    [cache] = ops.allocate_cache(1, NUM_BLOCKS + 1, SHAPE, torch.float32)
    generator = torch.Generator().manual_seed(1)
    cache.copy_(torch.randn(cache.shape, generator=generator))
    padded = PaddedStep(4, table_width=4, scratch_block=NUM_BLOCKS, device=CPU)
    for kv_lens in ([5, 20, 17], [1, 31]):
        step = make_step(kv_lens)
        padded.fill(step)
        q = torch.randn((4, SHAPE.num_heads, SHAPE.head_dim), generator=generator)
        expected = ops.attention(q[: len(kv_lens)], step, cache, SHAPE)
        torch.testing.assert_close(ops.attention(q, padded.tensors, cache, SHAPE)[: len(kv_lens)], expected)
        rows = slice(len(kv_lens), None)
        assert (padded.tensors.cache_slots[rows] == NUM_BLOCKS * BLOCK_SIZE).all()
        assert (padded.tensors.kv_lens[rows] == 1).all()


def test_only_decodes_alone_are_replayed() -> None:
    assert DecodeGraphs.fits(make_step([3, 4]))
    assert not DecodeGraphs.fits(make_step([3, 4])._replace(num_decodes=1))
