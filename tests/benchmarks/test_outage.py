"""What the outage's report makes of requests that are written out."""

from pathlib import Path

import pytest

from benchmarks.held import takes_one
from benchmarks.outage import OK, OVERLOADED, Sent, tell


def sent(tier: str, status: int, *, at: float, key: str = "k", took_s: float = 0.3, num_before: int = 0) -> Sent:
    return Sent(tier, key, num_before, at, ended_at=at + took_s, status=status)


def refused(*, at: float, key: str, then: int) -> list[Sent]:
    """And its retry."""
    first, again = sent("free", OVERLOADED, at=at, key=key, took_s=0.0), sent("free", then, at=at + 1.0, key=key, num_before=1)
    first.first_retry = again
    return [first, again]


def test_the_bars_are_met_when_paid_flows_and_promises_are_kept(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [sent("paid", OK, at=number / 10) for number in range(100)]
    for number in range(20):
        rows += refused(at=5.0 + number / 100, key="shed", then=OK)
    rows += [sent("free", OK, at=5.0, key="served") for _ in range(20)]
    assert tell(rows, lost_at=4.0, back_at=8.0)
    told = capsys.readouterr().out
    assert "paid p95                300 ms" in told
    assert "paid 0.0%, free 50.0%" in told
    assert "100.0% of 20" in told
    assert "0-20 %: 1, 20-40 %: 0, 40-60 %: 0, 60-80 %: 0, 80-100 %: 1" in told


@pytest.mark.parametrize("wrong", ["slow", "broken", "lost", "paid first"])
def test_each_bar_can_be_missed(wrong: str) -> None:
    rows = [sent("paid", OK, at=number / 10, took_s=0.6 if wrong == "slow" else 0.3) for number in range(100)]
    for number in range(20):
        rows += refused(at=5.0 + number / 100, key="shed", then=OVERLOADED if wrong == "broken" and number < 5 else OK)
    if wrong == "lost":
        rows.append(sent("free", 0, at=9.0))
    if wrong == "paid first":
        rows += [sent("paid", OVERLOADED, at=5.0, took_s=0.0) for _ in range(1000)]
        rows += [sent("free", OK, at=5.0) for _ in range(1000)]
    assert not tell(rows, lost_at=4.0, back_at=8.0)


def test_each_ticket_is_taken_once(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / str(number)).touch()
    assert [takes_one(tmp_path) for _ in range(4)] == [True, True, True, False]
    assert not takes_one(tmp_path / "nothing")
