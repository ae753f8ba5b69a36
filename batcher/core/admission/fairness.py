"""Who is shed first when not all can be served: the same keys for a while, so that the others are served well.

Refusing at random was refused: at twice the capacity every second request of every customer fails, and nobody has a service.
Each key has a score that a secret decides, so that no name can be chosen for its luck; with each epoch all scores are drawn
anew, so that in time everybody has good luck and bad.
"""

from hashlib import blake2b

EPOCH_S = 600.0
"""How long scores stay: an outage long, and not a customer's day."""

_MAX_SCORES = 20_000
"""Scores that are remembered; some 3 MB. To compute one again takes a microsecond or two."""


class Scores:
    """`_scores` has those that were computed in this epoch, by tier and key."""

    __slots__ = ("_epoch", "_scores", "_secret")

    def __init__(self, secret: bytes) -> None:
        self._secret = secret[:64]
        self._epoch = -1
        self._scores: dict[tuple[str, str], float] = {}

    def score(self, tier: str, key: str, *, now: float) -> float:
        """From 0 to below 1, evenly over keys; the same for a key of a tier throughout an epoch."""
        epoch = int(now // EPOCH_S)
        if epoch != self._epoch:
            self._epoch = epoch
            self._scores.clear()
        score = self._scores.get((tier, key))
        if score is None:
            if len(self._scores) >= _MAX_SCORES:
                self._scores.clear()
            word = f"{epoch}/{tier}/{key}".encode(errors="replace")
            score = int.from_bytes(blake2b(word, key=self._secret, digest_size=6).digest()) / 2.0**48
            self._scores[tier, key] = score
        return score
