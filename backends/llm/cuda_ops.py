"""The fast path for CUDA: cuBLAS for the linears, Triton kernels for everything else.

Nothing here looks at a tensor's contents from the host, so a step of decodes can be captured as a CUDA graph: the number of
splits of the context depends on the number of sequences, not on their lengths.
"""

import torch
import triton
from torch import Tensor
from torch.nn import functional

from backends.llm import triton_kernels as kernels
from backends.llm.ops import HeadShape, LayerCache, Linear, Rope, StepTensors
from batcher.errors import ConfigError
from batcher.types import BLOCK_SIZE

_MIN_ROWS = 16
"""Rows of a tile that tensor cores multiply at once."""
_QUERY_TILE_ROWS = 64
"""Rows of a prefill tile: (queries) x (heads of a group)."""
_KV_TILE = 64
_MAX_SPLITS = 32
_PROGRAMS_PER_PROCESSOR = 4
"""Programs of the decode kernel that keep one multiprocessor busy; more sequences need fewer splits of each."""
_INNER_TILE = 1024


class CudaOps:
    """An Ops. A layer's cache is a pair (keys, values), each [blocks, G, BLOCK_SIZE, D]."""

    def __init__(self, device: torch.device, *, num_processors: int | None = None) -> None:
        self._device = device
        self._num_processors = num_processors or torch.cuda.get_device_properties(device).multi_processor_count

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return lambda x: functional.linear(x, weight, bias)

    def allocate_cache(
        self, num_layers: int, num_blocks: int, shape: HeadShape, dtype: torch.dtype
    ) -> list[tuple[Tensor, Tensor]]:
        if shape.head_dim < _MIN_ROWS or shape.head_dim & (shape.head_dim - 1):
            raise ConfigError(f"head_dim is {shape.head_dim}; on a GPU it must be a power of two, 16 or more")
        size = (num_blocks, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim)
        return [
            (torch.zeros(size, dtype=dtype, device=self._device), torch.zeros(size, dtype=dtype, device=self._device))
            for _ in range(num_layers)
        ]

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._norm(x, x, weight, eps, adds=False)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._norm(x, residual, weight, eps, adds=True)

    def _norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, adds: bool) -> Tensor:
        rows, size = x.shape
        out = torch.empty_like(x)
        kernels.add_rms_norm_kernel[(rows,)](
            x, residual, weight, out, eps, size=size, size_padded=triton.next_power_of_2(size), adds=adds
        )
        return out

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
        keys, values = cache
        q = torch.empty((len(qkv), num_heads, head_dim), dtype=qkv.dtype, device=qkv.device)
        kernels.rotate_and_store_kernel[(len(qkv), num_heads + 2 * num_kv_heads)](
            qkv, q, keys, values, step.positions, step.cache_slots, rope.cos, rope.sin,
            qkv if q_norm is None else q_norm, qkv if k_norm is None else k_norm, eps,
            H=num_heads, G=num_kv_heads, D=head_dim, HALF=head_dim // 2, BLOCK=BLOCK_SIZE, has_norm=q_norm is not None,
        )  # fmt: skip
        return q

    def attention(self, q: Tensor, step: StepTensors, cache: LayerCache, shape: HeadShape) -> Tensor:
        out = torch.empty_like(q)
        if step.num_decodes:
            self._decode(q, out, step, cache, shape)
        if step.num_decodes < len(step.kv_lens):
            self._prefill(q, out, step, cache, shape)
        return out.flatten(1)

    def _decode(self, q: Tensor, out: Tensor, step: StepTensors, cache: LayerCache, shape: HeadShape) -> None:
        num_heads, num_kv_heads, head_dim = shape
        num, group = step.num_decodes, num_heads // num_kv_heads
        splits = self._num_splits(num * num_kv_heads)
        maxima = torch.empty((num, num_heads, splits), dtype=torch.float32, device=q.device)
        totals = torch.empty_like(maxima)
        partials = torch.empty((num, num_heads, splits, head_dim), dtype=torch.float32, device=q.device)
        kernels.decode_attention_kernel[(num, num_kv_heads, splits)](
            q, maxima, totals, partials, *cache, step.block_tables, step.kv_lens, step.block_tables.shape[1], head_dim**-0.5,
            H=num_heads, G=num_kv_heads, GROUP=group, ROWS=max(_MIN_ROWS, triton.next_power_of_2(group)), D=head_dim,
            BLOCK=BLOCK_SIZE, KV_TILE=_KV_TILE, NUM_SPLITS=splits,
        )  # fmt: skip
        kernels.join_splits_kernel[(num * num_heads,)](maxima, totals, partials, out, D=head_dim, NUM_SPLITS=splits)

    def _num_splits(self, num_programs: int) -> int:
        wanted = max(1, _PROGRAMS_PER_PROCESSOR * self._num_processors // num_programs)
        return min(_MAX_SPLITS, 1 << (wanted - 1).bit_length())

    def _prefill(self, q: Tensor, out: Tensor, step: StepTensors, cache: LayerCache, shape: HeadShape) -> None:
        num_heads, num_kv_heads, head_dim = shape
        group = num_heads // num_kv_heads
        padded = triton.next_power_of_2(group)
        tile = max(1, _QUERY_TILE_ROWS // padded)
        num = len(step.kv_lens) - step.num_decodes
        kernels.prefill_attention_kernel[(num, -(-step.max_query_len // tile), num_kv_heads)](
            q, out, *cache, step.block_tables, step.query_starts, step.kv_lens, step.num_decodes, step.block_tables.shape[1],
            head_dim**-0.5, H=num_heads, G=num_kv_heads, GROUP=group, GROUP_PADDED=padded, D=head_dim, BLOCK=BLOCK_SIZE,
            QUERY_TILE=tile, KV_TILE=_KV_TILE,
        )  # fmt: skip

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        rows, inner = len(gate_up), gate_up.shape[1] // 2
        out = torch.empty((rows, inner), dtype=gate_up.dtype, device=gate_up.device)
        kernels.silu_mul_kernel[(rows, -(-inner // _INNER_TILE))](gate_up, out, inner, tile=_INNER_TILE)
        return out
