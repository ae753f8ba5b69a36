"""What the limits' tests say again and again."""

from batcher.config import RateLimit
from batcher.core.admission.limits import Limits
from batcher.core.admission.reservation import LimitRefusal, Reservation, Subject


def a_key(requests: int | None = None, tokens: int | None = None, *, name: str = "key:ann") -> tuple[Subject, ...]:
    return (Subject(name, RateLimit(requests, tokens)),)


def some_limits(*, max_subjects: int = 100, now: float = 0.0) -> Limits:
    return Limits(max_subjects=max_subjects, now=now)


def admitted(verdict: Reservation | LimitRefusal) -> Reservation:
    assert isinstance(verdict, Reservation)
    return verdict


def refused(verdict: Reservation | LimitRefusal | None) -> LimitRefusal:
    assert isinstance(verdict, LimitRefusal)
    return verdict
