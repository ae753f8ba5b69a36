"""The store in Redis beside its contract: crashes, policies, bounds and leases, with a real server that is really killed."""

import asyncio
import logging
from contextlib import closing

import msgspec
import pytest

from batcher.config import OnFailure, RateLimit
from batcher.core.admission.reservation import LimitRefusal, Reservation, StoreAway, Subject
from batcher.service.limits import Verdict
from batcher.service.stores import redis_limits
from batcher.service.stores.redis_limits import MAX_BATCH, MAX_WAITING
from batcher.service.stores.redis_refusals import KNOWN_S
from benchmarks.redis_server import RedisServer
from tests.service.stores.gateways import ANN, Gateways, admitted, ask, remaining, start_again, until

pytestmark = pytest.mark.anyio


async def test_gateways_share_a_limit(gateways: Gateways) -> None:
    first, second = await gateways.open(), await gateways.open()
    ben = Subject("key:ben", RateLimit(50))
    verdicts = await asyncio.gather(*[ask(store, ben) for _ in range(40) for store in (first, second)])
    assert sum(isinstance(verdict, Reservation) for verdict in verdicts) == 50


async def test_what_is_asked_for_in_one_turn_takes_one_trip(gateways: Gateways) -> None:
    store = await gateways.open()
    await asyncio.gather(*[ask(store, ANN) for _ in range(MAX_BATCH)])
    assert store.statistics().num_calls == 1
    await asyncio.gather(*[ask(store, ANN) for _ in range(MAX_BATCH + 1)])
    assert store.statistics().num_calls == 3


async def test_ends_of_one_second_are_one_correction(gateways: Gateways) -> None:
    store = await gateways.open()
    ends = await asyncio.gather(*[ask(store, ANN, tokens=10) for _ in range(100)])
    before = store.statistics().num_calls
    for end in ends:
        assert isinstance(end, Reservation)
        store.settle(end, 5)
    other = await gateways.open()

    async def has_arrived() -> bool:
        reservation = await admitted(other, ANN)
        other.give_back(reservation)
        return reservation.standing.tokens_remaining == 100_000 - 500

    await until(has_arrived)
    assert store.statistics().num_calls == before + 1


async def test_a_flushed_script_is_loaded_again(gateways: Gateways, redis_server: RedisServer) -> None:
    store = await gateways.open()
    await admitted(store, ANN)
    with closing(redis_server.client()) as beside:
        beside.script_flush()
    assert (await admitted(store, ANN)).standing.requests_remaining == 998


async def test_a_crash_forgets_nothing(gateways: Gateways, redis_server: RedisServer) -> None:
    store = await gateways.open()
    first = await admitted(store, ANN, tokens=60_000)
    for _ in range(9):
        await admitted(store, ANN)
    redis_server.kill()
    assert isinstance(await ask(store, ANN), StoreAway)
    await start_again(redis_server)
    await until(lambda: not store.statistics().is_failing)
    standing = (await admitted(store, ANN)).standing
    assert (standing.requests_remaining, standing.tokens_remaining) == (989, 40_000)
    store.settle(first, 10_000)
    assert (await admitted(store, ANN)).standing.tokens_remaining == 90_000


async def test_what_ended_while_redis_was_away_is_given_back_after(gateways: Gateways, redis_server: RedisServer) -> None:
    store = await gateways.open()
    first = await admitted(store, ANN, tokens=60_000)
    redis_server.kill()
    assert isinstance(await ask(store, ANN), StoreAway)
    store.give_back(first)
    await start_again(redis_server)
    await until(lambda: not store.statistics().is_failing)
    standing = (await admitted(store, ANN)).standing
    assert (standing.requests_remaining, standing.tokens_remaining) == (999, 100_000)
    assert store.statistics().num_dropped == 0


async def test_a_redis_that_lost_everything_is_given_nothing_back(gateways: Gateways, redis_server: RedisServer) -> None:
    store = await gateways.open()
    first = await admitted(store, ANN, tokens=60_000)
    redis_server.flush()
    second = await admitted(store, ANN, tokens=1)
    store.give_back(first)
    assert await remaining(store, ANN) == 999
    assert second.epoch != first.epoch


async def test_nobody_waits_twice_for_a_redis_that_is_silent(gateways: Gateways, redis_server: RedisServer) -> None:
    """Those who had asked are told after one time limit, those who ask then at once: their verdicts are there on return."""
    store = await gateways.open(timeout_s=0.2)
    await admitted(store, ANN)
    redis_server.freeze()
    verdicts = await asyncio.gather(*[ask(store, ANN) for _ in range(3 * MAX_BATCH)])
    assert verdicts == [StoreAway()] * (3 * MAX_BATCH)
    at_once: list[Verdict] = []
    store.reserve((ANN,), 1, at_once.append)
    assert at_once == [StoreAway()]
    redis_server.thaw()
    await until(lambda: not store.statistics().is_failing)
    left = (await admitted(store, ANN)).standing.requests_remaining
    assert left is not None
    assert 998 - MAX_BATCH <= left <= 998, "what was sent may have been charged; what was not sent was not"


async def test_open_means_each_gateway_by_itself(gateways: Gateways, redis_server: RedisServer) -> None:
    store = await gateways.open(failure=OnFailure.OPEN)
    ben = Subject("key:ben", RateLimit(5))
    shared = await admitted(store, ben)
    redis_server.kill()
    await until(lambda: store.statistics().is_failing)
    alone = [await ask(store, ben) for _ in range(6)]
    assert [isinstance(verdict, Reservation) for verdict in alone] == [True] * 5 + [False]
    assert store.peek((ben,)) is not None
    first, second = alone[:2]
    assert isinstance(first, Reservation)
    assert isinstance(second, Reservation)
    store.give_back(first)
    assert store.peek((ben,)) is None
    await start_again(redis_server)
    await until(lambda: not store.statistics().is_failing)
    assert await remaining(store, ben) == 4, "what was decided alone is not in Redis"
    store.give_back(second)
    store.give_back(shared)
    assert await remaining(store, ben) == 5


async def test_it_starts_without_redis_and_finds_it_later(gateways: Gateways, redis_server: RedisServer) -> None:
    redis_server.kill()
    store = await gateways.open()
    assert isinstance(await ask(store, ANN), StoreAway)
    await start_again(redis_server)
    await until(lambda: not store.statistics().is_failing)
    await admitted(store, ANN)


async def test_a_redis_that_refuses_to_write_is_as_good_as_away(
    gateways: Gateways, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    store = await gateways.open()
    with closing(redis_server.client()) as beside:
        beside.config_set("maxmemory", 1)
        for _ in range(3):
            assert isinstance(await ask(store, ANN), StoreAway)
        beside.config_set("maxmemory", 0)
    await admitted(store, ANN)
    assert [record.getMessage() for record in caplog.records] == ["redis_refused"], "once, not for each request"


async def test_more_than_may_wait_are_told_at_once(gateways: Gateways) -> None:
    store = await gateways.open()
    verdicts: list[Verdict] = []
    for _ in range(MAX_WAITING + 5):
        store.reserve((ANN,), 0, verdicts.append)
    assert verdicts == [StoreAway()] * 5
    await until(lambda: len(verdicts) == MAX_WAITING + 5)


async def test_who_waited_for_too_long_is_told(gateways: Gateways) -> None:
    now = 100.0
    store = await gateways.open(timeout_s=0.5, clock=lambda: now)
    verdicts: list[Verdict] = []
    store.reserve((ANN,), 0, verdicts.append)
    now = 101.0
    store.reserve((ANN,), 0, verdicts.append)
    await until(lambda: len(verdicts) == 2)
    assert [type(verdict) for verdict in verdicts] == [StoreAway, Reservation]


async def test_a_caller_that_raises_harms_nobody_else(gateways: Gateways, caplog: pytest.LogCaptureFixture) -> None:
    store = await gateways.open()

    def break_down(verdict: Verdict) -> None:
        raise RuntimeError("a bug of the caller's")

    with caplog.at_level(logging.CRITICAL):
        store.reserve((ANN,), 0, break_down)
        await admitted(store, ANN)


async def test_a_reply_that_makes_no_sense_leaves_nobody_waiting(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = await gateways.open()
    with monkeypatch.context() as patch:
        patch.setattr(redis_limits, "decode_answer", msgspec.msgpack.Decoder(int).decode)
        assert isinstance(await ask(store, ANN), StoreAway)
    assert [record.getMessage() for record in caplog.records] == ["limits_failed"]
    await admitted(store, ANN)


async def test_a_refusal_is_remembered_for_a_second(gateways: Gateways) -> None:
    now = 100.0
    store = await gateways.open(clock=lambda: now)
    ben, tier = Subject("key:ben", RateLimit(5)), Subject("tier:free", RateLimit(1))
    await admitted(store, ben, tier)
    refusal = await ask(store, ben, tier)
    assert isinstance(refusal, LimitRefusal)
    now = 100.5
    known = store.peek((ben, tier))
    assert known is not None
    assert known.retry_after_s == pytest.approx(refusal.retry_after_s - 0.5)
    assert known.standing == refusal.standing
    other = store.peek((Subject("key:eve", RateLimit(5)), tier))
    assert other is not None
    assert other.standing.requests_limit is None, "ben's numbers are not for eve"
    now = 100.0 + KNOWN_S
    assert store.peek((ben, tier)) is None, "others may have given back"


async def test_a_close_sends_what_is_to_be_given_back(gateways: Gateways) -> None:
    store, other = await gateways.open(), await gateways.open()
    store.give_back(await admitted(store, ANN))
    verdicts: list[Verdict] = []
    store.reserve((ANN,), 0, verdicts.append)
    await store.close()
    assert verdicts == [StoreAway()]
    assert await remaining(other, ANN) == 1000
    store.reserve((ANN,), 0, verdicts.append)
    assert verdicts == [StoreAway()] * 2
