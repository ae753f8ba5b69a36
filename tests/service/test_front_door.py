"""The stages of the front door joined, on the real way of a request: what is limited, billed, repeated, stopped and logged."""

import json
from pathlib import Path
from typing import Any

import pytest

from batcher.config import TierConfig
from batcher.types import Outcome
from tests.service.errors import assert_error
from tests.service.serving import FAULTY, Gate, generating, in_mode, quick, serving, simulated, until
from tests.service.sse import ask, body, opened
from tests.service.wire_client import KEY, OPERATOR, connected, request, run

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]

PAID = TierConfig("paid", wait_budget_s=3600.0, requests_per_minute=3)
ANTHROPIC = {**KEY, "anthropic-version": "2023-06-01"}


def records(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(directory.glob("*.jsonl")) for line in file.read_text().splitlines()]


def chat(content: str, **fields: Any) -> bytes:
    document = {"model": "simulated", "messages": [{"role": "user", "content": content}], "max_tokens": 100, **fields}
    return request(path="/v1/chat/completions", body=json.dumps(document).encode())


# Limits


async def test_the_fourth_request_of_three_a_minute_is_429_before_its_body(path: str) -> None:
    async with serving(quick(tiers=(PAID,))) as server:
        for number in range(3):
            response = await server.ask(run("hello", path=path))
            assert response.status == 200
            assert response.headers["x-ratelimit-limit-requests"] == "3"
            assert response.headers["x-ratelimit-remaining-requests"] == str(2 - number)
        # Of a body of 50 kB nothing is sent.
        response = await server.ask(request(path=path, headers={**KEY, "content-length": "50000"}))
        assert_error(response, 429, "rate_limit_error")
        assert 50 <= int(response.headers["retry-after"]) <= 60
        assert response.json["error"]["retry_after_s"] == int(response.headers["retry-after"])
        assert (await server.ask(run("hello", path=path, x_api_key="dev-paid-other"))).status == 200


async def test_each_grammar_tells_the_limits_in_its_own_words() -> None:
    async with generating(simulated(tiers=(TierConfig("paid", tokens_per_minute=1000),))) as server:
        native = await server.ask(ask("hello"))
        anthropic = await server.ask(ask("hello", headers=ANTHROPIC))
        openai = await server.ask(chat("hello"))
        assert native.headers["x-ratelimit-limit-tokens"] == openai.headers["x-ratelimit-limit-tokens"] == "1000"
        assert anthropic.headers["anthropic-ratelimit-tokens-limit"] == "1000"
        refused = await server.ask(ask("hello", max_tokens=990, headers=ANTHROPIC))
        assert refused.status == 429
        assert refused.json["error"]["type"] == "rate_limit_error"
        assert (await server.ask(ask("hello", max_tokens=2000))).status == 400


@pytest.mark.parametrize("mode", ["continuous", "batch"])
async def test_who_does_not_say_how_long_may_have_what_the_limit_has_room_for(mode: str) -> None:
    """The usual 4,096 tokens would be refused for ever."""
    async with in_mode(mode, tiers=(TierConfig("paid", tokens_per_minute=1000),)) as server:
        assert (await server.ask(chat("hello", max_tokens=None))).json["choices"][0]["message"]["content"] == "hello"
        async with connected(server.port) as client:
            assert (await opened(client, chat("hello", max_tokens=None, stream=True))).status == 200


async def test_what_an_answer_did_not_use_is_given_back() -> None:
    async with generating(simulated(tiers=(TierConfig("paid", tokens_per_minute=1000),))) as server:
        for _ in range(10):  # Each reserves 900 and uses a few dozen.
            response = await server.ask(ask("hello", max_tokens=800))
            assert response.status == 200
        # What is left is told when the answer is admitted: nine were settled by then, and the tenth has all that it may need.
        spent, num_input = sum(response.json["usage"].values()), response.json["usage"]["input_tokens"]
        assert int(response.headers["x-ratelimit-remaining-tokens"]) == 1000 - 9 * spent - (num_input + 800)


async def test_a_request_that_is_refused_later_counts_for_nothing(gate: Gate) -> None:
    """Over capacity a request is refused after its limit was charged: all of it is given back."""
    tiers = (TierConfig("paid", wait_budget_s=3600.0), TierConfig("free", wait_budget_s=0.0, requests_per_minute=3))
    async with serving(quick(tiers=tiers, workers=1, max_batch_size=1, backend=FAULTY)) as server:
        async with connected(server.port) as held, connected(server.port) as waiting:
            held.write(run(gate.hold))
            await until(lambda: server.statistics.num_running == 1)
            waiting.write(run("behind it"))
            await until(lambda: server.statistics.num_live == 2)
            for _ in range(5):
                assert (await server.ask(run("no room", x_api_key="dev-free"))).status == 529
            gate.open()
            assert [(await client.read()).status for client in (held, waiting)] == [200, 200]
        assert (await server.ask(run("room", x_api_key="dev-free"))).headers["x-ratelimit-remaining-requests"] == "2"


# Usage


async def test_each_answer_has_one_record_and_a_refusal_has_none(tmp_path: Path, path: str) -> None:
    async with serving(quick(usage_dir=tmp_path)) as server:
        answer = await server.ask(run("h\u00e9llo", path=path))
        assert_error(await server.ask(request(path=path, body=b"{}")), 400, "invalid_request_error")
        (record,) = records(tmp_path)  # Before the answer's last byte left.
    assert record["request_id"] == answer.json["id"]
    assert (record["tenant"], record["tier"], record["model"]) == ("dev-paid", "paid", "simulated")
    assert (record["input_tokens"], record["output_tokens"]) == (6, 6)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("grammar", ["native", "anthropic", "openai"])
async def test_each_grammar_is_billed_what_it_is_told(tmp_path: Path, grammar: str, is_streamed: bool) -> None:
    async with generating(simulated(usage_dir=tmp_path)) as server, connected(server.port) as client:
        if grammar == "openai":
            data = chat("hello", stream=is_streamed)
        else:
            data = ask("hello", stream=is_streamed, headers=ANTHROPIC if grammar == "anthropic" else KEY)
        client.write(data)
        if is_streamed:
            await until(lambda: server.count(Outcome.OK) == 1)
            await until(lambda: bool(records(tmp_path)))
        else:
            assert (await client.read()).status == 200
        (record,) = records(tmp_path)
    assert record["output_tokens"] == 6, "five letters and what ends the turn"
    assert record.get("outcome", "ok") == "ok"


async def test_a_stream_that_is_left_is_billed_what_was_sent(tmp_path: Path) -> None:
    settings = simulated(usage_dir=tmp_path, simulated_answer="repeat", simulated_time_scale=0.2, kv_blocks=4096)
    async with generating(settings) as server:
        async with connected(server.port) as client:
            stream = await opened(client, ask("x", max_tokens=5_000, stream=True))
            for _ in range(20):
                await stream.next()
        await until(lambda: bool(records(tmp_path)))
    (record,) = records(tmp_path)
    assert record["outcome"] == "cancelled"
    assert 10 <= record["output_tokens"] < 5_000
    assert record.get("computed_tokens", record["output_tokens"]) >= record["output_tokens"]


# Idempotency


@pytest.mark.parametrize("route", ["run", "messages"])
async def test_asked_twice_it_is_answered_twice_and_made_and_billed_once(tmp_path: Path, route: str) -> None:
    headers = {**KEY, "idempotency-key": "order-1"}
    async with serving(quick(usage_dir=tmp_path)) as server:
        if route == "run":
            first, other = (request(body=json.dumps({"input": text}).encode(), headers=headers) for text in ("a", "b"))
        else:
            first, other = ask("a", headers=headers), ask("b", headers=headers)
        answers = [await server.ask(first) for _ in range(2)]
        mismatch = await server.ask(other)
        assert server.statistics.counters.batch_sizes == {1: 1}
    assert [answer.status for answer in answers] == [200, 200]
    assert answers[0].body == answers[1].body
    assert "idempotent-replayed" not in answers[0].headers
    assert answers[1].headers["idempotent-replayed"] == "true"
    assert_error(mismatch, 422, "idempotency_error")
    assert mismatch.headers["x-should-retry"] == "false"
    (record,) = records(tmp_path)
    assert record["request_id"] == answers[0].json["id"]
    assert record["idempotency"]


async def test_an_error_is_not_kept() -> None:
    headers = {**KEY, "idempotency-key": "order-2"}
    bad = {**headers, "x-api-key": "dev-paid-2"}
    async with serving(quick(backend=FAULTY)) as server:
        failing = request(body=b'{"input": "BOOM"}', headers=bad)
        assert [(await server.ask(failing)).status for _ in range(2)] == [500, 500]
        assert server.statistics.counters.num_raised == 2


async def test_tenants_do_not_meet_in_a_key() -> None:
    async with serving(quick()) as server:
        for tenant in ("dev-paid-1", "dev-paid-2"):
            headers = {"x-api-key": tenant, "idempotency-key": "same"}
            answer = await server.ask(request(body=json.dumps({"input": tenant}).encode(), headers=headers))
            assert answer.json["output"] == tenant


# Safety


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "rules.toml"
    file.write_text(
        '[[rules]]\nname = "in"\nphrases = ["plutonium"]\nwhere = "input"\nverdict = "refuse"\nmessage = "not that"\n'
        '[[rules]]\nname = "out"\nphrases = ["secret"]\nwhere = "output"\nverdict = "stop"\n'
    )
    return file


async def test_rules_hold_on_the_plain_route(rules: Path, path: str) -> None:
    async with serving(quick(safety_rules=rules)) as server:
        assert (await server.ask(run("fine", path=path))).status == 200
        refused = await server.ask(run("some plutonium", path=path))
        assert_error(refused, 400, "invalid_request_error")
        assert refused.json["error"]["message"] == "not that"
        assert_error(await server.ask(run("a secret", path=path)), 400, "invalid_request_error")


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_answer_ends_before_what_must_not_go_out(rules: Path, tmp_path: Path, is_streamed: bool) -> None:
    """And no token of what did not go out is billed."""
    usage, limited = tmp_path / "usage", (TierConfig("paid", tokens_per_minute=1000),)
    settings = simulated(safety_rules=rules, usage_dir=usage, tiers=limited)
    async with generating(settings) as server, connected(server.port) as client:
        assert (await server.ask(ask("some plutonium", stream=is_streamed))).status == 400
        if is_streamed:
            stream = await opened(client, ask("this is a secret thing", stream=True))
            events = await stream.rest()
            text = "".join(event.data["text"] for event in events if event.name == "content_delta")
            end = events[-1].data
        else:
            end = (await client.ask(ask("this is a secret thing"))).json
            text = end["content"]
        metrics = (await server.ask(request("GET", "/metrics", headers=OPERATOR))).body.decode()
        (record,) = records(usage)
        standing = server.service.front.limiter.statistics()
    assert (text, end["stop_reason"], end["usage"]["output_tokens"]) == ("this is a ", "refusal", len("this is a "))
    assert record["output_tokens"] == len("this is a ")
    assert record["computed_tokens"] >= len("this is a secret")
    (counted,) = [line for line in metrics.splitlines() if line.startswith("batcher_http_output_tokens_total{")]
    assert counted.endswith(" 10.0")
    assert standing.num_settled == 1


# One line for each request


async def test_each_request_has_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    own = {**KEY, "x-request-id": "mine", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    async with serving(quick()) as server:
        await server.ask(request(body=b'{"input": "hello"}', headers=own))
        await server.ask(request(body=b'{"input": "hello"}', headers={}))
        await server.ask(request(path="/v1/messages", body=body("hello", model="no\r\nsuch"), headers=KEY))
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if '"event":"request"' in line]
    assert [(line["status"], line["outcome"], line["route"]) for line in lines] == [
        (200, "ok", "/v1/run"),
        (401, "invalid", "/v1/run"),
        (404, "invalid", "/v1/messages"),
    ]
    assert (lines[0]["own_id"], lines[0]["trace_id"], lines[0]["tenant"]) == ("mine", "a" * 32, "dev-paid")
    assert (lines[0]["input_tokens"], lines[0]["output_tokens"]) == (5, 5)
    assert lines[0]["request_id"].startswith("req_")


async def test_no_time_in_a_line_has_more_digits_than_it_knows(capfd: pytest.CaptureFixture[str]) -> None:
    async with serving(quick()) as server:
        await server.ask(run("x"))
    (line,) = [line for line in capfd.readouterr().err.splitlines() if '"event":"request"' in line]
    times = {name: number for name, number in json.loads(line).items() if name in ("at", "e2e_s", "queue_s", "ttft_s")}
    assert len(times) == 4
    assert {name: round(number, 6) for name, number in times.items()} == times


@pytest.mark.parametrize("route", ["/v1/run", "/v1/run?by=asgi", "/v1/messages", "/v1/messages?by=asgi"])
async def test_what_is_refused_is_no_billed_input(route: str, gate: Gate, capfd: pytest.CaptureFixture[str]) -> None:
    """By its limit or by the capacity, and who leaves before there is an answer: these were counted as billed."""
    tiers = (TierConfig("paid", wait_budget_s=3600.0), TierConfig("free", wait_budget_s=0.0, tokens_per_minute=100))
    limits = {"workers": 1, "max_batch_size": 1, "service_time": 1.0}

    def question(text: str, key: str) -> bytes:
        content = json.dumps({"input": text}).encode() if "run" in route else body(text, model=FAULTY, max_tokens=10)
        return request(path=route, body=content, headers={"x-api-key": key})

    async with serving(quick(backend=FAULTY, tiers=tiers, **limits)) as server:
        async with connected(server.port) as held:
            held.write(question(gate.hold, "dev-paid"))
            await until(lambda: server.statistics.num_running == 1)
            assert (await server.ask(question("no room", "dev-free"))).status == 529
        await until(lambda: server.statistics.num_live == 0)
        gate.open()
        await until(lambda: server.statistics.num_running == 0)
        assert (await server.ask(question("x" * 80, "dev-free"))).status == 200
        assert (await server.ask(question("x" * 80, "dev-free"))).status == 429
        answers = server.service.front.meters.answers
        assert [answers[tier, FAULTY].input_tokens for tier in ("paid", "free")] == [0, 80]
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if '"event":"request"' in line]
    assert sorted((line["status"], line.get("input_tokens", 0)) for line in lines) == [(200, 80), (429, 0), (499, 0), (529, 0)]
