"""GPUs with troubles that `tests.backends.faulty` does not have: MODULE:ATTRs for the tests here, told what to do by files.

The environment variable GPUS_DIR names a directory; a file in it is an order, and the test that makes or removes it the giver.
"""

import os
import time
from pathlib import Path

POLL_S = 0.005


def _ordered(order: str) -> bool:
    return Path(os.environ["GPUS_DIR"], order).exists()


class Answers:
    def run_batch(self, inputs: list[str]) -> list[str]:
        return [f"<{text}>" for text in inputs]


class NeedsPower(Answers):
    """Loads only while there is a file `power`, and dies in a batch when there is none."""

    def load(self) -> None:
        if not _ordered("power"):
            raise RuntimeError("no power")

    def run_batch(self, inputs: list[str]) -> list[str]:
        if not _ordered("power"):
            raise SystemExit("no power")
        return super().run_batch(inputs)


class Freezes(Answers):
    """Its batches never end while there is a file `ice`."""

    def run_batch(self, inputs: list[str]) -> list[str]:
        while _ordered("ice"):
            time.sleep(POLL_S)
        return super().run_batch(inputs)


class LeavesOneBehind(Answers):
    """Worker 0 takes long to close, worker 1 long to load."""

    def __init__(self, index: int) -> None:
        self.index = index

    def load(self) -> None:
        if self.index == 1:
            time.sleep(60)

    def close(self) -> None:
        if self.index == 0:
            time.sleep(0.7)
