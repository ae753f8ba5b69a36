"""What a command prints, where standard output takes nothing: it is closed, or the disk behind it is full.

To let the system's error out was refused: it comes as a traceback, or only at the interpreter's end and in words of its own,
and of an output that is closed it does not come at all.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from batcher.errors import Unprinted, Unread


def require_printable() -> None:
    """Raises Unprinted if it is known before that nothing can be printed. A full disk shows only when something is."""
    if sys.stdout is None:
        raise Unprinted("standard output is closed, and so nothing was done")


@contextmanager
def printing() -> Iterator[None]:
    """What is printed within is out at its end. Raises Unprinted."""
    require_printable()
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        _give_up()
        kind = Unread if isinstance(error, BrokenPipeError) else Unprinted
        raise kind(f"standard output takes nothing: {error.strerror}") from error


def _give_up() -> None:
    """What still waits to be printed goes nowhere: at its end the interpreter would try again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
