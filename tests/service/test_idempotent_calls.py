"""Idempotency on the real way of a request: callers that leave and come back, with the same key, while it runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from batcher.config import TierConfig
from tests.service.serving import ASYNC_FAULTY, Gate, Serving, quick, serving, until
from tests.service.sse import ask
from tests.service.wire_client import KEY, connected, request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]


@pytest.fixture(params=["run", "messages"])
def call(request: pytest.FixtureRequest, gate: Gate) -> bytes:
    return held(request.param, gate)


def held(route: str, gate: Gate) -> bytes:
    """A request that runs until the gate is opened."""
    headers = {**KEY, "idempotency-key": "order-1"}
    if route == "messages":
        return ask(gate.hold, model=ASYNC_FAULTY, headers=headers)
    return request(body=json.dumps({"input": gate.hold}).encode(), headers=headers)


def records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(directory.glob("*.jsonl")) for line in file.read_text().splitlines()]


def num_waiting(server: Serving) -> int:
    return sum(attempt.num_waiting for attempt in server.app.state.service.front.idempotency._attempts.values())


async def test_who_asked_first_leaves_and_the_other_is_answered(call: bytes, gate: Gate, tmp_path: Path) -> None:
    async with serving(quick(backend=ASYNC_FAULTY, usage_dir=tmp_path / "usage")) as server, connected(server.port) as second:
        async with connected(server.port) as first:
            first.write(call)
            await until(lambda: server.statistics.num_running == 1)
            second.write(call)
            await until(lambda: num_waiting(server) == 2)
        await until(lambda: num_waiting(server) == 1)
        gate.open()
        answer = await second.read()
        assert answer.status == 200
        assert (await server.ask(call)).body == answer.body
        assert server.statistics.counters.batch_sizes == {1: 1}
        await server.check_front()
    (record,) = records(tmp_path / "usage")
    assert record["request_id"] == answer.json["id"]
    assert record.get("outcome", "ok") == "ok"


@pytest.mark.parametrize("route", ["run", "messages"])
async def test_a_key_that_comes_to_mean_another_question_is_another_bill(route: str, tmp_path: Path) -> None:
    """Answers that are kept are bounded. A key whose answer had to go runs anew, and the usage log told the two by their key
    alone: whoever took two keys in turns was billed for two questions a day, however many were answered."""
    usage = tmp_path / "usage"
    async with serving(quick(backend=ASYNC_FAULTY, usage_dir=usage, idempotency_answers=1)) as server:
        for number in range(6):
            headers = {**KEY, "idempotency-key": f"order-{number % 2}"}
            call = ask(f"question {number}", model=ASYNC_FAULTY, headers=headers)
            if route == "run":
                call = request(body=json.dumps({"input": f"question {number}"}).encode(), headers=headers)
            assert (await server.ask(call)).status == 200
    assert len({record["idempotency"] for record in records(usage)}) == 6


@pytest.mark.parametrize("route", ["run", "messages", "anthropic"])
async def test_an_answer_that_is_given_again_tells_of_the_call_that_it_is_given_to(route: str) -> None:
    """Its limits as they stood when it was made may be a day old: an SDK that is told of no room waits for nothing."""
    tiers = (TierConfig("paid", tokens_per_minute=100_000),)
    headers = {**KEY, "idempotency-key": "order-1"} | ({"anthropic-version": "2023-06-01"} if route == "anthropic" else {})

    def call(own_id: str) -> bytes:
        named = {**headers, "x-request-id": own_id}
        if route == "run":
            return request(body=b'{"input": "hello"}', headers=named)
        return ask("hello", model=ASYNC_FAULTY, headers=named)

    async with serving(quick(backend=ASYNC_FAULTY, tiers=tiers)) as server:
        first, again = await server.ask(call("mine-1")), await server.ask(call("mine-2"))
    assert again.body == first.body
    ids = ["x-request-id"] + (["request-id"] if route == "anthropic" else [])
    assert [first.headers[name] for name in ids] == ["mine-1"] * len(ids)
    assert [again.headers[name] for name in ids] == ["mine-2"] * len(ids)
    assert any("ratelimit" in name for name in first.headers)
    assert not any("ratelimit" in name for name in again.headers)
    assert (first.headers.get("idempotent-replayed"), again.headers.get("idempotent-replayed")) == (None, "true")


async def test_when_all_have_left_the_next_one_is_answered_anew(call: bytes, gate: Gate, tmp_path: Path) -> None:
    async with serving(quick(backend=ASYNC_FAULTY, usage_dir=tmp_path / "usage")) as server:
        async with connected(server.port) as first, connected(server.port) as second:
            first.write(call)
            await until(lambda: server.statistics.num_running == 1)
            second.write(call)
            await until(lambda: num_waiting(server) == 2)
        await until(lambda: server.statistics.num_live == 0)
        gate.open()
        answer = await server.ask(call)
        assert answer.status == 200
        assert "idempotent-replayed" not in answer.headers
        await server.check_front()
    told = [record["request_id"] for record in records(tmp_path / "usage") if record.get("outcome", "ok") == "ok"]
    assert told == [answer.json["id"]]


async def test_who_waits_too_long_is_told_to_come_back(call: bytes, gate: Gate) -> None:
    async with serving(quick(backend=ASYNC_FAULTY, idempotency_wait=0.0)) as server, connected(server.port) as first:
        first.write(call)
        await until(lambda: server.statistics.num_running == 1)
        refused = await server.ask(call)
        assert (refused.status, refused.json["error"]["type"]) == (409, "idempotency_error")
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["x-should-retry"] == "true"
        gate.open()
        answer = await first.read()
        assert (await server.ask(call)).body == answer.body
        assert server.statistics.counters.batch_sizes == {1: 1}
        await server.check_front()
