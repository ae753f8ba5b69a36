"""Memory that requests have left is given back to the system: the C library keeps it, for whoever may want it again.

A crowd with large bodies leaves it holding several times what the service needs, and every further crowd finds its pieces too
small and adds a little: a process that grows for weeks without a leak. A fixed size from which pieces are the system's at once
(M_MMAP_THRESHOLD) was refused: a model's tensors would be mapped anew at each step.
"""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

KEPT_BYTES = 8 * 2**20
"""What may be held beyond the least there ever was, before it is worth the milliseconds that it takes: two for a hundred
megabytes."""

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
    """Asked now and then. Whether anything is spare nobody can tell: what was in use the last time may be spare now, with as
    much resident as before. So it is tried each time while there is more than the least, which is `_least_bytes`."""

    def __init__(self, resident: Callable[[], int] = resident_bytes, trim: Callable[[], object] | None = None) -> None:
        self._resident = resident
        self._trim = trim or find_trim()
        self._least_bytes = sys.maxsize

    def trim(self) -> None:
        """Gives memory back if it may be worth it."""
        if self._trim is None:
            return
        try:
            resident = self._resident()
        except OSError:
            self._trim = None
            return
        self._least_bytes = min(self._least_bytes, resident)
        if resident > self._least_bytes + KEPT_BYTES:
            self._trim()
