"""Many small worlds, a seed each, and which of them broke a law.

Seeds are independent, so they are shared out to processes in chunks; what is reported does not depend on how many those are.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import msgspec

from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.sim.books import LawBroken
from batcher.sim.scenario import draw, run

CHUNK = 100
"""Seeds that a process takes at a time: some seconds of work."""


class Broken(msgspec.Struct, frozen=True):
    """One seed whose world broke a law, or raised."""

    seed: int
    what: str


class SwarmReport(msgspec.Struct, frozen=True):
    first_seed: int
    num_seeds: int
    broken: tuple[Broken, ...]
    outcomes: dict[str, int]
    """How the requests of all sound worlds ended; a swarm that answers little tries little."""
    batches: dict[str, int]
    faults: dict[str, int]


def check_seeds(first_seed: int, num_seeds: int, create: Callable[..., Dispatcher] = Dispatcher) -> SwarmReport:
    """Lives the worlds of these seeds, one after the other, in this process."""
    broken: list[Broken] = []
    outcomes: Counter[str] = Counter()
    batches: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for seed in range(first_seed, first_seed + num_seeds):
        try:
            report = run(draw(seed), create=create)
        except Exception as error:
            what = str(error) if isinstance(error, LawBroken) else f"{type(error).__name__}: {error}"
            broken.append(Broken(seed, what))
        else:
            outcomes.update(report.outcomes)
            batches.update(report.batches)
            faults.update(report.faults)
    return SwarmReport(first_seed, num_seeds, tuple(broken), dict(outcomes), dict(batches), dict(faults))


def swarm(first_seed: int, num_seeds: int, *, num_processes: int = 1, chunk: int = CHUNK) -> Iterator[SwarmReport]:
    """Reports of the chunks, in order of their seeds."""
    end = first_seed + num_seeds
    chunks = [(seed, min(chunk, end - seed)) for seed in range(first_seed, end, chunk)]
    if num_processes == 1 or len(chunks) == 1:
        yield from (check_seeds(*chunk) for chunk in chunks)
        return
    # Spawned and not forked: a child must not inherit the locks of its parent's threads.
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(check_seeds, *zip(*chunks, strict=True))


def merge(reports: list[SwarmReport]) -> SwarmReport:
    """One report of adjoining ones."""
    return SwarmReport(
        reports[0].first_seed,
        sum(report.num_seeds for report in reports),
        tuple(broken for report in reports for broken in report.broken),
        dict(sum((Counter(report.outcomes) for report in reports), Counter())),
        dict(sum((Counter(report.batches) for report in reports), Counter())),
        dict(sum((Counter(report.faults) for report in reports), Counter())),
    )
