"""What a device can do at best: bytes read a second, and multiplications a second at a model's own sizes.

Each is the best of several tries in several ways: the floor that is made of them must be one that nothing on this machine
passes under, and other tenants of a machine only ever slow a try down.
"""

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import functional

_NUM_BYTES = {"cpu": 512 * 2**20, "cuda": 4 * 2**30}
"""Of the tensor that is read: several times the largest cache."""
_ROWS = {"cpu": (64, 256, 1024), "cuda": (1024, 4096, 8192)}
"""Tokens of a product: from a batch of decodes to a prefill chunk, where a device is at its best."""
_TRIES = 5


def measure_bandwidth(device: torch.device) -> float:
    """Bytes that are read a second."""
    data = torch.zeros(_NUM_BYTES[device.type] // 8, dtype=torch.int64, device=device)
    floats = data.view(torch.float32)
    return data.nbytes / min(_best_s(read, device) for read in (data.max, data.sum, floats.sum))


def measure_flops(shapes: Iterable[tuple[int, int]], dtype: torch.dtype, device: torch.device) -> float:
    """FLOP a second of the fastest product of these [out, in] weights with some rows."""
    rates = []
    for out, depth in shapes:
        weight = torch.randn((out, depth), device=device).to(dtype)
        for rows in _ROWS[device.type]:
            x = torch.randn((rows, depth), device=device).to(dtype)
            rates += [2 * rows * out * depth / _best_s(product, device) for product in _products(x, weight)]
    return max(rates)


def _products(x: Tensor, weight: Tensor) -> list[Callable[[], Tensor]]:
    """x @ weight.T in torch's own way, and with the weight laid out beforehand for the CPU's library where that takes it."""
    ways: list[Callable[[], Tensor]] = [lambda: functional.linear(x, weight)]
    has_library = x.device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    if has_library and (weight.dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()):
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(x))
        ways.append(lambda: torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""))
    return ways


def _best_s(work: Callable[[], object], device: torch.device) -> float:
    """The shortest of some tries, in seconds, after one that is not counted."""
    with torch.inference_mode():
        _timed_s(work, device)
        return min(_timed_s(work, device) for _ in range(_TRIES))


def _timed_s(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started_at = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started_at
