"""The workers' backend of `benchmarks.outage`, alone: each that starts reads this file and not the benchmark's, which takes two
seconds of CPU, in the middle of what is measured."""

import os
import time
from contextlib import suppress
from pathlib import Path

TICKETS = "OUTAGE_TICKETS"
"""Names a folder. A worker that starts takes a file out of it, if there is one, and waits until the folder is gone: as many are
kept away as were killed, and what is lost besides comes back."""
SERVICE_S = 0.2


class HeldBackend:
    """Takes SPEC S1.1's time for a batch, and starts when it is let."""

    def load(self) -> None:
        folder = Path(os.environ[TICKETS])
        if takes_one(folder):
            while folder.exists():
                time.sleep(0.05)

    def run_batch(self, inputs: list[str]) -> list[str]:
        time.sleep(SERVICE_S)
        return inputs


def takes_one(tickets: Path) -> bool:
    for ticket in tickets.glob("*"):
        with suppress(FileNotFoundError):  # Another one was quicker.
            ticket.unlink()
            return True
    return False
