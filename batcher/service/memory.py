"""Memory that requests have left is given back to the system: the C library keeps it, for whoever may want it again.

A crowd with large bodies leaves it holding several times what the service needs, and every further crowd finds its pieces too
small and adds a little: a process that grows for weeks without a leak. A fixed size from which pieces are the system's at once
(M_MMAP_THRESHOLD) was refused: a model's tensors would be mapped anew at each step.
"""

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

KEPT_BYTES = 8 * 2**20
"""What may be held beyond the last time before it is worth the milliseconds (two for a hundred megabytes) that it takes."""

_STATM = Path("/proc/self/statm")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    """Of this process. Raises OSError where the system does not tell."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES


def find_trim() -> Callable[[], object] | None:
    """The C library's own way; None where it has none."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return None if trim is None else lambda: trim(0)


class Trimmer:
    """Asked now and then. `_floor_bytes` is what was resident after the last time."""

    def __init__(self, resident: Callable[[], int] = resident_bytes, trim: Callable[[], object] | None = None) -> None:
        self._resident = resident
        self._trim = trim or find_trim()
        self._floor_bytes = 0

    def trim(self) -> None:
        """Gives memory back if it may be worth it."""
        if self._trim is None:
            return
        try:
            resident = self._resident()
            if resident <= self._floor_bytes + KEPT_BYTES:
                self._floor_bytes = min(self._floor_bytes, resident)
                return
            self._trim()
            self._floor_bytes = self._resident()
        except OSError:
            self._trim = None
