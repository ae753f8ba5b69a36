"""When memory is given back, and that it is."""

from batcher.service.memory import KEPT_BYTES, Trimmer, find_trim, resident_bytes


class Process:
    """What is resident, and what of it a trim gives back."""

    def __init__(self) -> None:
        self.resident = self.spare = 0
        self.num_trims = 0

    def trim(self) -> None:
        self.num_trims += 1
        self.resident, self.spare = self.resident - self.spare, 0


def test_memory_is_given_back_when_enough_has_come_together() -> None:
    process = Process()
    trimmer = Trimmer(lambda: process.resident, process.trim)
    process.resident = 100 * 2**20
    trimmer.trim()
    process.resident += KEPT_BYTES
    trimmer.trim()
    assert process.num_trims == 0
    process.resident, process.spare = process.resident + 1, KEPT_BYTES
    trimmer.trim()
    assert (process.num_trims, process.resident) == (1, 100 * 2**20 + 1)


def test_what_was_in_use_is_asked_back_later() -> None:
    """It was held against what had been resident after the last time: what came free after that stayed for ever."""
    process = Process()
    trimmer = Trimmer(lambda: process.resident, process.trim)
    process.resident = 50 * 2**20
    trimmer.trim()
    process.resident = 100 * 2**20
    trimmer.trim()
    process.spare = 50 * 2**20
    for _ in range(3):
        trimmer.trim()
    assert (process.num_trims, process.resident) == (2, 50 * 2**20)


def test_where_the_system_does_not_tell_it_is_not_asked_again() -> None:
    asked: list[None] = []

    def resident() -> int:
        asked.append(None)
        raise FileNotFoundError

    trimmer = Trimmer(resident, lambda: None)
    for _ in range(3):
        trimmer.trim()
    assert len(asked) == 1


def test_here_it_can_be_done() -> None:
    assert resident_bytes() > 10 * 2**20
    trim = find_trim()
    assert trim is not None
    trim()
