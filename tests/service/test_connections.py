"""One connection and what may come over it: requests in a row, requests in advance, and the ways in which it ends."""

import asyncio

import pytest

from batcher.config import TierConfig
from batcher.errors import Overloaded
from batcher.service.limiter import LimitKind
from batcher.service.records import OTHER, Route
from tests.service.errors import assert_error
from tests.service.serving import ASYNC_FAULTY, Gate, quick, serving, until
from tests.service.wire_client import KEY, Client, chunked, connected, request, run

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]

BODY = b'{"input": "hello"}'


# In a row


async def test_a_connection_serves_one_request_after_another(path: str) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        for number in range(20):
            assert (await client.ask(run(f"{number}", path=path))).json["output"] == f"{number}"
            assert (await client.ask(request("GET", "/health"))).status == 200
            assert_error(await client.ask(request(path=path, body=b"{}", headers={})), 401, "authentication_error")
        assert len(server.server.server_state.connections) == 1


@pytest.mark.parametrize(
    ("version", "headers"),
    [
        ("1.1", {"connection": "close"}),
        ("1.1", {"Connection": "keep-alive, Close"}),
        ("1.0", {}),
        ("1.0", {"connection": "keep-alive"}),
    ],
)
async def test_a_connection_that_the_client_ends_is_closed_after_the_answer(
    path: str, version: str, headers: dict[str, str]
) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        response = await client.ask(request(path=path, body=BODY, headers={**KEY, **headers}, version=version))
        assert (response.status, response.headers["connection"]) == (200, "close")
        assert await client.read_to_end() == b""


async def test_an_error_ends_the_connection_too_if_the_client_said_so(path: str) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        response = await client.ask(request(path=path, body=b"{}", headers={**KEY, "connection": "close"}))
        assert_error(response, 400, "invalid_request_error")
        assert response.headers["connection"] == "close"
        assert await client.read_to_end() == b""


async def test_an_idle_connection_is_closed_before_and_after_a_request(path: str) -> None:
    async with serving(quick(keep_alive=0.1)) as server:
        async with connected(server.port) as client:
            assert await client.read_to_end() == b""
        async with connected(server.port) as client:
            assert (await client.ask(run("hello", path=path))).status == 200
            assert await client.read_to_end() == b""


@pytest.mark.parametrize("after_a_request", [False, True])
async def test_empty_lines_are_no_life_sign(after_a_request: bool) -> None:
    """Old clients end a body with one; it may not keep a connection for ever."""
    async with serving(quick(keep_alive=0.1)) as server, connected(server.port) as client:
        if after_a_request:
            assert (await client.ask(run("hello"))).status == 200
        client.write(b"\r\n")
        assert await client.read_to_end() == b""


async def test_empty_lines_before_a_request_are_skipped() -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        assert (await client.ask(b"\r\n\r\n" + run("hello") + b"\r\n")).status == 200
        assert (await client.ask(run("hello"))).status == 200


async def test_a_running_request_is_not_idle(path: str, gate: Gate) -> None:
    settings = quick(backend=ASYNC_FAULTY, keep_alive=0.2, body_timeout=0.2)
    async with serving(settings) as server, connected(server.port) as client:
        client.write(run(gate.hold, path=path))
        await asyncio.sleep(0.3)
        gate.open()
        assert (await client.read()).status == 200


# In advance


async def test_pipelined_requests_are_answered_in_order(gate: Gate) -> None:
    """Both ways, good and bad, the slow one first: everything behind it waits for its turn."""
    async with serving(quick(backend=ASYNC_FAULTY)) as server, connected(server.port) as client:
        client.write(run(gate.hold, x_request_id="0"))
        client.write(request("GET", "/health"))
        client.write(run("a", x_request_id="1"))
        client.write(request(body=b"{}", headers={**KEY, "x-request-id": "2"}))
        client.write(run("b", path="/v1/run?x", x_request_id="3"))
        client.write(request(body=BODY, headers={}))
        client.write(request("GET", "/nope"))
        client.write(request(headers={**KEY, "transfer-encoding": "chunked"}) + chunked(BODY, size=3))
        await until(lambda: server.statistics.num_running == 1)
        await asyncio.sleep(0.01)
        assert server.statistics.num_live == 1
        gate.open()
        responses = [await client.read() for _ in range(8)]
    assert [response.status for response in responses] == [200, 200, 200, 400, 200, 401, 404, 200]
    outputs = [response.json["output"] for response in responses if response.status == 200 and "output" in response.json]
    assert outputs == [f"<{gate.hold}>", "<a>", "<b>", "<hello>"]
    assert [responses[at].headers["x-request-id"] for at in (0, 2, 3, 4)] == ["0", "1", "2", "3"]


async def test_an_asgi_request_ahead_is_waited_for_too(gate: Gate) -> None:
    async with serving(quick(backend=ASYNC_FAULTY)) as server, connected(server.port) as client:
        client.write(run(gate.hold, path="/v1/run?x") + run("a") + run("b"))
        await until(lambda: server.statistics.num_running == 1)
        gate.open()
        assert [(await client.read()).json["output"] for _ in range(3)] == [f"<{gate.hold}>", "<a>", "<b>"]


@pytest.mark.parametrize("behind", [request(headers={}), request(body=b"{}"), request("GET", "/nope")])
async def test_any_number_may_be_pipelined(behind: bytes) -> None:
    """Refusals are answered at once, each when its turn comes: that must be a loop and no recursion."""
    async with serving(quick()) as server, connected(server.port) as client:
        client.write(run("first") + behind * 1000 + run("last"))
        assert (await client.read()).json["output"] == "first"
        assert {(await client.read()).status for _ in range(1000)} <= {400, 401, 404}
        assert (await client.read()).json["output"] == "last"


@pytest.mark.parametrize("size", [1, 5, 64])
async def test_pipelined_requests_may_be_cut_anywhere(size: int) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        data = b"".join(run(f"{number}", path=("/v1/run", "/v1/run?x")[number % 2]) for number in range(6))
        for at in range(0, len(data), size):
            client.write(data[at : at + size])
            await client.writer.drain()
        assert [(await client.read()).json["output"] for _ in range(6)] == [f"{number}" for number in range(6)]


async def test_a_read_may_end_in_any_head() -> None:
    """The bound on a head's bytes counts that head, not what came before it in the same read."""
    async with serving(quick()) as server, connected(server.port) as client:
        large, small = run("x" * 300_000), run("small")
        client.write(large[:200_000])
        await asyncio.sleep(0.01)
        client.write(large[200_000:] + small[:30])
        assert (await client.read()).status == 200
        assert (await client.ask(small[30:])).json["output"] == "small"


async def test_what_follows_connection_close_is_not_served() -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        client.write(run("last", connection="close") + run("too late"))
        assert (await client.read()).json["output"] == "last"
        assert await client.read_to_end() == b""
        assert server.statistics.counters.batch_sizes == {1: 1}


async def test_what_follows_a_refusal_in_mid_body_is_not_served() -> None:
    """The body is not read, so where the next request begins is unknown, even if the bytes look like one."""
    async with serving(quick(max_body_bytes=100)) as server, connected(server.port) as client:
        client.write(request(body=b"x" * 20_000, headers={}) + run("no") + request(body=b"{}"))
        assert_error(await client.read(), 401, "authentication_error")
        assert await client.read_to_end() == b""
        assert server.statistics.counters.batch_sizes == {}


async def test_a_body_behind_a_running_request_is_not_late(gate: Gate) -> None:
    """The server stops reading while requests wait for their turn; that may not be held against the client."""
    settings = quick(backend=ASYNC_FAULTY, body_timeout=0.03)
    async with serving(settings) as server, connected(server.port) as client:
        large = run("x" * 500_000)
        client.write(run(gate.hold) + large[:100])
        await until(lambda: server.statistics.num_running == 1)
        client.write(large[100:])
        await asyncio.sleep(0.06)
        gate.open()
        assert [(await client.read()).status for _ in range(2)] == [200, 200]


async def test_half_a_request_behind_a_running_one_does_not_cost_it_its_answer(path: str, gate: Gate) -> None:
    settings = quick(backend=ASYNC_FAULTY, body_timeout=0.03)
    async with serving(settings) as server, connected(server.port) as client:
        client.write(run(gate.hold, path=path) + b"POST /v1/r")
        await until(lambda: server.statistics.num_running == 1)
        await asyncio.sleep(0.06)
        gate.open()
        assert (await client.read()).status == 200


# Expect: 100-continue


async def _read_continue(client: Client) -> None:
    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_a_client_that_asks_first_is_told_to_go_on(path: str) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        for _ in range(2):
            client.write(request(path=path, headers={**KEY, "expect": "100-continue", "content-length": f"{len(BODY)}"}))
            await _read_continue(client)
            assert (await client.ask(BODY)).json["output"] == "hello"


async def test_a_pipelined_client_that_asks_first_is_told_to_go_on(gate: Gate) -> None:
    async with serving(quick(backend=ASYNC_FAULTY)) as server, connected(server.port) as client:
        client.write(run(gate.hold))
        client.write(request(headers={**KEY, "expect": "100-continue", "content-length": f"{len(BODY)}"}))
        await until(lambda: server.statistics.num_running == 1)
        gate.open()
        assert (await client.read()).status == 200
        await _read_continue(client)
        assert (await client.ask(BODY)).json["output"] == "<hello>"


# Upgrades: the parser stops behind such a request, so it is the connection's last


@pytest.mark.parametrize("protocol", ["h2c", "websocket"])
async def test_an_upgrade_is_refused(path: str, protocol: str) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        response = await client.ask(
            run("hello", path=path, connection="Upgrade, HTTP2-Settings", upgrade=protocol) + run("next")
        )
        assert_error(response, 400, "invalid_request_error")
        assert await client.read_to_end() == b""


async def test_an_upgrade_beyond_a_limit_is_refused_for_the_limit(path: str) -> None:
    """It was counted as such, and then told to be invalid."""
    tiers = (TierConfig("paid", requests_per_minute=1), TierConfig("free"))
    async with serving(quick(tiers=tiers)) as server:
        assert (await server.ask(run("first", path=path))).status == 200
        for headers in ({}, {"connection": "Upgrade", "upgrade": "h2c"}):
            refused = await server.ask(run("more", path=path, **headers))
            assert (refused.status, "retry-after" in refused.headers) == (429, True)
        front = server.service.front
        assert front.limiter.statistics().num_refused["paid", LimitKind.KEY_REQUESTS] == 2
        assert front.meters.refusals["paid"]["rate_requests"] == 2


async def test_an_upgrade_offered_where_there_is_no_body_is_ignored() -> None:
    """RFC 9110, 7.8; `curl --http2` offers one with every request."""
    async with serving(quick()) as server, connected(server.port) as client:
        headers = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABk"}
        assert (await client.ask(request("GET", "/health", headers=headers))).status == 200
        assert await client.read_to_end() == b""


# Too many


async def test_a_connection_too_many_is_refused_in_words() -> None:
    async with serving(quick(max_connections=2)) as server:
        async with connected(server.port) as first, connected(server.port) as second:
            for client in (first, second):
                assert (await client.ask(run("hello"))).status == 200
            async with connected(server.port) as third:
                third.write(run("hello"))
                assert "connections" in assert_error(await third.read(), 529, Overloaded.type)
                assert await third.read_to_end() == b""
            assert (await first.ask(run("hello"))).status == 200
            # It counts for no route: none has seen it.
            statuses = server.service.front.meters.statuses
            assert (sum(statuses[Route.RUN]), sum(statuses[OTHER])) == (3, 1)
        await until(lambda: not server.server.server_state.connections)
        assert (await server.ask(run("hello"))).status == 200
