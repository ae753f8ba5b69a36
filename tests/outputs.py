"""Commands whose output goes where a shell sends it: onto a full disk, nowhere at all, or to a reader that has gone."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

FULL, CLOSED = " >/dev/full", " >&-"
WAYS = {"full": FULL, "closed": CLOSED}


def run(words: str, *, stdout: int = subprocess.PIPE) -> "subprocess.CompletedProcess[str]":
    """`words` are typed after `batcher`, as a shell understands them."""
    line = f"{sys.executable} -m batcher {words}"
    command = ["bash", "-c", line]
    return subprocess.run(command, cwd=ROOT, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=30, check=False)


def run_unread(words: str) -> "subprocess.CompletedProcess[str]":
    """Into a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return run(words, stdout=writer)
    finally:
        os.close(writer)
