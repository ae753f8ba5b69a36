"""The operations in plain torch: right on every device and in every dtype, and slow where that keeps them plain.

Every fast path is tested against these. So each is written as its definition reads, sums in float32 and rounds to the model's
dtype once, at its end; the gain of a fused or blocked form belongs to the devices' own files.
"""

import torch
from torch import Tensor
from torch.nn import functional

from backends.llm.ops import HeadShape, LayerCache, Linear, Rope, StepTensors
from batcher.types import BLOCK_SIZE

DECODES_AT_ONCE = 16
"""Decoding sequences whose keys and values are gathered together: bounds the copy when contexts are long."""
QUERIES_AT_ONCE = 512
"""Queries of one prompt that attend together: bounds the mask and the scores when a whole long prompt is one step."""


class TorchOps:
    """Implements `Ops`. A layer's cache is one tensor [2, blocks, BLOCK_SIZE, G, D]: keys, then values."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return lambda x: functional.linear(x, weight, bias)

    def allocate_cache(self, num_layers: int, num_blocks: int, shape: HeadShape, dtype: torch.dtype) -> list[LayerCache]:
        size = (2, num_blocks, BLOCK_SIZE, shape.num_kv_heads, shape.head_dim)
        return [torch.zeros(size, dtype=dtype, device=self._device) for _ in range(num_layers)]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
        return (wide * scale * weight.float()).to(x.dtype)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        residual += x
        return self.rms_norm(residual, weight, eps)

    def rotate_and_store(
        self,
        qkv: Tensor,
        step: StepTensors,
        cache: LayerCache,
        shape: HeadShape,
        rope: Rope,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
    ) -> Tensor:
        num_heads, num_kv_heads, head_dim = shape
        heads = qkv.reshape(len(qkv), -1, head_dim)  # [T, H + 2 G, D]
        q, k, v = torch.split(heads, [num_heads, num_kv_heads, num_kv_heads], dim=1)
        if q_norm is not None:
            q = self.rms_norm(q, q_norm, eps)
        if k_norm is not None:
            k = self.rms_norm(k, k_norm, eps)
        keys, values = cache.flatten(1, 2)  # [B * BLOCK_SIZE, G, D] each
        keys[step.cache_slots] = _rotate(k, step.positions, rope)
        values[step.cache_slots] = v
        return _rotate(q, step.positions, rope)

    def attention(self, q: Tensor, step: StepTensors, cache: LayerCache, shape: HeadShape) -> Tensor:
        out = torch.empty_like(q)
        for first in range(0, step.num_decodes, DECODES_AT_ONCE):
            some = slice(first, min(first + DECODES_AT_ONCE, step.num_decodes))
            out[some] = _attend_decodes(q[some], step.block_tables[some], step.kv_lens[some], cache)
        query_starts, kv_lens = step.query_starts.tolist(), step.kv_lens.tolist()
        for index in range(step.num_decodes, len(kv_lens)):
            mine = slice(query_starts[index], query_starts[index + 1])
            out[mine] = _attend_chunk(q[mine], step.block_tables[index], kv_lens[index], cache)
        return out.flatten(1)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.float().chunk(2, dim=-1)
        return (functional.silu(gate) * up).to(gate_up.dtype)


def _rotate(x: Tensor, positions: Tensor, rope: Rope) -> Tensor:
    """[T, heads, D] -> the same, each pair (i, i + D/2) turned by its position's angle."""
    cos, sin = rope.cos[positions].unsqueeze(1), rope.sin[positions].unsqueeze(1)  # [T, 1, D / 2]
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def _gather(block_tables: Tensor, num_positions: int, cache: Tensor) -> Tensor:
    """Keys and values [2, S, G, num_positions, D] of each table's first positions."""
    offsets = torch.arange(num_positions, device=cache.device)
    slots = block_tables[:, offsets // BLOCK_SIZE].long() * BLOCK_SIZE + offsets % BLOCK_SIZE  # [S, num_positions]
    return cache.flatten(1, 2)[:, slots].transpose(2, 3)


def _attend_decodes(q: Tensor, block_tables: Tensor, kv_lens: Tensor, cache: Tensor) -> Tensor:
    """One query of each sequence [S, H, D] over its own first `kv_lens` positions."""
    num_positions = int(kv_lens.max())
    keys, values = _gather(block_tables, num_positions, cache)
    mask = torch.arange(num_positions, device=q.device) < kv_lens[:, None]  # [S, positions]
    attended = functional.scaled_dot_product_attention(
        q.unsqueeze(2), keys, values, attn_mask=mask[:, None, None], enable_gqa=True
    )
    return attended.squeeze(2)


def _attend_chunk(q: Tensor, block_table: Tensor, kv_len: int, cache: Tensor) -> Tensor:
    """The last queries [n, H, D] of one sequence, each over the positions up to its own."""
    num_queries = len(q)
    keys, values = _gather(block_table.unsqueeze(0), kv_len, cache)
    out = torch.empty_like(q)
    for first in range(0, num_queries, QUERIES_AT_ONCE):
        last = min(first + QUERIES_AT_ONCE, num_queries)
        begin, end = kv_len - num_queries + first, kv_len - num_queries + last  # The positions of these queries.
        mask = torch.arange(end, device=q.device) <= torch.arange(begin, end, device=q.device)[:, None]  # [queries, end]
        attended = functional.scaled_dot_product_attention(
            q[first:last].transpose(0, 1).unsqueeze(0), keys[:, :, :end], values[:, :, :end], attn_mask=mask, enable_gqa=True
        )  # [1, H, queries, D]
        out[first:last] = attended.squeeze(0).transpose(0, 1)
    return out
