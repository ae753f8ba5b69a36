"""The limits of one request: which there are, what they are charged, and what its caller is told.

A request is charged to its key and to its tier at once. While the server is under load its throttle tightens both by a factor
(SPEC S8.4); what was counted stays, so a tightened limit is over until enough of the minute has passed. A request without any
limit asks nobody.

    reserve ─Admitted──> settle      it was served: charged what it cost
                     └─> give_back   it was not: as if it had never been
            ─an error──> (nothing)

A key that was refused a moment ago is refused in the same words, without asking: most of a flood is such. To remember it for as
long as Retry-After says was refused: the seconds that are told would stay, and room that another gateway gives be nobody's.

Each Admitted ends exactly once. One that comes when its caller has left is given back.
"""

import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from math import ceil, inf
from typing import TypeAlias

import msgspec

from batcher.config import LimitsConfig, RateLimit, TierConfig
from batcher.core.admission.estimates import create_estimator
from batcher.core.admission.limits import never_fits
from batcher.core.admission.reservation import LimitRefusal, Reservation, Standing, StoreAway, Subject
from batcher.errors import MAX_RETRY_AFTER_S, InvalidRequest, Overloaded, RateLimited
from batcher.service.auth import Caller
from batcher.service.limits import LimitStore, Verdict
from batcher.service.records import Refused

_REMEMBERED_S = 0.02
"""For so long a key without room is refused in the same words, and what it is told of the seconds left is no older than that.
To look again and to word it anew is a seventh of what a refusal costs in a flood."""

_MAX_BILLS = 10_000
"""Keys whose subjects, and last refusals, are kept ready: some 10 MB. Beyond it all are built anew, a microsecond each."""


class LimitKind(StrEnum):
    """Why a request was refused here; a closed set, it labels metrics."""

    KEY_REQUESTS = "key_requests"
    KEY_TOKENS = "key_tokens"
    TIER_REQUESTS = "tier_requests"
    TIER_TOKENS = "tier_tokens"
    STORE_AWAY = "store_away"


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """A request that has room: the handle by which it is settled or given back."""

    key_id: str = ""
    model: str = ""
    """Whose answers its output is one of; empty where no output was reserved, of which there is nothing to learn."""
    num_input: int = 0
    reservation: Reservation | None = None
    """None where there is no limit."""

    @property
    def standing(self) -> Standing | None:
        """For headers; None where there is no limit."""
        return None if self.reservation is None else self.reservation.standing


class LimitReached(RateLimited):
    """429, and how its caller stands; None where that would tell of room, as it is the tier's limit that has none."""

    def __init__(self, message: str, *, retry_after_s: int, standing: Standing | None, kind: LimitKind) -> None:
        super().__init__(message, retry_after_s=retry_after_s, refused=_REFUSED[kind])
        self.standing = standing
        self.kind = kind


class LimitsAway(Overloaded):
    """529: limits cannot be looked up, and the policy is to refuse then."""

    standing: Standing | None = None


Judgement: TypeAlias = Admitted | LimitReached | LimitsAway
OnJudgement: TypeAlias = Callable[[Judgement], None]

UNLIMITED = Admitted()


class LimiterStatistics(msgspec.Struct, frozen=True):
    num_open: int
    """Admitted under a limit, and neither settled nor given back."""
    num_settled: int
    num_given_back: int
    num_refused: dict[tuple[str, LimitKind], int]
    """By tier. Every pair of configured tier and kind is there."""


class _Bill(msgspec.Struct):
    """Whom a caller's requests are charged to, and the refusal that the caller is told meanwhile."""

    caller: Caller
    factor: float
    subjects: tuple[Subject, ...]
    """Under the limits as the throttle has them now."""
    unscaled: tuple[Subject, ...]
    max_tokens: float
    """What no minute has room for more than."""
    refusal: LimitReached | None = None
    """Of the key's own limit, to which nothing was given back since. What others are charged or given back gives it no room,
    unless the store's table is full and forgets it."""
    refused_until_at: float = -inf
    """When the limit may have room, or the words may be others; it is asked again from then on."""


class Limiter:
    """Lives on the event loop of its store.

    `_bills` are by key id, each good for the caller and the factor that it was made for; `peek` remembers its refusal, and what
    gives the key room forgets it. `_totals` are the tiers' own subjects.
    """

    def __init__(
        self,
        config: LimitsConfig,
        tiers: Iterable[TierConfig],
        store: LimitStore,
        *,
        limit_factor: Callable[[str], float] = lambda tier: 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`limit_factor` gives the part of a tier's limits that is in force now, above 0 and at most 1."""
        self._store = store
        self._limit_factor = limit_factor
        self._clock = clock
        self._estimator = create_estimator(config.token_estimate)
        self._totals = {tier.name: Subject(f"tier:{tier.name}", tier.total_limit) for tier in tiers}
        self._unlimited_tiers = frozenset(name for name, total in self._totals.items() if total.limit.is_unlimited)
        self._bills: dict[str, _Bill] = {}
        self._num_open = 0
        self._num_settled = 0
        self._num_given_back = 0
        self._num_refused = {(tier, kind): 0 for tier in self._totals for kind in LimitKind}

    def __repr__(self) -> str:
        return f"Limiter({self._num_open} open, {self._store!r})"

    def reserve(self, caller: Caller, model: str, num_input: int, max_output: int, on_judgement: OnJudgement) -> None:
        """Charges one request, its input and the estimate of its output. `on_judgement` is called once, perhaps at once.

        Raises InvalidRequest, and then has not called it, if no minute has room for the request, however idle.
        """
        if self._is_unlimited(caller):
            on_judgement(UNLIMITED)
            return
        bill = self._bill(caller)
        estimate = self._estimator.estimate(caller.key_id, model, max_output) if max_output else 0
        tokens = num_input + estimate
        if tokens > bill.max_tokens:
            subject = never_fits(bill.unscaled, tokens)
            assert subject is not None
            raise InvalidRequest(
                f"the request counts {num_input} tokens of input and {estimate} of output, together {tokens}: "
                f"{_in_words(subject, caller.tier, is_tokens=True)} will never have room for it"
            )
        learned = model if max_output else ""

        def on_verdict(verdict: Verdict) -> None:
            if isinstance(verdict, Reservation):
                self._num_open += 1
                on_judgement(Admitted(caller.key_id, learned, num_input, verdict))
            else:
                on_judgement(self._refusal(verdict, bill))

        self._store.reserve(bill.subjects, tokens, on_verdict)

    def settle(self, admitted: Admitted, output_tokens: int) -> None:
        """The request was served, with so many tokens of output: that and its input is what it is charged in the end."""
        if admitted.reservation is None:
            return
        self._store.settle(admitted.reservation, admitted.num_input + output_tokens)
        if admitted.model:
            self._estimator.learn(admitted.key_id, admitted.model, output_tokens)
        self._forget_refusal(admitted.key_id)
        self._num_open -= 1
        self._num_settled += 1

    def give_back(self, admitted: Admitted) -> None:
        """The request was not served: it counts for nothing."""
        if admitted.reservation is None:
            return
        self._store.give_back(admitted.reservation)
        self._forget_refusal(admitted.key_id)
        self._num_open -= 1
        self._num_given_back += 1

    def peek(self, caller: Caller) -> LimitReached | None:
        """The error for a caller who has no room for the smallest request, as far as is known here; it counts as a refusal.

        For refusing before a body is read. Nothing is charged.
        """
        if self._is_unlimited(caller):
            return None
        bill, now = self._bill(caller), self._clock()
        if (error := bill.refusal) is not None and now < bill.refused_until_at:
            self._num_refused[caller.tier, error.kind] += 1
            return error
        refusal = self._store.peek(bill.subjects)
        if refusal is None:
            return None
        error = self._refuse(refusal, bill)
        if refusal.subject.name.startswith("key:"):
            bill.refusal, bill.refused_until_at = error, now + min(_REMEMBERED_S, refusal.retry_after_s)
        return error

    def room(self, caller: Caller) -> float:
        """Tokens of the largest request that this caller's limits would ever let in."""
        return inf if self._is_unlimited(caller) else self._bill(caller).max_tokens

    def statistics(self) -> LimiterStatistics:
        return LimiterStatistics(self._num_open, self._num_settled, self._num_given_back, dict(self._num_refused))

    def _is_unlimited(self, caller: Caller) -> bool:
        return caller.tier in self._unlimited_tiers and caller.limit.is_unlimited

    def _bill(self, caller: Caller) -> _Bill:
        factor = self._limit_factor(caller.tier)
        bill = self._bills.get(caller.key_id)
        if bill is not None and bill.factor == factor and (bill.caller is caller or bill.caller == caller):
            return bill
        all_subjects = (Subject(f"key:{caller.key_id}", caller.limit), self._totals[caller.tier])
        unscaled = tuple(subject for subject in all_subjects if not subject.limit.is_unlimited)
        scaled = unscaled if factor == 1.0 else tuple(Subject(s.name, _scaled(s.limit, factor)) for s in unscaled)
        if len(self._bills) >= _MAX_BILLS:
            self._bills.clear()
        limits = [subject.limit.tokens_per_minute for subject in unscaled]
        max_tokens = min((limit for limit in limits if limit is not None), default=inf)
        bill = self._bills[caller.key_id] = _Bill(caller, factor, scaled, unscaled, max_tokens)
        return bill

    def _forget_refusal(self, key_id: str) -> None:
        """There may be room."""
        bill = self._bills.get(key_id)
        if bill is not None:
            bill.refusal = None

    def _refusal(self, verdict: LimitRefusal | StoreAway, bill: _Bill) -> LimitReached | LimitsAway:
        if isinstance(verdict, LimitRefusal):
            return self._refuse(verdict, bill)
        self._num_refused[bill.caller.tier, LimitKind.STORE_AWAY] += 1
        return LimitsAway(
            "the rate limits cannot be looked up right now",
            retry_after_s=_whole(verdict.retry_after_s),
            refused=Refused.LIMITS_AWAY,
        )

    def _refuse(self, refusal: LimitRefusal, bill: _Bill) -> LimitReached:
        subject, tier = refusal.subject, bill.caller.tier
        kind = _KINDS[subject.name.startswith("key:"), refusal.is_tokens]
        self._num_refused[tier, kind] += 1
        tightened = f"; it is tightened to {bill.factor:.0%} while the server is under load" if bill.factor < 1.0 else ""
        return LimitReached(
            f"{_in_words(subject, tier, is_tokens=refusal.is_tokens)} has no room for this request now{tightened}",
            retry_after_s=_whole(refusal.retry_after_s),
            standing=refusal.standing if subject.name == bill.subjects[0].name else None,
            kind=kind,
        )


_REFUSED = {
    LimitKind.KEY_REQUESTS: Refused.RATE_REQUESTS,
    LimitKind.KEY_TOKENS: Refused.RATE_TOKENS,
    LimitKind.TIER_REQUESTS: Refused.RATE_REQUESTS,
    LimitKind.TIER_TOKENS: Refused.RATE_TOKENS,
}
_KINDS = {
    (True, False): LimitKind.KEY_REQUESTS,
    (True, True): LimitKind.KEY_TOKENS,
    (False, False): LimitKind.TIER_REQUESTS,
    (False, True): LimitKind.TIER_TOKENS,
}
"""By whether it is the key's own limit, and whether it is of tokens."""


def _in_words(subject: Subject, tier: str, *, is_tokens: bool) -> str:
    limit = f"{subject.limit.tokens_per_minute} tokens" if is_tokens else f"{subject.limit.requests_per_minute} requests"
    whose = "this key's" if subject.name.startswith("key:") else f"tier {tier}'s common"
    return f"{whose} limit of {limit} per minute"


def _scaled(limit: RateLimit, factor: float) -> RateLimit:
    """Never below 1: a limit that is tightened still lets somebody in."""
    requests, tokens = limit.requests_per_minute, limit.tokens_per_minute
    return RateLimit(
        None if requests is None else max(1, int(requests * factor)), None if tokens is None else max(1, int(tokens * factor))
    )


def _whole(seconds: float) -> int:
    """As Retry-After: rounded up, from 1 to 60. Infinity too is told as 60: a tightened limit may be loosened by then."""
    return ceil(min(max(seconds, 1.0), float(MAX_RETRY_AFTER_S)))
