"""Who had no room for one more request, as the shared store said of late: for refusing before a body is read."""

from collections import OrderedDict

import msgspec

from batcher.core.admission.reservation import LimitRefusal, Standing, Subject

KNOWN_S = 1.0
"""How long a refusal is remembered: others may give back meanwhile what would let the next request in, so not for longer; and a
caller over its limit costs Redis about one call a second and gateway."""

_MAX_KEPT = 10_000
"""Subjects, about 3 MB; the oldest refusals go first."""


class _Refused(msgspec.Struct, frozen=True, gc=False):
    known_until: float
    free_at: float
    shown: str
    """Whose standing it is."""
    standing: Standing


class Refusals:
    """By the subject's name, the oldest first."""

    def __init__(self) -> None:
        self._refused: OrderedDict[str, _Refused] = OrderedDict()

    def remember(self, refusal: LimitRefusal, *, shown: str, now: float) -> None:
        """Only refusals of requests: fewer tokens may fit. `shown` is the subject whose standing the refusal tells."""
        if refusal.is_tokens:
            return
        name, wait_s = refusal.subject.name, refusal.retry_after_s
        self._refused[name] = _Refused(now + min(wait_s, KNOWN_S), now + wait_s, shown, refusal.standing)
        self._refused.move_to_end(name)
        if len(self._refused) > _MAX_KEPT:
            self._refused.popitem(last=False)

    def forget(self, subjects: tuple[Subject, ...]) -> None:
        for subject in subjects:
            self._refused.pop(subject.name, None)

    def peek(self, subjects: tuple[Subject, ...], *, now: float) -> LimitRefusal | None:
        for subject in subjects:
            refused = self._refused.get(subject.name)
            if refused is not None and now < refused.known_until:
                # A tier's refusal that another key was given tells that key's numbers: they are not for this caller.
                standing = refused.standing if refused.shown == subjects[0].name else Standing()
                return LimitRefusal(subject, False, refused.free_at - now, standing)
        return None
