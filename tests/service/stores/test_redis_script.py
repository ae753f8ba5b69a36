"""The script that counts in Redis, and its clock. Time is moved by its own `lag`."""

import pytest
import redis

from batcher.config import RateLimit
from batcher.core.admission.reservation import LimitRefusal, Reservation, Subject
from batcher.service.stores.redis_codec import Ask
from tests.service.stores.scripted import CLOCK, ScriptedStore, asking

pytestmark = pytest.mark.anyio

ANN = Subject("key:ann", RateLimit(3, None))


async def test_what_is_old_is_subtracted_once_whatever_the_verdict(scripted: ScriptedStore) -> None:
    full = Subject("key:full", RateLimit(1, None))
    first = await scripted.reserve(ANN)
    assert isinstance(first, Reservation)
    scripted.pass_s(10)
    second = await scripted.reserve(ANN, full)
    assert isinstance(second, Reservation)
    scripted.pass_s(first.at + 62 - second.at)
    for _ in range(2):
        assert isinstance(await scripted.reserve(ANN, full), LimitRefusal)
        held = scripted.held(ANN)
        assert f"r{first.at}" not in held
        assert (held["requests"], held[f"r{second.at}"]) == (1, 1)


async def test_a_clock_that_goes_back_stops_nothing_and_gives_nothing_away(
    scripted: ScriptedStore, beside: redis.Redis
) -> None:
    """CASES B34, as if the wall clock of Redis had been an hour ahead until now."""
    first = await scripted.reserve(ANN)
    assert isinstance(first, Reservation)
    beside.hincrby(CLOCK, "wall", 3600 * 10**6)
    beside.hincrby(CLOCK, "lag", -3600 * 10**6)
    second = await scripted.reserve(ANN)
    assert isinstance(second, Reservation)
    assert 0 <= second.at - first.at <= 2, "an hour that was lost is added"
    await scripted.reserve(ANN)
    refused = await scripted.reserve(ANN)
    assert isinstance(refused, LimitRefusal)
    assert 0 < refused.retry_after_s <= 60.0
    scripted.pass_s(60)
    assert isinstance(await scripted.reserve(ANN), Reservation), "time goes on"


async def test_a_clock_that_goes_back_by_a_little_gives_nothing_away(scripted: ScriptedStore, beside: redis.Redis) -> None:
    """By less than a second, which must not count as one: a minute would be one of 59 seconds and a part."""
    ask = asking(ANN)
    for _ in range(3):
        before = await scripted.call(ask=ask)
        beside.hincrby(CLOCK, "wall", 300_000)
        beside.hincrby(CLOCK, "lag", -300_000)
        after = await scripted.call()
        # It stands where it stood, and then goes on.
        assert before.now_us <= after.now_us < before.now_us + 200_000
        assert after.now_us < (await scripted.call()).now_us


async def test_what_was_forgotten_is_not_given_back(scripted: ScriptedStore, beside: redis.Redis) -> None:
    first = await scripted.reserve(ANN)
    assert isinstance(first, Reservation)
    beside.flushall()
    second = await scripted.reserve(ANN)
    assert isinstance(second, Reservation)
    assert second.epoch != first.epoch
    await scripted.call(((ANN.name, first.epoch, second.at), (-1, 0, 0)))
    assert scripted.held(ANN)["requests"] == 1
    await scripted.call(((ANN.name, second.epoch, second.at), (-1, 0, 0)))
    assert scripted.held(ANN)["requests"] == 0


async def test_nothing_becomes_negative(scripted: ScriptedStore) -> None:
    first = await scripted.reserve(ANN, tokens=5)
    assert isinstance(first, Reservation)
    await scripted.call(((ANN.name, first.epoch, first.at), (-7, -9, 0)), (("key:nobody", first.epoch, first.at), (-1, -1, 0)))
    held = scripted.held(ANN)
    assert (held["requests"], held["tokens"], held[f"r{first.at}"], held[f"t{first.at}"]) == (0, 0, 0, 0)
    assert scripted.held(Subject("key:nobody", RateLimit(1))) == {}


async def test_what_is_owed_late_is_charged_to_the_second_in_which_it_is_known(scripted: ScriptedStore) -> None:
    """As in memory: an answer that takes longer than a minute has its price, though it is no request of this one."""
    ben = Subject("key:ben", RateLimit(1, 100))
    first = await scripted.reserve(ben, tokens=10)
    assert isinstance(first, Reservation)
    scripted.pass_s(62)

    late = (ben.name, first.epoch, first.at)
    answer = await scripted.call((late, (-1, -10, 0)), (late, (0, -5, 95)))

    held = scripted.held(ben)
    assert (held["requests"], held["tokens"], held[f"t{answer.second}"]) == (0, 95, 95)
    refused = await scripted.reserve(ben, tokens=6)
    assert isinstance(refused, LimitRefusal)
    assert (refused.is_tokens, refused.standing.requests_remaining, refused.standing.tokens_remaining) == (True, 1, 5)
    scripted.pass_s(62)
    assert isinstance(await scripted.reserve(ben, tokens=100), Reservation)


async def test_a_subject_goes_by_itself(scripted: ScriptedStore, beside: redis.Redis) -> None:
    await scripted.reserve(ANN)
    assert 60 < beside.pttl(f"batcher:limits:of:{ANN.name}") / 1000 <= 70


async def test_a_slice_is_what_there_is_room_for_or_nothing(scripted: ScriptedStore) -> None:
    ben = Subject("key:ben", RateLimit(10, 100))

    async def granted(tokens: int, of_slice: tuple[int, int]) -> tuple[int, ...]:
        ask = Ask((ben,), tokens, lambda verdict: None, 0.0, is_first_shown=True, slices=(of_slice,))
        return tuple((await scripted.call(ask=ask)).verdicts[0][2])

    assert await granted(10, (4, 30)) == (5, 40, 4, 30)
    assert await granted(10, (9, 20)) == (10, 70, 4, 20)
    scripted.pass_s(62)
    assert await granted(100, (4, 30)) == (1, 100, 0, 0), "without tokens there is no use for requests"
