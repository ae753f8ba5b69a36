"""Who is refused because its key is shed is told apart from who is refused as nobody has room, on a real server's /metrics."""

import asyncio

import pytest

from batcher.service.records import Refused
from tests.service.scraping import Metrics
from tests.service.serving import ASYNC_FAULTY, Gate, quick, serving, until
from tests.service.wire_client import OPERATOR, PATIENCE_S, connected, request, run

pytestmark = pytest.mark.anyio


async def test_a_shed_key_is_counted_as_shed_and_any_other_as_capacity(path: str, gate: Gate) -> None:
    """The only worker is held and the queue is over free's budget: at first nobody has room, then most keys are shed."""
    settings = quick(backend=ASYNC_FAULTY, workers=1, max_batch_size=1, service_time=0.2)
    async with serving(settings) as server, connected(server.port) as held, connected(server.port) as waits:
        held.write(run(gate.hold, path=path))
        await until(lambda: server.statistics.num_running == 1)
        waits.write(run("waits", path=path))
        await until(lambda: server.statistics.tiers[0].num_waiting == 1)

        async def refusals() -> dict[tuple[str, ...], float]:
            page = await server.ask(request("GET", "/metrics", headers=OPERATOR))
            return Metrics(page.body.decode()).nonzero("batcher_refusals_total")

        num_asked = 0
        async with asyncio.timeout(PATIENCE_S), connected(server.port) as client:
            while (Refused.SHED, "free") not in await refusals():
                for number in range(20):
                    headers = {"x-api-key": f"dev-free-{number}"}
                    reply = await client.ask(request(path=path, body=b'{"input": "free"}', headers=headers))
                    assert reply.status == 529
                    num_asked += 1
        by_kind = await refusals()
        assert set(by_kind) == {(Refused.SHED, "free"), (Refused.CAPACITY, "free")}
        assert sum(by_kind.values()) == num_asked
        gate.open()
        assert (await held.read()).status == (await waits.read()).status == 200
