"""What the service tells of itself: after a known sequence of requests, /metrics and /load say just that (DESIGN D7)."""

import asyncio
from random import Random

import pytest
from prometheus_client import generate_latest

from batcher.config import TierConfig
from batcher.types import BatchReason, Outcome, WorkerFault
from tests.service.scraping import Metrics
from tests.service.serving import ASYNC_FAULTY, Gate, Serving, generating, quick, serving, simulated, until
from tests.service.wire_client import KEY, OPERATOR, connected, request, run

pytestmark = pytest.mark.anyio

FREE = {"x-api-key": "dev-free"}


async def scrape(server: Serving) -> Metrics:
    response = await server.ask(request("GET", "/metrics", headers=OPERATOR))
    assert response.status == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Metrics(response.body.decode())


async def test_counts_by_outcome_are_those_of_the_requests(path: str, gate: Gate) -> None:
    tiers = (TierConfig("paid", wait_budget_s=3600.0), TierConfig("free", wait_budget_s=0.0))
    limits = {"workers": 1, "max_batch_size": 1, "service_time": 1.0, "request_timeout": 1.0}
    settings = quick(backend=ASYNC_FAULTY, tiers=tiers, **limits)
    async with serving(settings) as server:
        for number in range(3):
            assert (await server.ask(run(f"{number}", path=path))).status == 200
        assert (await server.ask(request(path=path, body=b'{"input": "free"}', headers=FREE))).status == 200
        assert (await server.ask(run("BOOM", path=path))).status == 500
        assert (await server.ask(request(path=path, body=b"{}"))).status == 400
        assert (await server.ask(request(path=path, body=b"{}", headers={}))).status == 401
        assert (await server.ask(request("GET", "/nope"))).status == 404
        async with connected(server.port) as held, connected(server.port) as leaver:
            held.write(run(gate.hold, path=path))
            await until(lambda: server.statistics.num_running == 1)
            leaver.write(run("leaves", path=path))
            await until(lambda: server.statistics.tiers[0].num_waiting == 1)
            assert (await server.ask(request(path=path, body=b'{"input": "free"}', headers=FREE))).status == 529
            leaver.leave()
            assert (await held.read()).status == 504
        gate.open()
        await server.check_idle()
        metrics = await scrape(server)
        counts = {labels: num for labels, num in metrics.values("batcher_requests_total").items() if num}
        assert counts == {
            ("ok", "paid"): 3,
            ("failed", "paid"): 1,
            ("cancelled", "paid"): 1,
            ("expired", "paid"): 1,
            ("ok", "free"): 1,
            ("rejected_capacity", "free"): 1,
        }
        for name in ("batcher_queue_seconds", "batcher_e2e_seconds"):
            assert metrics.nonzero(f"{name}_count") == {(ASYNC_FAULTY, "paid"): 3, (ASYNC_FAULTY, "free"): 1}
        assert metrics.value("batcher_overhead_seconds_count") == 4
        assert metrics.value("batcher_run_seconds_count") >= 4
        assert metrics.value("batcher_batch_size_count") == sum(metrics.values("batcher_batches_total").values()) == 6
        assert metrics.value("batcher_batch_size_sum") == 6
        assert metrics.value("batcher_run_batch_raised_total") == 1
        # The same as their callers saw it, with those who were refused before all else.
        assert metrics.nonzero("batcher_http_requests_total") == {
            (ASYNC_FAULTY, "ok", "/v1/run", "paid"): 3,
            (ASYNC_FAULTY, "failed", "/v1/run", "paid"): 1,
            (ASYNC_FAULTY, "cancelled", "/v1/run", "paid"): 1,
            (ASYNC_FAULTY, "expired", "/v1/run", "paid"): 1,
            (ASYNC_FAULTY, "invalid", "/v1/run", "paid"): 1,
            (ASYNC_FAULTY, "ok", "/v1/run", "free"): 1,
            (ASYNC_FAULTY, "rejected_capacity", "/v1/run", "free"): 1,
            ("other", "invalid", "/v1/run", "none"): 1,
            ("other", "invalid", "other", "none"): 1,
        }
        assert metrics.nonzero("batcher_http_replies_total") == {
            ("/v1/run", "2xx"): 4,
            ("/v1/run", "4xx"): 3,
            ("/v1/run", "5xx"): 3,
            ("other", "4xx"): 1,
        }
        assert metrics.nonzero("batcher_http_e2e_seconds_count") == {(ASYNC_FAULTY, "paid"): 3, (ASYNC_FAULTY, "free"): 1}


async def test_each_label_is_from_a_closed_set_and_is_there_from_the_start() -> None:
    async with serving(quick(workers=3)) as server:
        metrics = await scrape(server)
    assert set(metrics.values("batcher_requests_total")) == {(o, t) for o in map(str, Outcome) for t in ("paid", "free")}
    assert set(metrics.values("batcher_batches_total")) == {(reason,) for reason in map(str, BatchReason)}
    assert set(metrics.values("batcher_worker_faults_total")) == {(fault,) for fault in map(str, WorkerFault)}
    assert metrics.values("batcher_workers")[("free",)] == 3
    assert sum(metrics.values("batcher_workers").values()) == 3
    assert all(family.name.startswith("batcher_") and family.documentation for family in metrics.families.values())


MEASURES = {
    "queue_s": "batcher_queue_seconds_count",
    "ttft_s": "batcher_http_ttft_seconds_count",
    "e2e_s": "batcher_http_e2e_seconds_count",
    "refusals by kind": "batcher_refusals_total",
    "outcomes": "batcher_http_requests_total",
    "tokens": "batcher_http_output_tokens_total",
}
"""SPEC S9 and DESIGN D7, in both modes."""
OF_BATCHES = {
    "promised against actual": "batcher_promises_ended_total",
    "overhead_s": "batcher_overhead_seconds_count",
    "batch size": "batcher_batch_size_count",
    "why batches left": "batcher_batches_total",
    "oldest wait": "batcher_batch_oldest_wait_seconds_count",
}
OF_A_REPLICA = {
    "tpot_s": "batcher_tpot_seconds_count",
    # End to end as the caller saw it, less this, is the overhead.
    "e2e_s of the engine": "batcher_e2e_seconds_count",
    "batch size": "batcher_step_sequences_count",
    "free KV": "batcher_kv_blocks",
    "preemptions": "batcher_preemptions_total",
    "tokens/s per replica": "batcher_output_tokens_total",
}


async def test_every_measure_is_there_in_each_mode() -> None:
    async with serving(quick()) as server:
        batch = (await scrape(server)).names
    async with generating(simulated()) as replica:
        continuous = Metrics(generate_latest(replica.service.registry).decode()).names
    assert {what for what, name in {**MEASURES, **OF_BATCHES}.items() if name not in batch} == set()
    assert {what for what, name in {**MEASURES, **OF_A_REPLICA}.items() if name not in continuous} == set()
    assert "batcher_tpot_seconds_count" not in batch  # Rather than a 0: an answer of run_batch comes whole (B97).


async def test_histograms_are_cumulative_and_add_up() -> None:
    async with serving(quick(service_time=0.005)) as server:
        for number in range(20):
            await server.ask(run(f"{number}"))
        metrics = await scrape(server)
        histograms = list(metrics.histograms())
    assert len(histograms) >= 6
    for name, buckets, num in histograms:
        assert buckets == sorted(buckets), name
        assert buckets[-1] == num, name
    e2e_s, queue_s = [metrics.value(f"batcher_{part}_seconds_sum", "simulated", "paid") for part in ("e2e", "queue")]
    assert e2e_s >= queue_s >= 0
    assert e2e_s >= metrics.value("batcher_run_seconds_sum") >= 20 * 0.004


async def test_what_callers_choose_never_becomes_a_label() -> None:
    """B91: random paths, keys, methods, tenants, request ids."""
    random = Random(91)

    def word() -> str:
        return "".join(random.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=12))

    async with serving(quick(service_time=0.0001)) as server, connected(server.port) as client:
        before = (await client.ask(request("GET", "/metrics", headers=OPERATOR))).body.decode()
        for _ in range(500):
            for data in (
                request("GET", f"/{word()}/{word()}?{word()}={word()}"),
                request(random.choice(["PUT", "DELETE", "PATCH", "OPTIONS"]), "/v1/run"),
                request(body=b"{}", headers={"x-api-key": word(), "x-request-id": word()}),
                run(word(), x_api_key=f"dev-paid-{word()}", x_request_id=word(), path=f"/v1/run?{word()}"),
            ):
                assert (await client.ask(data)).status in (200, 401, 404, 405)
        after = (await client.ask(request("GET", "/metrics", headers=OPERATOR))).body.decode()
        assert [line.rpartition(" ")[0] for line in before.splitlines()] == [
            line.rpartition(" ")[0] for line in after.splitlines()
        ]
        await server.check_idle()


async def test_load_tells_what_waits_and_what_runs(gate: Gate) -> None:
    async with serving(quick(backend=ASYNC_FAULTY, workers=1, service_time=0.1)) as server, connected(server.port) as held:
        idle = (await server.ask(request("GET", "/load", headers=OPERATOR))).json
        assert idle["ready"] is True
        assert (idle["live"], idle["running"], idle["waiting"]) == (0, 0, {"paid": 0, "free": 0})
        assert idle["workers"] == {"starting": 0, "free": 1, "busy": 0, "resting": 0}
        assert idle["service_time_s"] == pytest.approx(0.1)
        assert idle["capacity_rate"] == pytest.approx(50 / 0.1)
        held.write(run(gate.hold))
        await until(lambda: server.statistics.num_running == 1)
        async with connected(server.port) as first, connected(server.port) as second:
            first.write(run("a"))
            second.write(request(body=b'{"input": "b"}', headers=FREE))
            await until(lambda: server.statistics.num_live == 3)
            busy = (await server.ask(request("GET", "/load", headers=OPERATOR))).json
            assert (busy["live"], busy["running"], busy["waiting"]) == (3, 1, {"paid": 1, "free": 1})
            assert busy["workers"] == {"starting": 0, "free": 0, "busy": 1, "resting": 0}
            gate.open()
            assert (await first.read()).status == (await second.read()).status == 200


async def test_draining_is_told_by_ready_load_and_metrics(path: str) -> None:
    async with serving(quick()) as server:
        assert (await server.ask(request("GET", "/ready"))).json == {"ready": True}
        server.service.driver.drain()
        response = await server.ask(request("GET", "/ready"))
        assert (response.status, response.json) == (503, {"ready": False})
        assert (await server.ask(request("GET", "/load", headers=OPERATOR))).json["ready"] is False
        assert (await server.ask(request("GET", "/health"))).json == {"status": "ok"}
        await asyncio.gather(*(server.ask(run(f"{number}", path=path)) for number in range(5)))
        assert (await scrape(server)).value("batcher_requests_total", "rejected_shutdown", "paid") == 5


async def test_the_pages_of_the_process_need_no_key_and_ignore_one() -> None:
    async with serving(quick()) as server:
        for page in ("/health", "/ready"):
            for headers in ({}, KEY, {"x-api-key": "wrong"}):
                assert (await server.ask(request("GET", page, headers=headers))).status == 200
