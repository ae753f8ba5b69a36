"""Small worlds, each drawn from one seed: with faults nothing wrong happens, and after them everything finishes."""

import pytest

from batcher.sim.scenario import draw, run
from batcher.sim.swarm import check_seeds, merge, swarm

NUM_SEEDS = 250

FOUND = {
    1: "The retry budget was used up, and innocents were told that run_batch raises on their very input.",
    2: "run_batch returned None, and the dispatcher raised.",
    13: "Paid requests filled every batch, and a free one that had been let in waited silently until its deadline.",
    22: "A stalled loop read an answer before it ticked, and told it to a caller whose deadline had passed.",
    24: "A stalled loop heard of a free worker before it ticked, and sent it a request whose deadline had passed.",
    33: "Many were answered and few came: deadlines that were called off piled up beyond the bound that the core states.",
    47: "run_batch returned a string as long as the batch, and each caller was answered with a letter of it.",
    3731: "After a tick that expired many at once, more forgotten deadlines were kept than the core's own law allows.",
    220: "Two lower tiers starved, and the slot was always the upper one's, though the other's oldest had waited longer.",
}
"""Faults that a seed has found, each with its story. Where a world changes (its traffic, what the core does in it) another seed
is named in its place: one that breaks the law while the fault is put back into the core."""


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_once_stays_mended(seed: int) -> None:
    assert [broken.what for broken in check_seeds(seed, 1).broken] == []


@pytest.mark.parametrize("first_seed", range(0, NUM_SEEDS, 50))
def test_no_law_is_broken(first_seed: int) -> None:
    report = check_seeds(first_seed, 50)
    assert [(broken.seed, broken.what) for broken in report.broken] == []


def test_a_seed_draws_the_same_world_and_the_same_story() -> None:
    def story(seed: int) -> list[str]:
        lines: list[str] = []
        run(draw(seed), tell=lines.append)
        return lines

    assert draw(7) == draw(7) != draw(8)
    assert story(7) == story(7) != story(8)


def test_the_swarm_tries_everything() -> None:
    """A swarm in which nothing is answered, or nothing goes wrong, finds nothing."""
    report = check_seeds(0, 60)
    assert set(report.outcomes) == {"ok", "rejected_capacity", "rejected_shutdown", "expired", "cancelled", "failed"}
    assert set(report.batches) == {"full", "pace", "timeout", "drain", "retry", "split"}
    assert set(report.faults) == {"died", "hung", "bad_output", "not_started", "raising"}
    assert report.outcomes["ok"] > 1000


def test_chunks_are_in_order_and_add_up() -> None:
    reports = list(swarm(3, 25, chunk=10))
    assert [(report.first_seed, report.num_seeds) for report in reports] == [(3, 10), (13, 10), (23, 5)]
    assert merge(reports) == check_seeds(3, 25)


def test_processes_do_not_change_what_is_reported() -> None:
    assert merge(list(swarm(0, 20, num_processes=2, chunk=5))) == merge(list(swarm(0, 20, chunk=5)))
