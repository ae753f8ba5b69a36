"""The operations of the forward pass that differ by device, behind one signature; `model.py` says in which order they run.

There is one reference in plain torch (`torch_ops.py`) and one fast path for each device; tests hold them against each other.
The layout of the KV cache is the implementation's own: a CPU wants keys interleaved for its vector units, a GPU coalesced.

Shapes: T tokens and S sequences of a step, H query heads, G key-value heads, D head size, B blocks, N blocks in a table's row.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

Linear = Callable[[Tensor], Tensor]
"""[T, in] -> [T, out]."""


class StepTensors(NamedTuple):
    """A step on its device. Sequences stand in the step's order: those with one token first, then prefill chunks."""

    tokens: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    cache_slots: Tensor  # [T] int64: block * BLOCK_SIZE + offset, where the token's keys and values go
    block_tables: Tensor  # [S, N] int32; a row's tail beyond its sequence is unspecified, but a valid block id
    query_starts: Tensor  # [S + 1] int32: where each sequence's tokens begin in [T]
    kv_lens: Tensor  # [S] int32: positions to attend to, this step's own among them
    sampled_rows: Tensor  # [sampled] int64: rows of [T] whose logits are wanted
    num_decodes: int
    """The first so many sequences have one token each."""
    max_query_len: int


class Rope(NamedTuple):
    """Rotary tables: pairs are (i, i + D/2), as Hugging Face lays them out."""

    cos: Tensor  # [positions, D / 2] float32, any attention factor multiplied in
    sin: Tensor  # [positions, D / 2] float32


class HeadShape(NamedTuple):
    num_heads: int  # H
    num_kv_heads: int  # G
    head_dim: int  # D


LayerCache = Any
"""One layer's keys and values, as its Ops lays them out."""


class Ops(Protocol):
    """Everything is in the model's dtype unless it says otherwise; sums are in float32."""

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Prepares `x @ weight.T + bias` (weight [out, in]) for many calls with few or many rows; may keep a copy in a layout
        of its own, and then the caller drops the original."""

    def allocate_cache(self, num_layers: int, num_blocks: int, shape: HeadShape, dtype: torch.dtype) -> list[LayerCache]:
        """Room for `num_blocks` blocks in each layer. Unwritten positions are finite."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """[T, hidden] -> the same shape."""

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Adds `x` to `residual` in place, and returns the norm of the sum."""

    def rotate_and_store(
        self,
        qkv: Tensor,  # [T, (H + 2 G) * D]
        step: StepTensors,
        cache: LayerCache,
        shape: HeadShape,
        rope: Rope,
        q_norm: Tensor | None,  # [D], Qwen3's norm of each head before rotation
        k_norm: Tensor | None,
        eps: float,
    ) -> Tensor:
        """Rotates queries and keys, writes keys and values at `cache_slots`, and returns the queries [T, H, D]."""

    def attention(self, q: Tensor, step: StepTensors, cache: LayerCache, shape: HeadShape) -> Tensor:
        """Causal attention of each sequence's queries over the first `kv_lens` positions of its blocks, scaled by D ** -0.5.

        [T, H, D] -> [T, H * D]."""

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """[T, 2 * inner] -> [T, inner]: silu of the first half times the second."""
