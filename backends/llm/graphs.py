"""Decode steps as CUDA graphs: one launch for the hundreds of kernels of a pass.

A decode step on a GPU takes a few milliseconds, about as long as a host needs to launch its kernels one by one. A graph is
recorded once for a number of sequences and replayed with other numbers in the same memory. A graph for each size would take
too much memory and time, so sizes are buckets, and a step is padded up to the next: its padding rows attend to one
position of a scratch block that no sequence owns.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from backends.llm.ops import StepTensors
from batcher.types import BLOCK_SIZE

Forward = Callable[[StepTensors], Tensor]
"""StepTensors -> logits [sampled, vocab]."""

_SMALL_BUCKETS = (1, 2, 4, 8)
_BUCKET_SPACING = 16
"""Above the small ones: at most 15 rows of padding, in a step that reads all weights anyway."""


def bucket_sizes(max_num_seqs: int) -> list[int]:
    """The numbers of sequences that graphs are recorded for, ascending; the last holds `max_num_seqs`."""
    small = [size for size in _SMALL_BUCKETS if size < max_num_seqs]
    return [*small, *range(_BUCKET_SPACING, max_num_seqs, _BUCKET_SPACING), max_num_seqs]


class PaddedStep:
    """A step of `size` decodes in memory that stays where it is. Rows beyond those filled in are padding."""

    def __init__(self, size: int, *, table_width: int, scratch_block: int, device: torch.device) -> None:
        self._scratch_block = scratch_block
        self.tensors = StepTensors(
            tokens=torch.zeros(size, dtype=torch.int64, device=device),
            positions=torch.zeros(size, dtype=torch.int64, device=device),
            cache_slots=torch.zeros(size, dtype=torch.int64, device=device),
            block_tables=torch.zeros((size, table_width), dtype=torch.int32, device=device),
            query_starts=torch.arange(size + 1, dtype=torch.int32, device=device),
            kv_lens=torch.zeros(size, dtype=torch.int32, device=device),
            sampled_rows=torch.arange(size, device=device),
            num_decodes=size,
            max_query_len=1,
        )
        self._pad_from(0)

    def fill(self, step: StepTensors) -> None:
        """Copies a step of at most `size` decodes in, without waiting for the device."""
        num = step.num_decodes
        for name in ("tokens", "positions", "cache_slots", "kv_lens"):
            getattr(self.tensors, name)[:num].copy_(getattr(step, name))
        self.tensors.block_tables[:num, : step.block_tables.shape[1]].copy_(step.block_tables)
        self._pad_from(num)

    def _pad_from(self, num: int) -> None:
        tensors = self.tensors
        tensors.tokens[num:].zero_()
        tensors.positions[num:].zero_()
        tensors.cache_slots[num:].fill_(self._scratch_block * BLOCK_SIZE)
        tensors.block_tables[num:, :1].fill_(self._scratch_block)
        tensors.kv_lens[num:].fill_(1)


class _Recorded(NamedTuple):
    step: PaddedStep
    graph: torch.cuda.CUDAGraph
    logits: Tensor  # [size, vocab]; the next replay writes over it


class DecodeGraphs:
    """Recorded forward passes of decodes, by size. Read-only after birth but for the memory that they compute in."""

    def __init__(
        self, forward: Forward, *, max_num_seqs: int, max_model_len: int, scratch_block: int, device: torch.device
    ) -> None:
        """Records them all, the largest first, so that the smaller ones fit into its memory. Takes seconds."""
        self._sizes = bucket_sizes(max_num_seqs)
        self._recorded: dict[int, _Recorded] = {}
        pool = torch.cuda.graph_pool_handle()
        table_width = -(-max_model_len // BLOCK_SIZE)
        for size in reversed(self._sizes):
            step = PaddedStep(size, table_width=table_width, scratch_block=scratch_block, device=device)
            forward(step.tensors)  # Compiles and allocates what a recording may not.
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                logits = forward(step.tensors)
            self._recorded[size] = _Recorded(step, graph, logits)

    @staticmethod
    def fits(step: StepTensors) -> bool:
        """Whether a step is decodes alone."""
        return step.num_decodes == len(step.kv_lens)

    def run(self, step: StepTensors) -> Tensor:
        """The logits [sampled, vocab] of a step that `fits`."""
        size = next(size for size in self._sizes if size >= step.num_decodes)
        recorded = self._recorded[size]
        recorded.step.fill(step)
        recorded.graph.replay()
        return recorded.logits[step.sampled_rows]
