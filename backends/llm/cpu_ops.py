"""The operations on a CPU: our own kernels, called with addresses and sizes.

Between the multiplications of a small model lie hundreds of small operations, and at a few milliseconds a step each of them
must cost a microsecond or two: torch's own need three to ten calls for what is one kernel here, and its attention copies the
cache before it reads it. Compiling the model with torch was refused: a minute and more for each batch size, and still no paged
cache.

With kernels for all of it, a row's result does not depend on what else is in the batch, nor on how its prompt was cut into
chunks (`is_row_stable`). The library's multiplication, which CPUs with matrix units get, promises neither.
"""

import ctypes
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from backends.llm.compile import CannotCompile, load_kernels
from backends.llm.cpu_memory import empty_on_huge_pages, keep_freed_memory
from backends.llm.ops import HeadShape, LayerCache, Linear, Ops, Rope, StepTensors
from backends.llm.torch_ops import TorchOps
from batcher.types import BLOCK_SIZE

logger = logging.getLogger(__name__)

MAX_HEAD_DIM = 256
"""Of the kernels' buffers (kMaxHeadDim)."""
_LANES = 16
_LIBRARY_ROWS = 32
"""For how many rows the library lays out a weight: measured, the layout is as good for 1 and for 512."""
_SUFFIXES = {torch.bfloat16: "bf16", torch.float32: "f32"}

_POINTER, _SIZE, _INT, _FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, list[Any]] = {
    "pack": [_POINTER, _POINTER, _SIZE, _SIZE, _INT],
    "linear": [_POINTER, _POINTER, _POINTER, _SIZE, _INT],
    "rms_norm": [_POINTER, _POINTER, _POINTER, _POINTER, _SIZE, _SIZE, _FLOAT, _INT],
    "silu_mul": [_POINTER, _POINTER, _SIZE, _SIZE, _INT],
    "rotate_and_store": [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _FLOAT],
    "attention": [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER],
}
"""Of the kernels that exist for each dtype, as `name_bf16` and `name_f32`."""
_LONG = ("pack", "linear", "attention")
"""Kernels that let other Python threads run meanwhile. The rest are over before it pays: whoever gives the lock up in a process
that also serves may wait milliseconds to have it back, a hundred times a step."""


class _Linear(ctypes.Structure):
    """`Linear` of matmul.cpp."""

    _fields_ = (("packed", _POINTER), ("bias", _POINTER), ("columns", _SIZE), ("depth", _SIZE))


class _Step(ctypes.Structure):
    """`Step` of step.h."""

    _fields_ = (
        ("positions", _POINTER),
        ("cache_slots", _POINTER),
        ("block_tables", _POINTER),
        ("table_width", _SIZE),
        ("query_starts", _POINTER),
        ("kv_lens", _POINTER),
        ("num_tokens", _SIZE),
        ("num_sequences", _SIZE),
        ("num_heads", _SIZE),
        ("num_kv_heads", _SIZE),
        ("head_dim", _SIZE),
        ("cos", _POINTER),
        ("sin", _POINTER),
        ("num_threads", _INT),
    )


def create_cpu_ops(cache: Path | None = None) -> Ops:
    """The fast operations, or the reference where the kernels cannot be compiled (then one warning says why).

    `cache` is where the compiled kernels are kept, the user's cache folder by default."""
    keep_freed_memory()
    try:
        return CpuOps(load_kernels(cache))
    except CannotCompile as error:
        logger.warning("the CPU kernels are not available, so steps take several times as long: %s", error)
        return TorchOps()


def _can_multiply(dtype: torch.dtype) -> bool:
    """Whether our own matrix multiplication is the fast one: with 512-bit vectors, and for bf16 with their dot product but
    without matrix units, which only the library uses."""
    if dtype == torch.float32:
        return torch.backends.cpu.get_cpu_capability().startswith("AVX512")
    return torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported()


class CpuOps:
    """Implements `Ops` for bfloat16 and float32, and any head size that is a multiple of 16 up to MAX_HEAD_DIM; other models
    get the reference's attention. One thread calls it. A layer's cache is a flat tensor, laid out as `kernels/step.h` draws it.

    What a StepTensors holds is read once: it must not be written to after its first use here.
    """

    def __init__(self, kernels: ctypes.CDLL) -> None:
        self._kernels = kernels
        self._functions = {dtype: self._resolve(suffix) for dtype, suffix in _SUFFIXES.items()}
        kernels.packed_words.argtypes = [_SIZE, _SIZE, _SIZE]
        kernels.packed_words.restype = _SIZE
        kernels.plan_attention.argtypes = [_POINTER, _POINTER]
        kernels.plan_attention.restype = None
        kernels.delete_plan.argtypes = [_POINTER]
        kernels.delete_plan.restype = None
        kernels.new_plan.restype = _POINTER
        self._plan: int = kernels.new_plan()
        weakref.finalize(self, kernels.delete_plan, self._plan)
        self._reference = TorchOps()
        self._step: tuple[StepTensors, HeadShape, Rope] | None = None  # What `_native` and the plan were made from.
        self._native = _Step()
        self._native_at = ctypes.addressof(self._native)
        self._num_threads = torch.get_num_threads()

    def _resolve(self, suffix: str) -> dict[str, Callable[..., None]]:
        functions = {}
        holding_lock = ctypes.PyDLL(self._kernels._name, handle=self._kernels._handle)
        for name, signature in _SIGNATURES.items():
            function = getattr(self._kernels if name in _LONG else holding_lock, f"{name}_{suffix}")
            function.argtypes, function.restype = signature, None
            functions[name] = function
        return functions

    def is_row_stable(self, dtype: torch.dtype) -> bool:
        """Whether a row's results have the same bits in every batch."""
        return dtype in self._functions and _can_multiply(dtype)

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        columns, depth = weight.shape
        dtype = weight.dtype
        if dtype not in self._functions or depth * weight.itemsize % 4:
            return lambda x: functional.linear(x, weight, bias)
        if not _can_multiply(dtype):
            return _library_linear(weight, bias)
        packed = empty_on_huge_pages(self._kernels.packed_words(columns, depth, weight.itemsize), torch.int32)
        source = weight.contiguous()
        self._functions[dtype]["pack"](source.data_ptr(), packed.data_ptr(), columns, depth, self._num_threads)
        wide_bias = None if bias is None else bias.float().contiguous()
        native = _Linear(packed.data_ptr(), None if wide_bias is None else wide_bias.data_ptr(), columns, depth)
        kept = (packed, wide_bias, native)  # Alive as long as the function below is.
        native_at = ctypes.addressof(native)
        multiply, num_threads = self._functions[dtype]["linear"], self._num_threads

        def run(x: Tensor, _kept: object = kept) -> Tensor:
            x = x.contiguous()
            out = torch.empty((len(x), columns), dtype=dtype)
            multiply(native_at, x.data_ptr(), out.data_ptr(), len(x), num_threads)
            return out

        return run

    def allocate_cache(self, num_layers: int, num_blocks: int, shape: HeadShape, dtype: torch.dtype) -> list[LayerCache]:
        if not self._can_attend(shape, dtype):
            return self._reference.allocate_cache(num_layers, num_blocks, shape, dtype)
        size = num_blocks * shape.num_kv_heads * 2 * BLOCK_SIZE * shape.head_dim
        return list(empty_on_huge_pages(num_layers * size, dtype).zero_().view(num_layers, size))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.dtype not in self._functions:
            return self._reference.rms_norm(x, weight, eps)
        x = x.contiguous()
        out = torch.empty_like(x)
        self._functions[x.dtype]["rms_norm"](
            x.data_ptr(), None, weight.data_ptr(), out.data_ptr(), len(x), x.shape[1], eps, self._num_threads
        )
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
        if x.dtype not in self._functions:
            return self._reference.add_rms_norm(x, residual, weight, eps)
        assert residual.is_contiguous()
        x = x.contiguous()
        out = torch.empty_like(x)
        self._functions[x.dtype]["rms_norm"](
            x.data_ptr(), residual.data_ptr(), weight.data_ptr(), out.data_ptr(), len(x), x.shape[1], eps, self._num_threads
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
        if not self._can_attend(shape, qkv.dtype):
            return self._reference.rotate_and_store(qkv, step, cache, shape, rope, q_norm, k_norm, eps)
        self._prepare(step, shape, rope)
        qkv = qkv.contiguous()
        queries = torch.empty((len(qkv), shape.num_heads, shape.head_dim), dtype=qkv.dtype)
        self._functions[qkv.dtype]["rotate_and_store"](
            self._native_at,
            qkv.data_ptr(),
            queries.data_ptr(),
            cache.data_ptr(),
            None if q_norm is None else q_norm.data_ptr(),
            None if k_norm is None else k_norm.data_ptr(),
            eps,
        )
        return queries

    def attention(self, q: Tensor, step: StepTensors, cache: LayerCache, shape: HeadShape) -> Tensor:
        if not self._can_attend(shape, q.dtype):
            return self._reference.attention(q, step, cache, shape)
        self._prepare(step, shape, None)
        q = q.contiguous()
        out = torch.empty((len(q), shape.num_heads * shape.head_dim), dtype=q.dtype)
        self._functions[q.dtype]["attention"](self._native_at, self._plan, q.data_ptr(), cache.data_ptr(), out.data_ptr())
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        if gate_up.dtype not in self._functions:
            return self._reference.silu_mul(gate_up)
        gate_up = gate_up.contiguous()
        rows, inner = len(gate_up), gate_up.shape[1] // 2
        out = torch.empty((rows, inner), dtype=gate_up.dtype)
        self._functions[gate_up.dtype]["silu_mul"](gate_up.data_ptr(), out.data_ptr(), rows, inner, self._num_threads)
        return out

    def _can_attend(self, shape: HeadShape, dtype: torch.dtype) -> bool:
        return dtype in self._functions and shape.head_dim % _LANES == 0 and shape.head_dim <= MAX_HEAD_DIM

    def _prepare(self, step: StepTensors, shape: HeadShape, rope: Rope | None) -> None:
        """Fills `_native` and makes the attention's plan, once for each step: all of its layers find the same."""
        known = self._step
        if known is not None and known[0] is step and known[1] == shape and (rope is None or known[2] is rope):
            return
        if rope is None:
            half = torch.empty(0)
            rope = known[2] if known is not None else Rope(half, half)  # The attention alone does not rotate.
        for tensor in (*step[:6], *rope):
            assert tensor.is_contiguous()
        self._native.__init__(  # type: ignore[misc]
            step.positions.data_ptr(),
            step.cache_slots.data_ptr(),
            step.block_tables.data_ptr(),
            step.block_tables.shape[1],
            step.query_starts.data_ptr(),
            step.kv_lens.data_ptr(),
            len(step.positions),
            len(step.kv_lens),
            *shape,
            rope.cos.data_ptr(),
            rope.sin.data_ptr(),
            self._num_threads,
        )
        self._step = (step, shape, rope)
        self._kernels.plan_attention(self._native_at, self._plan)


def _library_linear(weight: Tensor, bias: Tensor | None) -> Linear:
    """oneDNN's multiplication, with the weight in the layout it wants: about twice as fast on few rows as with torch's."""
    if weight.dtype != torch.bfloat16 or not (torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        return lambda x: functional.linear(x, weight, bias)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, _LIBRARY_ROWS)
    multiply, columns = torch.ops.mkldnn._linear_pointwise, weight.shape[0]
    return lambda x: multiply(x, packed, bias, "none", [], "") if len(x) else x.new_empty((0, columns))
