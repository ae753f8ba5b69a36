"""Draws follow the distribution that the settings ask for, and depend on their own row, seed and position alone."""

import numpy as np
import pytest
import torch
from torch import Tensor

from backends.llm import sampler
from backends.llm.sampler import sample, uniforms
from batcher.types import GREEDY, Sampling

NUM_DRAWS = 4000


def draw(row: list[float], sampling: Sampling, num_draws: int = NUM_DRAWS) -> list[int]:
    """Tokens that one row of logits gives at the positions from 0 on."""
    logits = torch.tensor([row]).expand(num_draws, -1)
    return [int(token) for token in sample(logits, [sampling] * num_draws, list(range(num_draws)))]


def chi_square(tokens: list[int], expected: list[float]) -> float:
    """How far the counts are from `expected` probabilities, per degree of freedom: about 1 when they are right."""
    counts = np.bincount(tokens, minlength=len(expected))
    wanted = np.array(expected) * len(tokens)
    likely = wanted > 0
    assert not counts[~likely].any(), "drew what has no probability"
    return float(((counts - wanted)[likely] ** 2 / wanted[likely]).sum() / max(likely.sum() - 1, 1))


def probabilities(row: list[float], temperature: float = 1.0) -> list[float]:
    weights = np.exp(np.array(row) / temperature)
    return [float(weight) for weight in weights / weights.sum()]


def long_row(vocab_size: int = 5000) -> Tensor:
    return torch.randn(vocab_size, generator=torch.Generator().manual_seed(3)) * 2


ROW = [0.0, 1.0, 2.0, 1.5, -1.0, -3.0]


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    assert sample(logits, [GREEDY, GREEDY], [0, 0]).tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_alone_gives_the_softmax(temperature: float) -> None:
    tokens = draw(ROW, Sampling(temperature=temperature, seed=1))
    assert chi_square(tokens, probabilities(ROW, temperature)) < 2.0


def test_top_k_keeps_the_likeliest() -> None:
    tokens = draw(ROW, Sampling(top_k=2, seed=2))
    (second, third) = probabilities([2.0, 1.5])
    assert chi_square(tokens, [0, 0, second, third, 0, 0]) < 2.0


def test_top_p_keeps_the_fewest_that_hold_the_mass() -> None:
    # The softmax of these logits is 0.5, 0.3, 0.15, 0.05.
    row = np.log([0.15, 0.5, 0.05, 0.3]).tolist()
    assert chi_square(draw(row, Sampling(top_p=0.79, seed=3)), [0, 5 / 8, 0, 3 / 8]) < 2.0
    assert chi_square(draw(row, Sampling(top_p=0.81, seed=3)), [3 / 19, 10 / 19, 0, 6 / 19]) < 2.0


def test_top_p_is_counted_on_what_temperature_and_top_k_left() -> None:
    row = np.log([0.4, 0.3, 0.2, 0.1]).tolist()
    # Among the best two the first holds 4/7 = 0.571: 0.56 leaves it alone, 0.58 does not.
    assert set(draw(row, Sampling(top_k=2, top_p=0.56))) == {0}
    assert set(draw(row, Sampling(top_k=2, top_p=0.58))) == {0, 1}
    # At temperature 0.5 the first holds 16/30 = 0.533 of all.
    assert set(draw(row, Sampling(temperature=0.5, top_p=0.53))) == {0}
    assert set(draw(row, Sampling(temperature=0.5, top_p=0.54))) == {0, 1}


@pytest.mark.parametrize(
    "sampling",
    [Sampling(top_p=0.0), Sampling(top_p=1e-9), Sampling(top_k=1), Sampling(temperature=1e-300), Sampling(temperature=1e-6)],
)
def test_the_narrowest_settings_leave_one_token(sampling: Sampling) -> None:
    assert set(draw(ROW, sampling, 50)) == {2}


def test_equal_logits_at_a_cut_are_kept_by_id() -> None:
    row = [1.0, 2.0, 1.0, 1.0, 2.0, 1.0]
    assert set(draw(row, Sampling(top_k=1))) == {1}
    assert set(draw(row, Sampling(top_k=3))) == {1, 4, 0}
    # Zeros of either sign are equal.
    assert set(draw([-0.0, 0.0, -5.0], Sampling(top_k=1))) == {0}


def test_negative_logits_are_ordered() -> None:
    assert set(draw([-3.0, -1.0, -2.0, -4.0], Sampling(top_k=2))) == {1, 2}


def test_wide_nuclei_are_searched_beyond_the_first_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few candidates are tried first, the draws are the same; here for narrow and wide nuclei in one batch."""
    logits = long_row().repeat(60, 1)
    samplings = [Sampling(top_p=top_p, seed=5) for top_p in (0.1, 0.9, 0.99, 0.999999, 0.5, 0.95)] * 10
    drawn = {}
    for count in (10, 1024, 10_000):
        monkeypatch.setattr(sampler, "NUCLEUS_CANDIDATES", count)
        drawn[count] = sample(logits, samplings, range(60)).tolist()
    assert drawn[10] == drawn[1024] == drawn[10_000]
    assert len(set(drawn[10])) > 20


@pytest.mark.parametrize("settings", [{"top_k": 20}, {"top_k": 300, "top_p": 0.8}, {"top_p": 0.5}, {"top_p": 0.99}])
def test_candidates_are_those_of_a_whole_sort_however_many_are_equal(settings: dict[str, float]) -> None:
    """Logits as coarse as 16-bit ones: cuts fall among equals, and among the last candidates."""
    for spacing in (0.01, 0.25, 1.0, 4.0):
        logits = (long_row() / spacing).round().mul(spacing).repeat(40, 1)
        sampling = Sampling(seed=8, **settings)  # type: ignore[arg-type]
        prepared = sampler._settings([sampling] * 40, range(40), 5000, logits.device)
        kind = sampler._kind(sampling, 5000)
        assert sample(logits, [sampling] * 40, range(40)).tolist() == sampler._draw(kind, logits, 5000, prepared).tolist()


def test_a_nucleus_of_a_long_row_holds_its_mass() -> None:
    row = long_row()
    weights = row.double().softmax(0).sort(descending=True)
    width = int((weights.values.cumsum(0) < 0.9).sum()) + 1
    nucleus = set(weights.indices[:width].tolist())
    tokens = set(draw(row.tolist(), Sampling(top_p=0.9), 1000))
    assert tokens <= nucleus


MIXED = [
    GREEDY,
    Sampling(temperature=0.7, seed=11),
    Sampling(temperature=1.3, top_k=40, seed=12),
    Sampling(top_p=0.9, seed=13),
    Sampling(top_k=7, top_p=0.5, seed=14),
    GREEDY,
    Sampling(temperature=0.2, top_p=0.999, seed=15),
    Sampling(top_k=2000, seed=16),
]


def test_a_draw_is_the_same_alone_and_in_any_company() -> None:
    logits = torch.randn(len(MIXED), 5000, generator=torch.Generator().manual_seed(4)) * 2
    positions = [5, 90, 3, 17, 0, 2, 44, 1000]
    together = sample(logits, MIXED, positions).tolist()
    alone = [
        sample(row.unsqueeze(0), [sampling], [position]).item()
        for row, sampling, position in zip(logits, MIXED, positions, strict=True)
    ]
    assert together == alone
    backwards = sample(logits.flip(0), MIXED[::-1], positions[::-1]).tolist()
    assert backwards[::-1] == alone


def test_a_coarse_row_is_drawn_the_same_in_any_company() -> None:
    """16-bit logits have many equals; which of them top-k keeps may not depend on the widest top-k of the batch."""
    coarse = (long_row() * 2).round().div(2).unsqueeze(0)
    own = Sampling(top_k=20, seed=6)
    alone = [int(sample(coarse, [own], [position])) for position in range(50)]
    wide = Sampling(top_k=3000)
    together = [int(sample(coarse.repeat(2, 1), [own, wide], [position, 0])[0]) for position in range(50)]
    assert together == alone


def test_seeds_and_positions_draw_apart() -> None:
    row = long_row().tolist()
    first, second = draw(row, Sampling(seed=0), 100), draw(row, Sampling(seed=1), 100)
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 10
    assert len(set(first)) > 50
    assert first == draw(row, Sampling(seed=0), 100)


def test_uniforms_are_uniform_along_positions_and_along_seeds() -> None:
    count = np.arange(20_000, dtype=np.uint64)
    for seeds, positions in ((np.full_like(count, 7), count), (count, np.full_like(count, 7)), (count << np.uint64(40), count)):
        numbers = uniforms(seeds, positions)
        assert numbers.min() >= 0.0
        assert numbers.max() < 1.0
        assert chi_square((numbers * 100).astype(int).tolist(), [0.01] * 100) < 1.5
        # Neighbours are unrelated, too.
        pairs = (numbers[:-1] * 10).astype(int) * 10 + (numbers[1:] * 10).astype(int)
        assert chi_square(pairs.tolist(), [0.01] * 100) < 1.5


def test_the_largest_seed_is_a_seed() -> None:
    assert draw(ROW, Sampling(seed=2**63 - 1), 1)[0] in range(6)
