"""Who is shed first: by a score that nobody can choose, that stays for an epoch and then is another."""

import pytest

from batcher.core.admission import fairness
from batcher.core.admission.fairness import EPOCH_S, Scores

KEYS = [f"key_{number}" for number in range(2000)]


def scores_of(secret: bytes, *, tier: str = "free", now: float = 1.0) -> list[float]:
    scores = Scores(secret)
    return [scores.score(tier, key, now=now) for key in KEYS]


def test_scores_are_even_over_keys() -> None:
    found = sorted(scores_of(b"secret"))
    assert found[0] >= 0.0
    assert found[-1] < 1.0
    for tenth in range(10):
        assert sum(tenth / 10 <= score < (tenth + 1) / 10 for score in found) == pytest.approx(200, abs=50)


def test_a_key_keeps_its_score_for_an_epoch_and_has_another_in_the_next() -> None:
    first = scores_of(b"secret", now=0.0)
    assert scores_of(b"secret", now=EPOCH_S - 1.0) == first
    later = scores_of(b"secret", now=EPOCH_S)
    assert sum(a < 0.5 and b < 0.5 for a, b in zip(first, later, strict=True)) == pytest.approx(500, abs=80)


def test_the_epoch_turns_while_it_runs() -> None:
    scores = Scores(b"secret")
    before = scores.score("free", "ann", now=EPOCH_S - 1.0)
    assert scores.score("free", "ann", now=EPOCH_S + 1.0) != before


def test_another_secret_or_tier_has_other_scores() -> None:
    assert scores_of(b"secret") != scores_of(b"another")
    assert scores_of(b"secret") != scores_of(b"secret", tier="paid")


def test_what_is_remembered_is_bounded_and_forgetting_changes_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "_MAX_SCORES", 100)
    scores = Scores(b"secret")
    assert [scores.score("free", key, now=1.0) for key in KEYS] == scores_of(b"secret")
    assert len(scores._scores) <= 100


def test_no_name_of_a_key_is_too_odd() -> None:
    assert 0.0 <= Scores(b"").score("free", "\ud800" * 1000, now=1.0) < 1.0
