"""Large bodies that have not come whole: however many clients send them, together they hold no more than one budget."""

from contextlib import AsyncExitStack

import pytest

from batcher.errors import Overloaded
from batcher.service.pending_bodies import PendingBodies
from batcher.service.small_bodies import SMALL_BODY_BYTES
from tests.service.errors import assert_error
from tests.service.serving import ASYNC_FAULTY, Gate, Served, quick, serving, until
from tests.service.wire_client import KEY, OPERATOR, Client, connected, request, run

pytestmark = pytest.mark.anyio

FREE = {"x-api-key": "dev-free"}
LARGE = 30_000
BUDGET = 80_000
"""Of which a tenant alone may hold about half: one of the large ones, and not two."""


@pytest.fixture(params=["/v1/run", "/v1/run?by=asgi", "/v1/messages", "/v1/messages/count_tokens"])
def route(request: pytest.FixtureRequest) -> str:
    path: str = request.param
    return path


def stalled(path: str, num_bytes: int = LARGE, *, key: dict[str, str] = KEY) -> bytes:
    """The beginning of a request whose last byte never comes."""
    return request(path=path, headers={**key, "content-length": f"{num_bytes + 1}"}) + b" " * num_bytes


def held(server: Served) -> int:
    bodies: PendingBodies = server.app.state.service.front.door.bodies
    return bodies.num_bytes


async def stall(server: Served, clients: AsyncExitStack, data: bytes) -> Client:
    """A client that has sent it, and the server holds it."""
    client = await clients.enter_async_context(connected(server.port))
    before = held(server)
    client.write(data)
    await until(lambda: held(server) == before + LARGE)
    return client


def test_a_tenant_alone_holds_half_and_whoever_comes_then_has_room() -> None:
    bodies = PendingBodies(max_bytes=100_000)
    first, second, other = bodies.open("a"), bodies.open("a"), bodies.open("b")
    first.grow(40_000)
    with pytest.raises(Overloaded, match="received or answered") as refused:
        second.grow(20_001)
    assert refused.value.retry_after_s == 1
    second.grow(20_000)
    other.grow(20_000)
    assert repr(bodies) == "PendingBodies(80000 of 100000 bytes, 2 tenants)"
    first.close()
    second.close()
    other.close()
    assert repr(bodies) == "PendingBodies(0 of 100000 bytes, 0 tenants)"


def test_a_body_is_charged_as_it_grows_and_given_back_once() -> None:
    bodies = PendingBodies(max_bytes=100_000)
    body = bodies.open("a")
    body.grow(SMALL_BODY_BYTES)
    assert bodies.num_bytes == 0, "small bodies cost nothing"
    body.grow(SMALL_BODY_BYTES + 1)
    body.grow(40_000)
    assert bodies.num_bytes == 40_000
    with pytest.raises(Overloaded):
        body.grow(100_001)
    assert bodies.num_bytes == 40_000, "what was refused was not taken"
    body.close()
    body.close()
    assert bodies.num_bytes == 0


@pytest.mark.usefixtures("quiet")
async def test_clients_that_stall_with_large_bodies_hold_no_more_than_the_budget(route: str) -> None:
    """A thousand of them, each with a megabyte but for its last byte, held a gigabyte until their time was up."""
    async with serving(quick(max_body_bytes=40_000, max_pending_body_bytes=BUDGET)) as server, AsyncExitStack() as clients:
        await stall(server, clients, stalled(route))
        refusal = await server.ask(stalled(route))
        assert_error(refusal, 529, "overloaded_error")
        assert (refusal.headers["retry-after"], refusal.headers["connection"]) == ("1", "close")
        await until(lambda: held(server) == LARGE)
        # Neither small bodies nor another tenant's are in the way.
        assert (await server.ask(run("hello"))).status == 200
        await stall(server, clients, stalled(route, key=FREE))
        page = (await server.ask(request("GET", "/metrics", headers=OPERATOR))).body.decode()
        assert f"batcher_pending_body_bytes {2.0 * LARGE}" in page
    assert held(server) == 0


async def test_who_is_refused_for_that_counts_as_capacity(path: str) -> None:
    async with serving(quick(max_body_bytes=40_000, max_pending_body_bytes=BUDGET)) as server, AsyncExitStack() as clients:
        await stall(server, clients, stalled(path))
        assert (await server.ask(stalled(path))).status == 529
        assert server.service.front.meters.refusals["paid"]["capacity"] == 1


async def test_room_is_free_again_when_a_client_leaves(route: str) -> None:
    async with serving(quick(max_body_bytes=40_000, max_pending_body_bytes=BUDGET)) as server, AsyncExitStack() as clients:
        client = await stall(server, clients, stalled(route))
        client.writer.transport.abort()
        await until(lambda: held(server) == 0)
        await stall(server, clients, stalled(route))


async def test_room_is_free_again_when_a_body_did_not_come_in_time(route: str) -> None:
    async with serving(quick(body_timeout=0.2)) as server, AsyncExitStack() as clients:
        client = await stall(server, clients, stalled(route))
        assert (await client.read()).status == 408
        assert held(server) == 0


async def test_room_is_free_again_when_a_body_is_too_large_after_all(route: str) -> None:
    chunk = b"7530\r\n" + b" " * LARGE + b"\r\n"
    headers = {**KEY, "transfer-encoding": "chunked"}
    async with serving(quick(max_body_bytes=40_000)) as server, AsyncExitStack() as clients:
        client = await stall(server, clients, request(path=route, headers=headers) + chunk)
        client.write(chunk)
        assert (await client.read()).status == 413
        assert held(server) == 0


async def test_room_is_free_again_when_a_request_is_answered(path: str) -> None:
    async with serving(quick(max_body_bytes=40_000, max_pending_body_bytes=BUDGET)) as server, connected(server.port) as client:
        for _ in range(5):
            assert (await client.ask(run("x" * LARGE, path=path))).status == 200
            assert held(server) == 0


async def test_a_body_that_waits_for_its_turn_is_held_until_then(gate: Gate) -> None:
    """It has come whole, and no queue bounds it yet."""
    async with serving(quick(backend=ASYNC_FAULTY)) as server, connected(server.port) as client:
        client.write(run(gate.hold) + run("x" * LARGE))
        await until(lambda: held(server) > LARGE)
        gate.open()
        assert [(await client.read()).status for _ in range(2)] == [200, 200]
        assert held(server) == 0


async def test_callers_who_wait_for_one_answer_hold_their_bodies(gate: Gate) -> None:
    """Each has the same Idempotency-Key and its own copy of a body; no queue has them."""
    body = run(gate.hold).partition(b"\r\n\r\n")[2]
    asked = request(body=body.ljust(LARGE), headers={**KEY, "idempotency-key": "k"})
    async with serving(quick(backend=ASYNC_FAULTY)) as server, AsyncExitStack() as stack:
        clients = [await stall(server, stack, asked) for _ in range(3)]
        gate.open()
        assert [(await client.read()).status for client in clients] == [200] * 3
        assert held(server) == 0
