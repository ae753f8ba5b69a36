"""What a request is charged for its answer before anybody knows how long that will be.

    max_tokens   all that it allows for: never over the limit, and callers who allow for much and use little wait for nothing
    expected     what answers to the key by the model have had of late, with a margin
    exact        nothing, and at the end what was made

An estimate concerns the admission alone: the end always charges what was made. Quantiles of a kept sample were refused for
`expected`: they cost memory for each pair of key and model, and the limit corrects itself when the answers end.
"""

from collections import OrderedDict
from math import ceil
from typing import Protocol

import msgspec

from batcher.config import TokenEstimate

_MAX_PAIRS = 10_000
"""Pairs of key and model that are remembered, some 2 MB; those not asked for the longest are forgotten first."""

_MIN_ANSWERS = 5
"""Until so many answers have been seen nothing is known, and all that is allowed for is charged."""

_WEIGHT = 1 / 16
"""Of the newest answer: the last 40 or so decide."""

_NUM_DEVIATIONS = 2.0
"""The margin above the mean, in mean absolute deviations, as TCP keeps one over its round trips (RFC 6298, with 4). Few answers
are longer, and the shorter ones make up for them."""


class Estimator(Protocol):
    def estimate(self, key_id: str, model: str, max_output: int) -> int:
        """Tokens to charge for an answer of at most `max_output`, from 0 to that."""
        ...

    def learn(self, key_id: str, model: str, output_tokens: int) -> None:
        """An answer had so many; 0 is a length like any other (CASES B41)."""
        ...


class MaxTokens:
    """All that the request allows for."""

    def estimate(self, key_id: str, model: str, max_output: int) -> int:
        return max_output

    def learn(self, key_id: str, model: str, output_tokens: int) -> None:
        """Nothing to learn."""


class Exact:
    """Nothing before the end."""

    def estimate(self, key_id: str, model: str, max_output: int) -> int:
        return 0

    def learn(self, key_id: str, model: str, output_tokens: int) -> None:
        """Nothing to learn."""


class _Lengths(msgspec.Struct, gc=False):
    """Of one pair's answers, in tokens, newer ones weighing more."""

    num_seen: int
    mean: float
    deviation: float
    """Mean absolute."""


class ExpectedStatistics(msgspec.Struct, frozen=True):
    num_pairs: int


class Expected:
    """What answers to this key by this model have had of late, and a margin; from 1 to what the request allows for.

    `_lengths` is in the order of use, the longest unused first.
    """

    def __init__(self, *, max_pairs: int = _MAX_PAIRS) -> None:
        self._max_pairs = max_pairs
        self._lengths: OrderedDict[tuple[str, str], _Lengths] = OrderedDict()

    def __repr__(self) -> str:
        return f"Expected({len(self._lengths)} pairs)"

    def estimate(self, key_id: str, model: str, max_output: int) -> int:
        lengths = self._lengths.get((key_id, model))
        if lengths is None:
            return max_output
        self._lengths.move_to_end((key_id, model))
        if lengths.num_seen < _MIN_ANSWERS:
            return max_output
        return min(max_output, max(1, ceil(lengths.mean + _NUM_DEVIATIONS * lengths.deviation)))

    def learn(self, key_id: str, model: str, output_tokens: int) -> None:
        pair = (key_id, model)
        lengths = self._lengths.get(pair)
        if lengths is None:
            self._lengths[pair] = _Lengths(1, float(output_tokens), 0.0)
            if len(self._lengths) > self._max_pairs:
                self._lengths.popitem(last=False)
            return
        self._lengths.move_to_end(pair)
        lengths.num_seen += 1
        # A plain mean at first, so that the very first answer does not weigh for long.
        weight = max(_WEIGHT, 1.0 / lengths.num_seen)
        distance = output_tokens - lengths.mean
        lengths.mean += weight * distance
        lengths.deviation += weight * (abs(distance) - lengths.deviation)

    def statistics(self) -> ExpectedStatistics:
        return ExpectedStatistics(len(self._lengths))

    def check(self) -> None:
        """O(pairs). For tests: an estimate that is wrong in a running service is put right by what each answer turns out to
        cost, and nothing is to be done about it there."""
        assert len(self._lengths) <= self._max_pairs
        assert all(pair.num_seen >= 1 and pair.mean >= 0.0 <= pair.deviation for pair in self._lengths.values())


def create_estimator(policy: TokenEstimate) -> Estimator:
    match policy:
        case TokenEstimate.MAX_TOKENS:
            return MaxTokens()
        case TokenEstimate.EXPECTED:
            return Expected()
        case TokenEstimate.EXACT:
            return Exact()
