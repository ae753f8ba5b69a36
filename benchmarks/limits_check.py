"""Whether limits were kept, from a log of what was let in: no clock, no store, and none of the code that kept them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from batcher.core.admission.reservation import WINDOW_S, Subject
from benchmarks.limits_gateway import Admission

_Counted = TypeVar("_Counted")


class Worst(msgspec.Struct, frozen=True):
    """The fullest minute of a subject, in requests or tokens."""

    subject: str
    most: int
    limit: int

    @property
    def over(self) -> int:
        return max(0, self.most - self.limit)

    @property
    def share(self) -> float:
        return self.most / self.limit


def by_subject(admissions: Iterable[Admission], subjects: Sequence[tuple[Subject, ...]]) -> dict[Subject, list[Admission]]:
    found: dict[Subject, list[Admission]] = defaultdict(list)
    for admission in admissions:
        for subject in subjects[admission.key]:
            found[subject].append(admission)
    return found


def fullest_by_second(subject: Subject, admissions: Sequence[Admission]) -> list[Worst]:
    """By the second at which each was charged, over 60 of them in a row: these are a sliding minute of the store's clock, and
    that it is kept in those that begin within a second, instants have to show."""
    requests, tokens = Counter[int](), Counter[int]()
    for admission in admissions:
        requests[admission.at] += admission.requests
        tokens[admission.at] += admission.tokens
    worst = []
    for counts, limit in _limited(subject, requests, tokens):
        seconds = range(min(counts, default=0), max(counts, default=-1) + 1)
        sums = (sum(counts[other] for other in range(second - WINDOW_S + 1, second + 1)) for second in seconds)
        worst.append(Worst(subject.name, max(sums, default=0), limit))
    return worst


def fullest_by_instant(subject: Subject, admissions: Sequence[Admission]) -> list[Worst]:
    """By the machine's one clock. An admission happened between its call and its verdict, so what is counted here are those
    that lie in a sliding minute with both."""
    worst = []
    requests = [(each.called_at, each.told_at, each.requests) for each in admissions]
    tokens = [(each.called_at, each.told_at, each.tokens) for each in admissions]
    for spans, limit in _limited(subject, requests, tokens):
        leaving = sorted((called_at + WINDOW_S, amount) for called_at, _, amount in spans)
        most = held = num_left = 0
        for told_at, amount in sorted((told_at, amount) for _, told_at, amount in spans):
            held += amount
            while leaving[num_left][0] <= told_at:
                held -= leaving[num_left][1]
                num_left += 1
            most = max(most, held)
        worst.append(Worst(subject.name, most, limit))
    return worst


def num_undercounted(subject: Subject, admissions: Sequence[Admission], counted: Mapping[str, int]) -> int:
    """How much more was let in than the store counts, at most, over the seconds from any on; 0 if nothing was forgotten.

    `counted` are the fields of the store's hash: only seconds that it still holds are looked at, and only what is limited.
    """
    worst = 0
    true_requests, true_tokens = Counter[int](), Counter[int]()
    for admission in admissions:
        true_requests[admission.at] += admission.requests
        true_tokens[admission.at] += admission.tokens
    for (column, true), _ in _limited(subject, ("r", true_requests), ("t", true_tokens)):
        stored = {int(field[1:]): number for field, number in counted.items() if field[0] == column and field[1:].isdigit()}
        missing = 0
        for second in sorted(stored, reverse=True):
            missing += true[second] - stored[second]
            worst = max(worst, missing)
    return worst


def _limited(subject: Subject, requests: _Counted, tokens: _Counted) -> list[tuple[_Counted, int]]:
    limit = subject.limit
    pairs = [(requests, limit.requests_per_minute), (tokens, limit.tokens_per_minute)]
    return [(counts, bound) for counts, bound in pairs if bound is not None]
