"""When the script that counts in Redis lets in again, to the microsecond; and that it counts as the counting in memory does."""

import random

import pytest

from batcher.config import RateLimit
from batcher.core.admission.limits import Limits
from batcher.core.admission.reservation import LimitRefusal, Reservation, Subject
from batcher.service.stores.redis_codec import Answer, is_admitted, refusal, reservation
from tests.service.stores.scripted import MINUTE_US, ScriptedStore, asking

pytestmark = pytest.mark.anyio

BEGIN_US = 4_000_000_000 * 10**6
"""A whole second, in the future of every machine that this runs on."""
ANN = Subject("key:ann", RateLimit(3, 100))
ONE = Subject("key:one", RateLimit(1, None))
TIER = Subject("tier:t", RateLimit(20, 200))


@pytest.fixture(autouse=True)
async def clock(scripted: ScriptedStore) -> None:
    """There is one from the first call on."""
    await scripted.call()


@pytest.mark.parametrize("phase_us", [0, 1, 300_000, 999_999])
async def test_who_was_alone_is_free_again_after_a_minute(scripted: ScriptedStore, phase_us: int) -> None:
    """From the very charge, wherever in its second that was; he was told 60 seconds and was refused after them."""
    at_us = BEGIN_US + phase_us
    assert isinstance(await scripted.reserve(ONE, at_us=at_us), Reservation)

    for later_us in (0, 250_000, 30_000_000, MINUTE_US - 1):
        told = await scripted.reserve(ONE, at_us=at_us + later_us)
        assert isinstance(told, LimitRefusal)
        assert told.retry_after_s == told.standing.requests_reset_s == (MINUTE_US - later_us) / 1e6
    again = await scripted.reserve(ONE, at_us=at_us + MINUTE_US)
    assert isinstance(again, Reservation)
    assert again.standing.requests_reset_s == 60.0


async def test_a_second_counts_until_its_last_charge_is_a_minute_old(scripted: ScriptedStore) -> None:
    """What was given back was charged all the same, and giving it back charges nothing."""
    first = await scripted.reserve(ANN, at_us=BEGIN_US + 100_000)
    second = await scripted.reserve(ANN, at_us=BEGIN_US + 700_000)
    assert isinstance(first, Reservation)
    assert isinstance(second, Reservation)
    await scripted.call(((ANN.name, second.epoch, second.at), (-1, 0, 0)), at_us=BEGIN_US + 900_000)
    held = scripted.held(ANN)
    assert (held["requests"], held["last"], held[f"l{first.at}"]) == (1, BEGIN_US + 700_000, BEGIN_US + 700_000)

    await scripted.reserve(ANN, at_us=BEGIN_US + 700_000 + MINUTE_US - 1)
    assert scripted.held(ANN)["requests"] == 2
    await scripted.reserve(ANN, at_us=BEGIN_US + 700_000 + MINUTE_US)
    assert scripted.held(ANN)["requests"] == 2, "the first is gone with what was given back"


async def test_what_counts_of_one_subject_only_is_corrected_there_and_owed_elsewhere(scripted: ScriptedStore) -> None:
    """As in memory. The subject that is owed to is touched by the correction itself, when its bucket goes."""
    both = await scripted.reserve(ANN, TIER, tokens=10, at_us=BEGIN_US)
    assert isinstance(both, Reservation)
    await scripted.reserve(ANN, tokens=1, at_us=BEGIN_US + 10_000_000)
    await scripted.reserve(TIER, tokens=10, at_us=BEGIN_US + 750_000)
    late_us = BEGIN_US + MINUTE_US + 250_000

    more = [((subject.name, both.epoch, both.at), (0, 0, 40)) for subject in (ANN, TIER)]
    now = await scripted.call(*more, at_us=late_us)

    held, of_tier = scripted.held(ANN), scripted.held(TIER)
    assert (held["requests"], held["tokens"], held[f"t{now.second}"], held["last"]) == (1, 41, 40, late_us)
    assert f"t{both.at}" not in held
    assert (of_tier["tokens"], of_tier[f"t{both.at}"], of_tier["last"]) == (60, 60, BEGIN_US + 750_000)
    less = [((subject.name, both.epoch, both.at), (-1, -10, 0)) for subject in (ANN, TIER)]
    await scripted.call(*less, at_us=late_us + 1)
    assert (scripted.held(ANN)["tokens"], scripted.held(TIER)["tokens"]) == (41, 50)


async def test_what_is_owed_is_charged_where_there_is_no_bucket_for_it(scripted: ScriptedStore) -> None:
    """A leased request has one second for all of its subjects, the oldest slice's, in which the others may have none."""
    first = await scripted.reserve(ANN, at_us=BEGIN_US)
    assert isinstance(first, Reservation)
    await scripted.reserve(TIER, at_us=BEGIN_US + 2_000_000)

    owed = ((TIER.name, first.epoch, first.at), (0, -5, 7))
    between = ((ANN.name, first.epoch, first.at + 1), (0, 0, 9))
    now = await scripted.call(owed, between, at_us=BEGIN_US + 3_000_000)

    assert (scripted.held(TIER)["tokens"], scripted.held(TIER)[f"t{now.second}"]) == (7, 7)
    assert (scripted.held(ANN)["tokens"], scripted.held(ANN)[f"t{now.second}"]) == (9, 9)


class Both:
    """The script and the memory, asked the same at the same instants: multiples of 1/64 s, which both have exactly."""

    def __init__(self, scripted: ScriptedStore, rng: random.Random) -> None:
        self.scripted = scripted
        self.rng = rng
        self.at_us = BEGIN_US
        self.model = Limits(max_subjects=10, now=BEGIN_US / 1e6)
        self.open: list[tuple[Reservation, Reservation]] = []
        self.num_refused = 0

    async def end_one(self) -> None:
        given, of_model = self.open.pop(self.rng.randrange(len(self.open)))
        is_served, tokens = self.rng.random() < 0.5, self.rng.randrange(120)
        more = tokens - given.tokens
        difference = (0, min(more, 0), max(more, 0)) if is_served else (-1, -given.tokens, 0)
        corrections = [((each.name, given.epoch, given.at), difference) for each in given.subjects]
        await self.scripted.call(*corrections, at_us=self.at_us)
        if is_served:
            self.model.settle(of_model, tokens, now=self.at_us / 1e6)
        else:
            self.model.give_back(of_model, now=self.at_us / 1e6)

    async def ask(self, subjects: tuple[Subject, ...]) -> None:
        ask = asking(*subjects, tokens=self.rng.randrange(100))
        answer: Answer = await self.scripted.call(ask=ask, at_us=self.at_us)
        expected = self.model.reserve(subjects, ask.tokens, now=self.at_us / 1e6)
        verdict = answer.verdicts[0]
        assert is_admitted(verdict) == isinstance(expected, Reservation)
        if isinstance(expected, Reservation):
            got = reservation(ask, verdict, answer)
            assert got.at == expected.at
            self.open.append((got, expected))
            found, right = got.standing, expected.standing
        else:
            refused = refusal(ask, verdict, answer)
            assert (refused.subject, refused.is_tokens) == (expected.subject, expected.is_tokens)
            assert refused.retry_after_s == expected.retry_after_s <= 60.0
            self.num_refused += 1
            found, right = refused.standing, expected.standing
        assert (found.requests_remaining, found.tokens_remaining) == (right.requests_remaining, right.tokens_remaining)
        # The script tells one instant for both, where what was charged last may have been given back.
        assert right.requests_reset_s <= found.requests_reset_s <= 60.0
        assert right.tokens_reset_s <= found.tokens_reset_s <= 60.0

    def check(self, subject: Subject) -> None:
        held = self.scripted.held(subject)
        seconds = {column: {name[1:] for name in held if name[0] == column and name[1:].isdigit()} for column in "rtl"}
        assert seconds["r"] == seconds["t"] == seconds["l"]
        assert held.get("requests", 0) == sum(held["r" + second] for second in seconds["r"])
        assert held.get("tokens", 0) == sum(held["t" + second] for second in seconds["t"])
        assert min(held.values(), default=0) >= 0
        assert len(held) <= 4 + 3 * 61


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_it_counts_as_the_memory_does(scripted: ScriptedStore, seed: int) -> None:
    """Random asks, ends and pauses: after each the same verdict, the same wait, the same standing and the same counts."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    names = [("key:a", RateLimit(9, 500)), ("key:b", RateLimit(None, 300)), ("tier:t", RateLimit(20, None))]
    subjects = [Subject(name, limit) for name, limit in names]
    both = Both(scripted, rng)
    for _ in range(400):
        match rng.randrange(4):
            case 0:
                both.at_us += 15_625 * rng.choice([64, 448, 1920, 3825, 3840] if rng.random() < 0.3 else [0, 1, 7, 25, 64])
            case 1 if both.open:
                await both.end_one()
            case _:
                await both.ask(tuple(rng.sample(subjects, rng.randrange(1, 4))))
        for subject in subjects:
            both.check(subject)
    assert 40 < both.num_refused < 250
