"""How memory is had and kept on a CPU, where torch leaves both to the C library.

What it does by default is meant for programs that use memory once. A step's results are new memory a hundred times over, and a
cache of keys and values is read in scattered pieces for as long as the process lives. Buffers of our own were refused: they
would have to know how long each result lives, and would not serve the operations that torch does.
"""

import contextlib
import ctypes
import mmap

import torch
from torch import Tensor

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
KEPT_ALLOCATION_BYTES = 32 << 20
"""The most that the C library takes: the float32 logits of 160 rows of a small model."""
KEPT_BYTES = 256 << 20
"""Freed memory at the end of the heap that is kept: more than the results of a step of 2,048 tokens."""


def keep_freed_memory() -> None:
    """Lets the C library keep what is freed for the next allocation, instead of giving it back to the system at once.

    Above some 100 kB the system would map a result's pages anew each time, which takes several times as long as computing it.
    Where there is no such setting, nothing happens."""
    with contextlib.suppress(AttributeError, OSError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, KEPT_ALLOCATION_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def empty_on_huge_pages(size: int, dtype: torch.dtype) -> Tensor:
    """A flat tensor on pages of 2 MiB, as far as the system has them: scattered blocks are read a tenth faster."""
    tensor = torch.empty(size, dtype=dtype)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        begin = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        num_bytes = tensor.data_ptr() + tensor.nbytes - begin
        if num_bytes > 0:
            # Advice only: what a system makes of it changes no result.
            ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(num_bytes), mmap.MADV_HUGEPAGE)
    return tensor
