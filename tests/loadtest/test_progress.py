"""What is told of a run while it lasts."""

import pytest

from loadtest.progress import Beat, describe_beat
from loadtest.samples import Ending


def make_beat(**endings: int) -> Beat:
    counts = [endings.get(ending.name.lower(), 0) for ending in Ending]
    return Beat(11.0, 3600.0, 96, 74, 4, counts, [0.5])


def test_a_closed_loop_counts_its_requests() -> None:
    """It said `11.0 s of 3600`, an hour that nobody had asked for."""
    words = describe_beat(make_beat(ok=70))
    assert words.startswith(" 11.0 s · 70 of 96 requests · 1 ok/s · p50 500 ms")
    assert "3600" not in words


def test_an_open_loop_counts_its_seconds() -> None:
    beat = Beat(1.0, 30.0, None, 100, 4, [0] * len(Ending), [])
    assert describe_beat(beat) == "  1.0 s of 30 · sent 100 · 0 ok/s · no answer · waiting 4"


@pytest.mark.parametrize(
    ("ending", "word"), [("rejected_rate", "refused 3"), ("client_error", "errors 3"), ("mismatched", "errors 3")]
)
def test_refused_is_who_was_told_that_the_server_is_busy(ending: str, word: str) -> None:
    assert describe_beat(make_beat(**{ending: 3})).endswith(f" · {word}")
