"""From a scheduler's step to tensors, in numpy and in one copy: nothing here runs once per token in Python.

At 256 sequences that takes a fraction of a millisecond, which counts where a device takes a few for the rest. Sending each
tensor by itself was refused: every copy to a device costs about as much as preparing all of them.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backends.llm.ops import StepTensors
from backends.llm.transfer import to_device
from batcher.types import BLOCK_SIZE, PENDING, Sampling, ScheduledSequence, Step

Ints = NDArray[np.int64]

_ALIGNMENT = 2
"""In numbers of 8 bytes: kernels may count on each tensor starting at a multiple of 16 bytes."""


class StepInputs(NamedTuple):
    tensors: StepTensors
    has_pending: bool
    """Whether some decode's token is PENDING."""
    decode_slots: Tensor  # [num_decodes] int64
    sampled_slots: Tensor  # [sampled] int64
    samplings: Sequence[Sampling]
    """One for each sampled row."""
    sampled_positions: Sequence[int]
    """Where each sampled token will stand."""


def build_inputs(step: Step, device: torch.device) -> StepInputs:
    """Reads all of `step` that is needed; keeps nothing that the scheduler may write to."""
    # Padding is the first decode once more: it writes what that writes, to the same place, and is not sampled.
    num_padding = step.num_padding
    sequences = (step.sequences[0],) * num_padding + step.sequences if num_padding else step.sequences
    query_lens: Ints = np.array([len(sequence.tokens) for sequence in sequences], np.int64)
    starts: Ints = np.array([sequence.start for sequence in sequences], np.int64)
    kv_lens = starts + query_lens
    num_blocks = -(-kv_lens // BLOCK_SIZE)
    query_starts: Ints = np.zeros(len(sequences) + 1, np.int64)
    np.cumsum(query_lens, out=query_starts[1:])
    num_tokens = int(query_starts[-1])
    longer = query_lens > 1
    num_decodes = int(longer.argmax()) if longer.any() else len(sequences)
    sampled = [index for index, sequence in enumerate(step.sequences, num_padding) if sequence.is_sampled]

    pack = _Pack(
        tokens=(num_tokens,),
        positions=(num_tokens,),
        cache_slots=(num_tokens,),
        sampled_rows=(len(sampled),),
        decode_slots=(num_decodes,),
        sampled_slots=(len(sampled),),
        block_tables=(len(sequences), int(num_blocks.max())),
        query_starts=query_starts.shape,
        kv_lens=kv_lens.shape,
    )
    tokens, positions = pack.wide("tokens"), pack.wide("positions")
    _fill_tokens(tokens, sequences, query_starts, num_decodes)
    sequence_of = np.repeat(np.arange(len(sequences)), query_lens)  # [T]
    positions[:] = np.arange(num_tokens) + (starts - query_starts[:-1])[sequence_of]
    block_tables = pack.narrow("block_tables")
    for row, sequence, count in zip(block_tables, sequences, num_blocks.tolist(), strict=True):
        row[:count] = np.frombuffer(sequence.block_table, np.int32, count)
    blocks = block_tables[sequence_of, positions // BLOCK_SIZE].astype(np.int64)
    pack.wide("cache_slots")[:] = blocks * BLOCK_SIZE + positions % BLOCK_SIZE
    pack.wide("sampled_rows")[:] = query_starts[1:][sampled] - 1
    pack.wide("decode_slots")[:] = [sequence.slot for sequence in sequences[:num_decodes]]
    pack.wide("sampled_slots")[:] = [sequences[index].slot for index in sampled]
    pack.narrow("query_starts")[:] = query_starts
    pack.narrow("kv_lens")[:] = kv_lens
    has_pending = bool((tokens[:num_decodes] == PENDING).any())

    sent = pack.send(device)
    return StepInputs(
        tensors=StepTensors(
            tokens=sent["tokens"],
            positions=sent["positions"],
            cache_slots=sent["cache_slots"],
            block_tables=sent["block_tables"],
            query_starts=sent["query_starts"],
            kv_lens=sent["kv_lens"],
            sampled_rows=sent["sampled_rows"],
            num_decodes=num_decodes,
            max_query_len=int(query_lens.max()),
        ),
        has_pending=has_pending,
        decode_slots=sent["decode_slots"],
        sampled_slots=sent["sampled_slots"],
        samplings=[sequences[index].sampling for index in sampled],
        sampled_positions=kv_lens[sampled].tolist(),
    )


def _fill_tokens(tokens: Ints, sequences: Sequence[ScheduledSequence], query_starts: Ints, num_decodes: int) -> None:
    tokens[:num_decodes] = [sequence.tokens[0] for sequence in sequences[:num_decodes]]
    begins = query_starts.tolist()
    for index in range(num_decodes, len(sequences)):
        tokens[begins[index] : begins[index + 1]] = sequences[index].tokens


class _Pack:
    """Integer arrays side by side in one buffer, which travels whole."""

    _NARROW = ("block_tables", "query_starts", "kv_lens")
    """Those that are int32 on the device; the others are int64."""

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        self._shapes = shapes
        self._begins: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        total = 0
        for name, shape in shapes.items():
            size = int(np.prod(shape))
            self._begins[name], self._sizes[name] = total, size
            words = -(-size // 2) if name in self._NARROW else size
            total += -(-words // _ALIGNMENT) * _ALIGNMENT
        # Zeros: what a block table's row leaves unset must be a block that exists.
        self._buffer: Ints = np.zeros(total, np.int64)

    def wide(self, name: str) -> Ints:
        begin = self._begins[name]
        return self._buffer[begin : begin + self._sizes[name]].reshape(self._shapes[name])

    def narrow(self, name: str) -> "NDArray[np.int32]":
        begin = 2 * self._begins[name]
        return self._buffer.view(np.int32)[begin : begin + self._sizes[name]].reshape(self._shapes[name])

    def send(self, device: torch.device) -> dict[str, Tensor]:
        wide = to_device(self._buffer, device)
        narrow = wide.view(torch.int32)
        sent = {}
        for name, shape in self._shapes.items():
            source, begin = (narrow, 2 * self._begins[name]) if name in self._NARROW else (wide, self._begins[name])
            sent[name] = source[begin : begin + self._sizes[name]].view(shape)
        return sent
