"""The script that counts in Redis, held against the counting in memory, and its clock. Time is moved by its own `lag`."""

import random
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest
import redis

from batcher.config import RateLimit
from batcher.core.admission.limits import Limits
from batcher.core.admission.reservation import LimitRefusal, Reservation, Subject
from batcher.service.stores.redis_codec import Answer, Ask, decode_answer, encode_call, is_admitted, refusal, reservation
from batcher.service.stores.redis_corrections import Difference, Key
from batcher.service.stores.redis_link import RedisLink, Script
from benchmarks.redis_server import RedisServer

pytestmark = pytest.mark.anyio

CLOCK = "batcher:limits:clock"
SCRIPT = Script("redis_limits.lua")


class Store:
    """Asks the script one thing at a time."""

    def __init__(self, link: RedisLink, beside: redis.Redis) -> None:
        self.link = link
        self.beside = beside

    async def call(self, *corrections: tuple[Key, Difference], ask: Ask | None = None) -> Answer:
        reply = await self.link.run(SCRIPT, encode_call("seed", corrections, [] if ask is None else [ask]))
        assert isinstance(reply, bytes)
        return decode_answer(reply)

    async def reserve(self, *subjects: Subject, tokens: int = 0) -> Reservation | LimitRefusal:
        ask = Ask(subjects, tokens, lambda verdict: None, 0.0, is_first_shown=True)
        answer = await self.call(ask=ask)
        verdict = answer.verdicts[0]
        return reservation(ask, verdict, answer) if is_admitted(verdict) else refusal(ask, verdict, answer)

    def pass_s(self, seconds: float) -> None:
        self.beside.hincrby(CLOCK, "lag", round(seconds * 1e6))

    def held(self, subject: Subject) -> dict[str, int]:
        fields = self.beside.hgetall(f"batcher:limits:of:{subject.name}")
        return {bytes(name).decode(): int(value) for name, value in fields.items() if isinstance(name, bytes)}


@pytest.fixture
def beside(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with closing(redis_server.client()) as client:
        yield client


@pytest.fixture
async def store(redis_server: RedisServer, beside: redis.Redis) -> AsyncIterator[Store]:
    link = RedisLink(redis_server.url, store="limits", timeout_s=5.0, max_connections=1)
    await link.start()
    yield Store(link, beside)
    await link.close()


ANN = Subject("key:ann", RateLimit(3, None))


@pytest.mark.parametrize("phase", [0.0, 0.3, 0.999])
async def test_who_was_alone_is_free_again_after_a_minute(store: Store, phase: float) -> None:
    """A minute from the very charge, wherever in its second that was; and not before."""
    now_s = (await store.call()).now_us / 1e6
    store.pass_s(1.0 - now_s % 1.0 + phase)
    one = Subject("key:one", RateLimit(1, None))
    answer = await store.call(ask=Ask((one,), 0, lambda verdict: None, 0.0, is_first_shown=True))
    charged_us = answer.now_us
    assert is_admitted(answer.verdicts[0])

    told = await store.reserve(one)
    assert isinstance(told, LimitRefusal)
    assert 50.0 < told.retry_after_s <= 60.0
    # What the machine takes until the call passes as well.
    store.pass_s(told.retry_after_s - 0.2)
    for _ in range(1000):
        answer = await store.call(ask=Ask((one,), 0, lambda verdict: None, 0.0, is_first_shown=True))
        assert is_admitted(answer.verdicts[0]) == (answer.now_us >= charged_us + 60 * 10**6)
        if is_admitted(answer.verdicts[0]):
            return
        # It is told what is left, to the microsecond.
        assert answer.verdicts[0][2] == charged_us + 60 * 10**6
        store.pass_s(0.01)
    pytest.fail("it never came in")


async def test_a_second_counts_until_its_last_charge_is_a_minute_old(store: Store) -> None:
    """Three in one second, half of a second apart from the first to the last; the second of them is given back."""
    ask = Ask((ANN,), 0, lambda verdict: None, 0.0, is_first_shown=True)
    store.pass_s(1.0 - (await store.call()).now_us / 1e6 % 1.0)
    first = await store.call(ask=ask)
    store.pass_s(0.5)
    second = await store.call(ask=ask)
    await store.call(((ANN.name, second.epoch, second.second), (-1, 0, 0)))
    assert first.second == second.second
    held = store.held(ANN)
    assert (held["requests"], held["last"], held[f"l{second.second}"]) == (1, second.now_us, second.now_us)

    store.pass_s(59.6)
    late = await store.call(ask=ask)
    assert first.now_us + 60 * 10**6 < late.now_us < second.now_us + 60 * 10**6, "a slow machine"
    assert store.held(ANN)["requests"] == 2
    store.pass_s(0.4)
    await store.call(ask=ask)
    assert store.held(ANN)["requests"] == 2, "the first is gone with what was given back"


async def test_what_is_old_is_subtracted_once_whatever_the_verdict(store: Store) -> None:
    full = Subject("key:full", RateLimit(1, None))
    first = await store.reserve(ANN)
    assert isinstance(first, Reservation)
    store.pass_s(10)
    second = await store.reserve(ANN, full)
    assert isinstance(second, Reservation)
    store.pass_s(first.at + 62 - second.at)
    for _ in range(2):
        assert isinstance(await store.reserve(ANN, full), LimitRefusal)
        held = store.held(ANN)
        assert f"r{first.at}" not in held
        assert (held["requests"], held[f"r{second.at}"]) == (1, 1)


async def test_a_clock_that_goes_back_stops_nothing_and_gives_nothing_away(store: Store, beside: redis.Redis) -> None:
    """CASES B34, as if the wall clock of Redis had been an hour ahead until now."""
    first = await store.reserve(ANN)
    assert isinstance(first, Reservation)
    beside.hincrby(CLOCK, "wall", 3600 * 10**6)
    beside.hincrby(CLOCK, "lag", -3600 * 10**6)
    second = await store.reserve(ANN)
    assert isinstance(second, Reservation)
    assert 0 <= second.at - first.at <= 2, "an hour that was lost is added"
    await store.reserve(ANN)
    refused = await store.reserve(ANN)
    assert isinstance(refused, LimitRefusal)
    assert 0 < refused.retry_after_s <= 60.0
    store.pass_s(60)
    assert isinstance(await store.reserve(ANN), Reservation), "time goes on"


async def test_a_clock_that_goes_back_by_a_little_gives_nothing_away(store: Store, beside: redis.Redis) -> None:
    """By less than a second, which must not count as one: a minute would be one of 59 seconds and a part."""
    ask = Ask((ANN,), 0, lambda verdict: None, 0.0, is_first_shown=True)
    for _ in range(3):
        before = await store.call(ask=ask)
        beside.hincrby(CLOCK, "wall", 300_000)
        beside.hincrby(CLOCK, "lag", -300_000)
        after = await store.call()
        # It stands where it stood, and then goes on.
        assert before.now_us <= after.now_us < before.now_us + 200_000
        assert after.now_us < (await store.call()).now_us


async def test_what_was_forgotten_is_not_given_back(store: Store, beside: redis.Redis) -> None:
    first = await store.reserve(ANN)
    assert isinstance(first, Reservation)
    beside.flushall()
    second = await store.reserve(ANN)
    assert isinstance(second, Reservation)
    assert second.epoch != first.epoch
    await store.call(((ANN.name, first.epoch, second.at), (-1, 0, 0)))
    assert store.held(ANN)["requests"] == 1
    await store.call(((ANN.name, second.epoch, second.at), (-1, 0, 0)))
    assert store.held(ANN)["requests"] == 0


async def test_nothing_becomes_negative(store: Store) -> None:
    first = await store.reserve(ANN, tokens=5)
    assert isinstance(first, Reservation)
    await store.call(((ANN.name, first.epoch, first.at), (-7, -9, 0)), (("key:nobody", first.epoch, first.at), (-1, -1, 0)))
    held = store.held(ANN)
    assert (held["requests"], held["tokens"], held[f"r{first.at}"], held[f"t{first.at}"]) == (0, 0, 0, 0)
    assert store.held(Subject("key:nobody", RateLimit(1))) == {}


async def test_what_is_owed_late_is_charged_to_the_second_in_which_it_is_known(store: Store) -> None:
    """As in memory: an answer that takes longer than a minute has its price, though it is no request of this one."""
    ben = Subject("key:ben", RateLimit(1, 100))
    first = await store.reserve(ben, tokens=10)
    assert isinstance(first, Reservation)
    store.pass_s(62)

    late = (ben.name, first.epoch, first.at)
    answer = await store.call((late, (-1, -10, 0)), (late, (0, -5, 95)))

    held = store.held(ben)
    assert (held["requests"], held["tokens"], held[f"t{answer.second}"]) == (0, 95, 95)
    refused = await store.reserve(ben, tokens=6)
    assert isinstance(refused, LimitRefusal)
    assert (refused.is_tokens, refused.standing.requests_remaining, refused.standing.tokens_remaining) == (True, 1, 5)
    store.pass_s(62)
    assert isinstance(await store.reserve(ben, tokens=100), Reservation)


async def test_a_subject_goes_by_itself(store: Store, beside: redis.Redis) -> None:
    await store.reserve(ANN)
    assert 60 < beside.pttl(f"batcher:limits:of:{ANN.name}") / 1000 <= 70


async def test_a_slice_is_what_there_is_room_for_or_nothing(store: Store) -> None:
    ben = Subject("key:ben", RateLimit(10, 100))

    async def granted(tokens: int, of_slice: tuple[int, int]) -> tuple[int, ...]:
        ask = Ask((ben,), tokens, lambda verdict: None, 0.0, is_first_shown=True, slices=(of_slice,))
        return tuple((await store.call(ask=ask)).verdicts[0][2])

    assert await granted(10, (4, 30)) == (5, 40, 4, 30)
    assert await granted(10, (9, 20)) == (10, 70, 4, 20)
    store.pass_s(62)
    assert await granted(100, (4, 30)) == (1, 100, 0, 0), "without tokens there is no use for requests"


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_it_counts_as_the_memory_does(store: Store, seed: int) -> None:
    """Random asks, ends and pauses: after each the same verdict, the same standing and the same counts."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    names = [("key:a", RateLimit(9, 500)), ("key:b", RateLimit(None, 300)), ("tier:t", RateLimit(20, None))]
    subjects = [Subject(name, limit) for name, limit in names]
    first = await store.reserve(subjects[0])
    assert isinstance(first, Reservation)
    charged_at = store.held(subjects[0])["last"] / 1e6
    model = Limits(max_subjects=10, now=charged_at)
    of_model = model.reserve((subjects[0],), 0, now=charged_at)
    assert isinstance(of_model, Reservation)
    is_open = [(first, of_model)]
    num_refused = 0
    for _ in range(400):
        match rng.randrange(4):
            case 0:
                store.pass_s(rng.choice([0, 1, 1, 7, 30, 59.7, 60] if rng.random() < 0.3 else [0, 0.1, 0.4, 1]))
            case 1 if is_open:
                given, of_model = is_open.pop(rng.randrange(len(is_open)))
                is_served, tokens = rng.random() < 0.5, rng.randrange(120)
                more = tokens - given.tokens
                difference = (0, min(more, 0), max(more, 0)) if is_served else (-1, -given.tokens, 0)
                answer = await store.call(*[((each.name, given.epoch, given.at), difference) for each in given.subjects])
                if is_served:
                    model.settle(of_model, tokens, now=answer.now_us / 1e6)
                else:
                    model.give_back(of_model, now=answer.now_us / 1e6)
            case _:
                asked = tuple(rng.sample(subjects, rng.randrange(1, 4)))
                ask = Ask(asked, rng.randrange(100), lambda verdict: None, 0.0, is_first_shown=True)
                answer = await store.call(ask=ask)
                expected = model.reserve(asked, ask.tokens, now=answer.now_us / 1e6)
                if isinstance(expected, Reservation):
                    got = reservation(ask, answer.verdicts[0], answer)
                    assert (got.at, got.standing.requests_remaining) == (expected.at, expected.standing.requests_remaining)
                    assert got.standing.tokens_remaining == expected.standing.tokens_remaining
                    assert 0.0 <= expected.standing.requests_reset_s <= got.standing.requests_reset_s <= 60.0
                    is_open.append((got, expected))
                else:
                    num_refused += 1
                    refused = refusal(ask, answer.verdicts[0], answer)
                    assert (refused.subject, refused.is_tokens) == (expected.subject, expected.is_tokens)
                    assert refused.retry_after_s == pytest.approx(expected.retry_after_s, abs=1e-5)
                    assert refused.retry_after_s <= 60.0
        for subject in subjects:
            held = store.held(subject)
            assert held.get("requests", 0) == sum(
                count for name, count in held.items() if name[1:].isdigit() and name[0] == "r"
            )
            assert held.get("tokens", 0) == sum(count for name, count in held.items() if name[1:].isdigit() and name[0] == "t")
            assert min(held.values(), default=0) >= 0
            assert len(held) <= 4 + 3 * 61
    assert 40 < num_refused < 250
