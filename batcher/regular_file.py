"""Files that others name, opened for reading: a regular file, or an error, and at once.

What is no regular file has no end that can be relied on: a named pipe that nobody writes to holds up whoever opens it, for
ever, and a device gives bytes as long as it is asked. To look at it before it is opened was refused: it may be another by then.
"""

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(file: Path) -> BufferedReader:
    """For reading. Raises OSError, whose `strerror` says why, also of what is no regular file."""
    stream = open(file, "rb", opener=_open_at_once)  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise OSError(errno.EINVAL, "it is no regular file", str(file))
    return stream


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)
