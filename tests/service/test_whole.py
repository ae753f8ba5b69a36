"""Whole answers on the short way: they say what ASGI's say, are kept by the same books, and whatever is more goes to ASGI."""

import json
from pathlib import Path
from typing import Any

import pytest

from batcher.config import TierConfig
from batcher.types import Outcome
from tests.service.serving import ASYNC_FAULTY, Gate, Serving, quick, serving, until
from tests.service.sse import body, opened
from tests.service.wire_client import KEY, Client, Response, chunked, connected, request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]

WAYS = ("/v1/messages", "/v1/messages?by=asgi")
ANTHROPIC = {**KEY, "anthropic-version": "2023-06-01"}


@pytest.fixture(params=WAYS, ids=["short", "asgi"])
def way(request: pytest.FixtureRequest) -> str:
    path: str = request.param
    return path


def comparable(response: Response) -> tuple[int, dict[str, str], Any]:
    """Without what is another each time."""
    document = response.json
    for field in ("id", "request_id", "created"):
        document.pop(field, None)
    # What tells the time may be a second later in the second of two replies.
    own = ("x-request-id", "request-id", "date", "anthropic-ratelimit-requests-reset", "anthropic-ratelimit-tokens-reset")
    headers = {name: value for name, value in response.headers.items() if name not in own}
    return response.status, headers, document


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (body("hello"), 200),
        (body("häß ☃"), 200),
        (body("hello", max_tokens=3), 200),
        (body("hello", stop_sequences=["l"]), 200),
        (body("hello", stream=False), 200),
        (body("hello", model="other"), 404),
        (body("hello", max_tokens=None), 400),
        (body("hello", messages=[{"role": "assistant", "content": "I"}]), 400),
        (b"{", 400),
        (b"\xff", 400),
    ],
)
@pytest.mark.parametrize("headers", [KEY, ANTHROPIC, {}], ids=["native", "anthropic", "no key"])
async def test_both_ways_say_the_same(headers: dict[str, str], content: bytes, status: int) -> None:
    limited = TierConfig("paid", requests_per_minute=1000, tokens_per_minute=10**9)
    replies = []
    for path in WAYS:
        async with serving(quick(tiers=(limited,))) as server:
            replies.append(comparable(await server.ask(request(path=path, body=content, headers=headers))))
    assert replies[0] == replies[1]
    assert replies[0][0] == (status if headers else 401)


async def test_chat_completions_are_answered_likewise() -> None:
    async with serving(quick()) as server:
        short, asgi = [
            comparable(await server.ask(request(path=path, body=body("hello"))))
            for path in ("/v1/chat/completions", "/v1/chat/completions?by=asgi")
        ]
    assert short == asgi
    assert short[2]["choices"][0]["message"]["content"] == "hello"


def num_tasks(server: Serving) -> int:
    return len(server.server.server_state.tasks)


@pytest.mark.parametrize(
    ("path", "headers", "expected"),
    [(WAYS[0], KEY, 0), (WAYS[1], KEY, 1), (WAYS[0], {**KEY, "idempotency-key": "a"}, 1), (WAYS[0], ANTHROPIC, 0)],
)
async def test_the_short_way_takes_no_task(gate: Gate, path: str, headers: dict[str, str], expected: int) -> None:
    async with serving(quick(backend=ASYNC_FAULTY)) as server, connected(server.port) as client:
        client.write(request(path=path, body=body(gate.hold, model=ASYNC_FAULTY), headers=headers))
        await until(lambda: server.statistics.num_running == 1)
        assert num_tasks(server) == expected
        gate.open()
        assert (await client.read()).status == 200


async def streamed(client: Client, data: bytes) -> str:
    stream = await opened(client, data)
    assert stream.status == 200
    return "".join(event.data["text"] for event in await stream.rest() if event.name == "content_delta")


async def test_a_stream_goes_to_asgi_whatever_stands_before_it() -> None:
    escaped = body("c", stream=True).replace(b'"stream"', b'"str\\u0065am"')
    assert escaped != body("c", stream=True)
    in_chunks = request(path=WAYS[0], headers={**KEY, "transfer-encoding": "chunked"}) + chunked(body("d", stream=True), size=7)
    async with serving(quick()) as server, connected(server.port) as client:
        for number in range(3):
            assert (await client.ask(request(path=WAYS[0], body=body("a")))).json["content"] == "a"
            assert await streamed(client, request(path=WAYS[0], body=body("b", stream=True))) == "b"
            assert await streamed(client, request(path=WAYS[0], body=escaped)) == "c"
            assert await streamed(client, in_chunks) == "d"
            assert (await client.ask(request(body=json.dumps({"input": f"{number}"}).encode()))).json["output"] == f"{number}"
        assert len(server.server.server_state.connections) == 1


@pytest.mark.parametrize("size", [1, 5, 64])
async def test_a_body_may_come_in_any_pieces(size: int) -> None:
    whole, stream = (request(path=WAYS[0], body=body(text, stream=text == "stream")) for text in ("whole", "stream"))
    async with serving(quick()) as server, connected(server.port) as client:
        for data in (whole, stream):
            for at in range(0, len(data) - size, size):
                client.write(data[at : at + size])
                await client.writer.drain()
            rest = data[(len(data) - 1) // size * size :]
            if data is whole:
                assert (await client.ask(rest)).json["content"] == "whole"
            else:
                assert await streamed(client, rest) == "stream"


async def test_what_is_asked_in_advance_is_answered_in_order(gate: Gate) -> None:
    async with serving(quick(backend=ASYNC_FAULTY)) as server, connected(server.port) as client:
        client.write(request(path=WAYS[0], body=body(gate.hold, model=ASYNC_FAULTY)))
        client.write(request(path=WAYS[0], body=body("b", model=ASYNC_FAULTY)))
        client.write(request(path=WAYS[0], body=body("c", model=ASYNC_FAULTY, stream=True)))
        client.write(request(body=b'{"input": "d"}'))
        await until(lambda: server.statistics.num_running == 1)
        gate.open()
        assert [(await client.read()).json["content"] for _ in range(2)] == [f"<{gate.hold}>", "<b>"]
        assert await streamed(client, b"") == "<c>"
        assert (await client.read()).json["output"] == "<d>"


async def test_a_client_that_asks_first_is_told_to_go_on_once() -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        for is_streamed in (False, True):
            content = body("hello", stream=is_streamed)
            head = {**KEY, "expect": "100-continue", "content-length": str(len(content))}
            client.write(request(path=WAYS[0], headers=head))
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            if is_streamed:
                assert await streamed(client, content) == "hello"
            else:
                assert (await client.ask(content)).json["content"] == "hello"


# The books


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()]


RULES = """
[[rules]]
name = "in"
phrases = ["plutonium"]
where = "input"

[[rules]]
name = "out"
phrases = ["secret"]
where = "output"
verdict = "stop"

[[rules]]
name = "never"
phrases = ["forbidden"]
where = "output"
"""


@pytest.mark.parametrize(
    ("text", "status", "content", "reason", "billed"),
    [
        ("fine", 200, "fine", "end_turn", [("ok", 4, None)]),
        ("some plutonium", 400, None, None, []),
        ("a secret thing", 200, "a ", "refusal", [("ok", 2, 14)]),
        ("it is forbidden", 400, None, None, [("failed", 0, 15)]),
    ],
)
async def test_rules_hold_and_what_has_left_is_billed(
    tmp_path: Path, way: str, text: str, status: int, content: str | None, reason: str | None, billed: list[Any]
) -> None:
    rules, usage = tmp_path / "rules.toml", tmp_path / "usage"
    rules.write_text(RULES)
    async with serving(quick(safety_rules=rules, usage_dir=usage)) as server:
        answer = await server.ask(request(path=way, body=body(text)))
    assert (answer.status, answer.json.get("content"), answer.json.get("stop_reason")) == (status, content, reason)
    assert [(line["outcome"], line["output_tokens"], line.get("computed_tokens")) for line in _with_outcome(usage)] == billed


def _with_outcome(usage: Path) -> list[dict[str, Any]]:
    return [{"outcome": "ok", **line} for line in records(usage)]


async def test_what_was_reserved_for_an_answer_is_settled_by_what_it_had(way: str) -> None:
    tier = TierConfig("paid", tokens_per_minute=1000)
    async with serving(quick(tiers=(tier,))) as server:
        first = await server.ask(request(path=way, body=body("hello", max_tokens=900)))
        second = await server.ask(request(path=way, body=body("hello", max_tokens=900)))
        assert first.headers["x-ratelimit-remaining-tokens"] == "95"
        assert second.headers["x-ratelimit-remaining-tokens"] == "85"
        assert (await server.ask(request(path=way, body=body("hello", max_tokens=996)))).status == 400
        assert (await server.ask(request(path=way, body=body("hello", max_tokens=995)))).status == 429


async def test_who_leaves_gives_its_place_back(way: str, gate: Gate, tmp_path: Path) -> None:
    tier = TierConfig("paid", tokens_per_minute=1000)
    settings = quick(backend=ASYNC_FAULTY, workers=1, tiers=(tier,), usage_dir=tmp_path / "usage")
    async with serving(settings) as server:
        async with connected(server.port) as client:
            client.write(request(path=way, body=body(gate.hold, model=ASYNC_FAULTY)))
            await until(lambda: server.statistics.num_running == 1)
            client.leave()
            await until(lambda: server.statistics.num_live == 0)
        gate.open()
        await server.check_idle()
        limiter = server.service.front.limiter.statistics()
        assert (limiter.num_settled, limiter.num_given_back) == (1, 0)
        outcomes = dict(server.service.front.meters.outcomes)["/v1/messages", "paid", ASYNC_FAULTY]
        assert outcomes[Outcome.CANCELLED] == 1


async def test_a_failed_batch_costs_its_callers_nothing(way: str) -> None:
    tier = TierConfig("paid", tokens_per_minute=1000)
    async with serving(quick(backend=ASYNC_FAULTY, tiers=(tier,))) as server:
        answer = await server.ask(request(path=way, body=body("BOOM", model=ASYNC_FAULTY)))
        assert answer.status == 500
        assert server.service.front.limiter.statistics().num_given_back == 1
