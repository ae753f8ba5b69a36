"""Lease mode on a real Redis: hot keys admit without asking, within the stated bound, and keep nothing."""

import asyncio
from contextlib import closing

import pytest

from batcher.config import LimitMode, RateLimit
from batcher.core.admission.leases import LEASE_S, SLICES, max_overshoot
from batcher.core.admission.reservation import Reservation, Subject
from batcher.service.stores import redis_limits
from batcher.service.stores.redis_limits import RedisLimits
from benchmarks.redis_server import RedisServer
from tests.service.stores.gateways import ANN, Gateways, admitted, ask, remaining, until

pytestmark = pytest.mark.anyio


async def test_a_hot_key_is_admitted_from_a_lease_within_the_bound(gateways: Gateways) -> None:
    stores = [await gateways.open(mode=LimitMode.LEASE) for _ in range(2)]
    hot = Subject("key:hot", RateLimit(1200, None))
    num_admitted = 0

    async def hammer(store: RedisLimits) -> None:
        nonlocal num_admitted
        for _ in range(200):
            verdicts = await asyncio.gather(*[ask(store, hot, tokens=1) for _ in range(10)])
            num_admitted += sum(isinstance(verdict, Reservation) for verdict in verdicts)

    await asyncio.gather(*map(hammer, stores))
    assert 1200 - 2 * 1200 // SLICES <= num_admitted <= 1200 + max_overshoot(1200, 2)
    num_leased = sum(store.statistics().num_leased for store in stores)
    assert num_leased > num_admitted / 2, "without asking"


async def test_a_slice_may_be_spent_on_top_of_a_full_minute_and_no_more_than_it(
    gateways: Gateways, redis_server: RedisServer
) -> None:
    """Where the bound comes from: a slice is charged to one minute and spent in the next, which others have filled."""
    now = 100.0
    leasing, shared = await gateways.open(mode=LimitMode.LEASE, clock=lambda: now), await gateways.open()
    hot = Subject("key:hot", RateLimit(600, None))
    while not leasing.statistics().num_leases:
        await admitted(leasing, hot)
    with closing(redis_server.client()) as beside:
        beside.hincrby("batcher:limits:clock", "lag", 62 * 10**6)
    verdicts = await asyncio.gather(*[ask(shared, hot) for _ in range(605)])
    assert sum(isinstance(verdict, Reservation) for verdict in verdicts) == 600
    late = [await ask(leasing, hot) for _ in range(15)]
    assert [isinstance(verdict, Reservation) for verdict in late] == [True] * max_overshoot(600, 1) + [False] * 5
    # The slice itself is over after a second.
    assert max_overshoot(600, 1) == 600 // SLICES


async def test_an_unspent_lease_goes_back(gateways: Gateways, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_limits, "LEASE_S", LEASE_S / 20)  # When it is looked at; the clock here says what is over.
    now = 100.0
    leasing, shared = await gateways.open(mode=LimitMode.LEASE, clock=lambda: now), await gateways.open()
    ends = [await admitted(leasing, ANN) for _ in range(10)]
    assert leasing.statistics().num_leases == 1
    assert leasing.statistics().num_leased > 0
    for end in ends:
        leasing.give_back(end)
    assert await remaining(shared, ANN) != 1000
    now = 100.0 + LEASE_S

    async def is_back() -> bool:
        return await remaining(shared, ANN) == 1000

    await until(is_back)
    assert leasing.statistics().num_leases == 0
