"""The checkers can fail: each law is broken on purpose, by a dispatcher that differs from the real one in one thing."""

from collections.abc import Callable, Iterator

import pytest

from batcher.config import PolicyName
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.sim.swarm import check_seeds
from tests.sim.mutant_parts import (
    GenerousTiers,
    HastyWorkers,
    PatientWorkers,
    Silent,
    StarvingTiers,
    TrustingWorkers,
    UnevenTiers,
    with_free_canaries,
    with_lavish_splits,
    with_tiers,
    with_workers,
)
from tests.sim.mutants import (
    Blaming,
    Credulous,
    Deaf,
    Distrusting,
    Doubling,
    Favouring,
    Losing,
    OneLine,
    Rearming,
    Swapping,
    Undead,
    Unforgiving,
    configured,
    with_tiers_reversed,
)

MAX_SEEDS = 200
"""Worlds in which the law must be seen broken; most are in the first ten. A broken dispatcher breaks others, too."""


def broken_laws(create: Callable[..., Dispatcher]) -> Iterator[str]:
    """The first law that each world breaks, seed by seed."""
    for seed in range(MAX_SEEDS):
        yield from (broken.what for broken in check_seeds(seed, 1, create).broken)


@pytest.mark.parametrize(
    ("create", "law"),
    [
        (Swapping, "an answer is f of the request's own input"),
        (Doubling, "a request has one end"),
        (Losing, "outputs reach all who wait for them"),
        (Undead, "a request has one end"),
        (Deaf, "cancel tells whether the request was live"),
        (Rearming, "nobody waits longer than the timeout while a worker is free"),
        (Credulous, "an answer comes of the run that just returned"),
        (Favouring, "a worker runs one batch at a time"),
        (Blaming, "only a poison input is refused as one"),
        (Unforgiving, "a worker is given up once"),
        (Distrusting, "everything finishes"),
        (OneLine, "no tenant has two turns while another waits for one"),
        (with_tiers_reversed, "a lower tier is never taken before a higher one"),
        (configured(policy=PolicyName.STATIC), "nobody waits longer than the timeout while a worker is free"),
        (configured(max_batch_size=1), "a batch takes all that fits"),
        (configured(max_attempts=10), "attempts are bounded"),
        (configured(max_attempts=1), "a request fails after its last attempt"),
        (configured(retry_reserve=10_000), "extra calls stay in their budget"),
        (configured(retry_reserve=0, retry_ratio=0.0), "a request fails after its last attempt"),
        (configured(max_waiting=20_000), "requests that wait are bounded"),
        (configured(max_waiting_bytes=2**30), "bytes that wait are bounded"),
        (Silent, "who finds no room is told when to come back"),
        (with_workers(TrustingWorkers), "a worker that failed is tried with one request"),
        (with_workers(TrustingWorkers), "a batch takes all that fits"),
        (with_workers(PatientWorkers), "a worker that failed is tried with one request"),
        (with_workers(HastyWorkers), "a worker is blamed for raises when there were many in a row"),
        (with_lavish_splits, "splits leave losses their share"),
        (with_free_canaries, "extra calls stay in their budget"),
        (with_tiers(StarvingTiers), "a slot goes to the tier of the oldest that starves"),
        (with_tiers(GenerousTiers), "a lower tier is never taken before a higher one"),
        (with_tiers(UnevenTiers), "a slot goes to the tier of the oldest that starves"),
        (configured(service_time_s=0.001, first_batch_timeout_s=0.001), "a slow worker is no hung one"),
    ],
)
def test_a_broken_dispatcher_is_found_out(create: Callable[..., Dispatcher], law: str) -> None:
    assert any(what.startswith(law) for what in broken_laws(create))
