"""Connections drawn from a seed: any mix of requests, cut anywhere, and any damage to them. The seed is in the test's name.

What must hold for every seed: answers come in the order of the requests, each with its own output, and damage costs no other
connection anything.
"""

import asyncio
import contextlib
import json
from random import Random

import pytest

from tests.service.serving import Serving, quick, serving
from tests.service.wire_client import KEY, OPERATOR, Client, chunked, connected, request, run

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]


def _draw_request(random: Random, number: int) -> tuple[bytes, int, str | None]:
    """Bytes, and the status and output that they must get."""
    text = f"{number}" + "x" * random.choice([0, 0, 0, 10, 1000, 70_000])
    body = json.dumps({"input": text}).encode()
    path = random.choice(["/v1/run", "/v1/run", "/v1/run?x"])
    match random.randrange(8):
        case 0 | 1 | 2:
            return run(text, path=path), 200, text
        case 3:
            headers = {**KEY, "transfer-encoding": "chunked"}
            return request(path=path, headers=headers) + chunked(body, size=random.choice([7, 100, 9999])), 200, text
        case 4:
            return request(body=body[:50], headers={}), 401, None  # The ASGI way would end the connection in mid-body.
        case 5:
            return request(path=path, body=b"{}"), 400, None
        case 6:
            return request("GET", random.choice(["/health", "/ready", "/load"]), headers=OPERATOR), 200, None
        case _:
            return request("GET", "/nope"), 404, None


async def _write_in_pieces(random: Random, client: Client, data: bytes) -> None:
    at = 0
    while at < len(data):
        size = random.choice([1, 3, 100, 5000, 100_000])
        client.write(data[at : at + size])
        at += size
        if random.random() < 0.3:
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(40))
async def test_any_mix_of_requests_is_answered_in_order(seed: int) -> None:
    random = Random(seed)
    async with serving(quick(service_time=random.choice([0.0001, 0.003]))) as server, connected(server.port) as client:
        drawn = [_draw_request(random, number) for number in range(random.randrange(1, 30))]
        data = b"".join(data for data, _, _ in drawn)
        writing = asyncio.ensure_future(_write_in_pieces(random, client, data))
        for _, status, text in drawn:
            response = await client.read()
            assert response.status == status
            if text is not None:
                assert response.json["output"] == text
        await writing
        assert not client.reader.at_eof()


@pytest.mark.parametrize("seed", range(40))
async def test_any_damage_costs_only_its_own_connection(seed: int) -> None:
    random = Random(seed)
    async with serving(quick(service_time=0.001, body_timeout=0.05, keep_alive=0.3)) as server:
        for _ in range(10):
            await _damage(random, server)
            assert (await server.ask(run("unharmed"))).json["output"] == "unharmed"


async def _damage(random: Random, server: Serving) -> None:
    data = bytearray(b"".join(_draw_request(random, number)[0] for number in range(random.randrange(1, 4))))
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(min(len(data), 400))
        match random.randrange(4):
            case 0:
                data[at] = random.randrange(256)
            case 1:
                del data[at : at + random.randrange(1, 40)]
            case 2:
                data[at:at] = random.randbytes(random.randrange(1, 40))
            case _:
                data[at:at] = random.choice([b"\r\n", b"\0", b"\r\n\r\n", b"transfer-encoding: chunked\r\n", b"\xff" * 9])
    async with connected(server.port) as client:
        await _write_in_pieces(random, client, bytes(data))
        if random.random() < 0.5:
            with contextlib.suppress(ConnectionResetError):
                await client.read_to_end()
