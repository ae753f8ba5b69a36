"""Limits beside a plain model of them, which doubts every verdict: a list of who was charged what and when.

The model counts by brute force. Two things are asked of each admission: that the law holds, by which no sliding minute has more
than the limit, and that nobody was refused whom the buckets of a second have room for. A minute does not have both its ends in
it: what was charged exactly 60 seconds ago is of the one before.
"""

from collections.abc import Iterable
from copy import deepcopy
from math import floor, inf, nextafter
from random import Random

import msgspec
import pytest

from batcher.config import RateLimit
from batcher.core.admission.limits import Limits
from batcher.core.admission.reservation import LimitRefusal, Reservation, Standing, Subject

WINDOW_S = 60

KEYS = ("key:ann", "key:bob", "key:cy", "key:dan", "key:eve", "key:fay", "key:gil")
TIERS = ("tier:paid", "tier:free")
STEPS_S = (0.0, 0.0, 0.1, 0.25, 0.9, 1.0, 1.0, 7.3, 30.0, 59.0, 59.9, 60.0, 60.1, 61.0, 3600.0, -0.5, -3600.0)
LIMITS = (RateLimit(3, None), RateLimit(None, 100), RateLimit(5, 100), RateLimit(2, 1000), RateLimit(20, 60), RateLimit(1, 1))


class Charge(msgspec.Struct, eq=False):
    at: float
    tokens: int
    reservation: Reservation
    names: set[str]
    """Of the subjects that have not forgotten it."""
    requests: int = 1
    """0 where it is only what an answer has cost more, known after its request counted no more."""


class ModelledLimits:
    """`charges` are all that were made and not given back; `open` those of them that nobody has ended."""

    def __init__(self, *, max_subjects: int = 100, start_at: float = 1000.3) -> None:
        self.limits = Limits(max_subjects=max_subjects, now=start_at)
        self.max_subjects = max_subjects
        self.clock = start_at
        self.now = start_at
        """The latest instant that the limits have been told."""
        self.charges: list[Charge] = []
        self.open: list[Charge] = []
        self.ended: list[Charge] = []
        self.charged_at: dict[str, float] = {}
        """Each subject's last charge, given back or not."""
        self.bucket_charged_at: dict[tuple[str, int], float] = {}
        """The same of each of its seconds."""
        self.rates = dict.fromkeys((*KEYS, *TIERS), RateLimit(5, 100))
        self.is_exceeded = False
        """Whether anything has cost more than was reserved: then a minute may have too much in it."""

    def step(self, seconds: float) -> None:
        self.clock += seconds

    def look(self) -> float:
        """What the clock shows; if that is earlier than before, no time has passed."""
        self.now = max(self.now, self.clock)
        return self.clock

    def subjects(self, names: Iterable[str]) -> tuple[Subject, ...]:
        return tuple(Subject(name, self.rates[name]) for name in names)

    def reserve(self, names: tuple[str, ...], tokens: int) -> None:
        subjects = self.subjects(names)
        verdict = self.limits.reserve(subjects, tokens, now=self.look())
        room_at = self.room_at(subjects, tokens)
        if isinstance(verdict, LimitRefusal):
            assert room_at > self.now, "refused, and there is room"
            self.check_refusal(verdict, subjects, tokens)
            return
        charge = Charge(self.now, tokens, verdict, set(names))
        self.charges.append(charge)
        self.open.append(charge)
        self.note_charge(names)
        self.check_minute(subjects)
        assert room_at <= self.now, "admitted, and there is no room"
        assert verdict == Reservation(subjects, tokens, floor(self.now), "", self.standing(subjects[0]))
        self.forget_dropped()

    def note_charge(self, names: Iterable[str]) -> None:
        for name in names:
            self.charged_at[name] = self.bucket_charged_at[name, floor(self.now)] = self.now

    def ends_at(self, name: str, charge: Charge) -> float:
        """When the charge counts no more: with its whole second."""
        return self.bucket_charged_at[name, floor(charge.at)] + WINDOW_S

    def settle(self, charge: Charge, tokens: int) -> None:
        """What is owed is charged now to the subjects for which the request itself counts no more, and only to them."""
        self.is_exceeded |= tokens > charge.tokens
        self.limits.settle(charge.reservation, tokens, now=self.look())
        self.open.remove(charge)
        self.ended.append(charge)
        all_names = [subject.name for subject in charge.reservation.subjects]
        names = {name for name in all_names if self.ends_at(name, charge) <= self.now}
        more = tokens - charge.tokens
        charge.tokens = tokens
        if more > 0 and names:
            self.charges.append(Charge(self.now, more, charge.reservation, names, requests=0))
            self.note_charge(names)
            self.forget_dropped()

    def give_back(self, charge: Charge) -> None:
        self.limits.give_back(charge.reservation, now=self.look())
        self.charges.remove(charge)
        self.open.remove(charge)
        self.ended.append(charge)

    def end_again(self, charge: Charge) -> None:
        """Raises while anything of its second may count; changes nothing then or later, as all that follows shows."""
        now = self.look()
        num_open = self.limits.statistics().num_open
        if charge.reservation.at >= floor(self.now) - WINDOW_S:
            with pytest.raises(ValueError, match="ended before"):
                self.limits.settle(charge.reservation, 1, now=now)
            with pytest.raises(ValueError, match="ended before"):
                self.limits.give_back(charge.reservation, now=now)
        else:
            self.limits.settle(charge.reservation, 0, now=now)
            self.limits.give_back(charge.reservation, now=now)
        assert self.limits.statistics().num_open <= num_open

    def peek(self, names: tuple[str, ...]) -> None:
        subjects = self.subjects(names)
        refusal = self.limits.peek(subjects, now=self.look())
        assert (refusal is not None) == (self.room_at(subjects, 1) > self.now)
        if refusal is not None:
            self.check_refusal(refusal, subjects, 1)

    def counted(self, name: str, *, now: float) -> list[Charge]:
        return [charge for charge in self.charges if name in charge.names and self.ends_at(name, charge) > now]

    def has_room(self, subject: Subject, tokens: int, *, now: float) -> bool:
        counted = self.counted(subject.name, now=now)
        max_requests, max_tokens = subject.limit.requests_per_minute, subject.limit.tokens_per_minute
        return (max_requests is None or sum(charge.requests for charge in counted) + 1 <= max_requests) and (
            max_tokens is None or sum(charge.tokens for charge in counted) + tokens <= max_tokens
        )

    def room_at(self, subjects: tuple[Subject, ...], tokens: int) -> float:
        instants = sorted(
            {self.ends_at(subject.name, c) for subject in subjects for c in self.charges if subject.name in c.names}
        )
        for at in (self.now, *(instant for instant in instants if instant > self.now)):
            if all(self.has_room(subject, tokens, now=at) for subject in subjects):
                return at
        return inf

    def check_refusal(self, refusal: LimitRefusal, subjects: tuple[Subject, ...], tokens: int) -> None:
        """Whoever comes at the instant that he was told gets in, and not a moment before."""
        room_at = self.room_at(subjects, tokens)
        assert self.now + refusal.retry_after_s == room_at
        assert room_at == inf or 0.0 < refusal.retry_after_s <= WINDOW_S
        assert room_at == self.room_at((refusal.subject,), tokens), "another limit has no room for longer"
        assert refusal.standing == self.standing(subjects[0])
        if room_at < inf:
            assert isinstance(deepcopy(self.limits).reserve(subjects, tokens, now=room_at), Reservation)
            too_early = deepcopy(self.limits).reserve(subjects, tokens, now=nextafter(room_at, 0.0))
            assert isinstance(too_early, LimitRefusal)

    def check_minute(self, subjects: tuple[Subject, ...]) -> None:
        """The law, for the minute that ends now, however it is counted inside."""
        for subject in subjects:
            minute = [charge for charge in self.charges if subject.name in charge.names and charge.at + WINDOW_S > self.now]
            max_requests, max_tokens = subject.limit.requests_per_minute, subject.limit.tokens_per_minute
            num_requests = sum(charge.requests for charge in minute)
            assert max_requests is None or num_requests <= max_requests, "more requests in a minute than the limit"
            assert max_tokens is None or sum(c.tokens for c in minute) <= max_tokens, "more tokens in a minute than the limit"

    def standing(self, subject: Subject) -> Standing:
        counted = self.counted(subject.name, now=self.now)
        requests, tokens = sum(charge.requests for charge in counted), sum(charge.tokens for charge in counted)
        limit = subject.limit
        return Standing(
            limit.requests_per_minute,
            None if limit.requests_per_minute is None else max(0, limit.requests_per_minute - requests),
            self.reset_s(subject.name, [charge for charge in counted if charge.requests]),
            limit.tokens_per_minute,
            None if limit.tokens_per_minute is None else max(0, limit.tokens_per_minute - tokens),
            self.reset_s(subject.name, [charge for charge in counted if charge.tokens]),
        )

    def reset_s(self, name: str, charges: Iterable[Charge]) -> float:
        return min(max((self.ends_at(name, charge) - self.now for charge in charges), default=0.0), 60.0)

    def forget_dropped(self) -> None:
        """Whoever was dropped had been charged before all who were not, and only when there was no room for all."""
        held = list(self.limits._windows)
        for name in self.rates:
            if self.counted(name, now=self.now) and name not in held:
                assert len(held) == self.max_subjects
                assert all(self.charged_at[name] <= self.charged_at[other] for other in held)
                for charge in self.charges:
                    charge.names.discard(name)

    def check(self) -> None:
        self.limits.check()
        statistics = self.limits.statistics()
        oldest = floor(self.now) - WINDOW_S
        assert statistics.num_open >= sum(charge.reservation.at >= oldest for charge in self.open)
        assert statistics.num_open <= len(self.open)
        assert statistics.num_subjects <= self.max_subjects
        if statistics.num_forgotten == 0:
            used = {name for name in self.rates if self.counted(name, now=self.now)}
            assert used <= set(self.limits._windows)

    def check_every_minute(self) -> None:
        """The law over all that was ever admitted, by what it has cost in the end. For limits that never changed."""
        for name, limit in self.rates.items():
            charges = [charge for charge in self.charges if name in charge.names]
            for last in charges:
                minute = [charge for charge in charges if charge.at <= last.at < charge.at + WINDOW_S]
                assert limit.requests_per_minute is None or len(minute) <= limit.requests_per_minute
                assert limit.tokens_per_minute is None or sum(c.tokens for c in minute) <= limit.tokens_per_minute

    def leave(self) -> None:
        """After a minute in which nobody asks, nothing is counted of anybody; a second later nothing is held for anybody."""
        self.step(self.now - self.clock + WINDOW_S)
        self.look()
        assert not any(self.counted(name, now=self.now) for name in self.rates)
        assert all(self.limits.peek((Subject(name, RateLimit(1, 1)),), now=self.now) is None for name in self.rates)
        self.step(1.0)
        self.limits.peek(self.subjects(KEYS[:1]), now=self.look())
        self.check()
        assert self.limits.statistics().num_subjects == self.limits.statistics().num_open == 0


def soak(seed: int, num_steps: int, *, max_subjects: int = 100) -> None:
    """Everything that may happen, drawn from one seed."""
    random = Random(seed)
    model = ModelledLimits(max_subjects=max_subjects)
    for _ in range(num_steps):
        act = random.random()
        if act < 0.5:
            names = random.choice([(random.choice(KEYS),), (random.choice(KEYS), random.choice(TIERS))])
            model.reserve(names, random.choice([0, 1, 10, 35, 60, 100, 101]))
        elif act < 0.8 and model.open:
            charge = random.choice(model.open)
            if random.random() < 0.4:
                model.give_back(charge)
            else:
                model.settle(charge, random.randint(0, charge.tokens) + random.choice([0, 0, 0, 40]))
        elif act < 0.83 and model.ended:
            model.end_again(random.choice(model.ended))
        elif act < 0.86:
            model.peek((random.choice(KEYS), random.choice(TIERS)))
        elif act < 0.89:
            model.rates[random.choice([*model.rates])] = random.choice(LIMITS)
        else:
            # A clock that was set back is set right again now and then: time would stand still for most of the run.
            model.step(random.choice(STEPS_S) if random.random() < 0.7 else max(0.0, model.now - model.clock))
        model.check()
    model.leave()
