"""What a call through a server leaves in its spans, its log line and its reply, in each mode."""

import json
from collections.abc import Mapping

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from batcher.config import Switch
from batcher.service.auth import Caller
from batcher.service.front import Front
from batcher.service.records import RequestLine
from batcher.service.spans import SpanTracer
from batcher.service.tracing import NO_PHASES, Phases, TraceContext
from tests.service.serving import generating, quick, serving, simulated
from tests.service.sse import ask, opened
from tests.service.test_tracing import GIVEN, PARENT, TRACE
from tests.service.wire_client import connected, request, run

pytestmark = pytest.mark.anyio


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    return InMemorySpanExporter()


def watch(front: Front, exporter: InMemorySpanExporter) -> None:
    tracer = front.tracer
    assert isinstance(tracer, SpanTracer)
    tracer.provider.add_span_processor(SimpleSpanProcessor(exporter))


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_conversation_of_batch_mode_has_its_batch_too(is_streamed: bool, exporter: InMemorySpanExporter) -> None:
    async with serving(quick(tracing=Switch.ON)) as server:
        watch(server.service.front, exporter)
        question = ask("x", model="simulated", stream=is_streamed)
        if is_streamed:
            async with connected(server.port) as client:
                await (await opened(client, question)).rest()
        else:
            assert (await server.ask(question)).status == 200
    assert [span.name for span in exporter.get_finished_spans()] == ["queue", "batch", "POST /v1/messages"]


async def test_a_request_s_trace_is_in_its_spans_and_its_log_line(
    path: str, exporter: InMemorySpanExporter, capfd: pytest.CaptureFixture[str]
) -> None:
    async with serving(quick(tracing=Switch.ON)) as server:
        watch(server.service.front, exporter)
        replies = [await server.ask(run("a", path=path, traceparent=GIVEN.decode()))]
        replies.append(await server.ask(run("b", path=path, traceparent="odd")))
        replies.append(await server.ask(request(path=path, body=b"{}", headers={})))
    assert [reply.status for reply in replies] == [200, 200, 401]
    spans = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER]
    told = [f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01" for span in spans]
    assert [reply.headers["traceresponse"] for reply in replies] == told
    assert [span.name for span in spans] == ["POST /v1/run"] * 3
    assert [span.parent and f"{span.parent.span_id:016x}" for span in spans] == [PARENT, None, None]
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert [line["trace_id"] for line in requests] == [f"{span.context.trace_id:032x}" for span in spans]
    assert requests[0]["trace_id"] == TRACE
    assert [line["status"] for line in requests] == [200, 200, 401]
    assert [span.name for span in exporter.get_finished_spans()] == [*["queue", "batch", "POST /v1/run"] * 2, "POST /v1/run"]
    assert ["queue_s" in line for line in requests] == [True, True, False]
    batch = exporter.get_finished_spans()[1]
    assert batch.end_time is not None
    assert batch.start_time is not None
    assert batch.end_time - batch.start_time > 9_000_000  # Nanoseconds; the backend takes 10 ms.


async def test_an_answer_s_span_tells_its_model_and_tokens(exporter: InMemorySpanExporter) -> None:
    async with generating(simulated(tracing=Switch.ON)) as server:
        watch(server.service.front, exporter)
        async with connected(server.port) as client:
            stream = await opened(client, ask("x" * 50, stream=True))
            await stream.rest()
        refusal = await server.ask(ask("x", model="made up"))
        assert refusal.status == 404
    answered, refused = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER]
    told = [f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01" for span in (answered, refused)]
    assert [stream.headers["traceresponse"], refusal.headers["traceresponse"]] == told
    assert answered.attributes is not None
    assert refused.attributes is not None
    assert answered.attributes["gen_ai.request.model"] == "simulated"
    assert answered.attributes["gen_ai.usage.output_tokens"] == 51
    assert answered.attributes["gen_ai.request.stream"] is True
    assert float(str(answered.attributes["gen_ai.response.time_to_first_chunk"])) > 0
    assert "gen_ai.request.model" not in refused.attributes
    assert refused.attributes["error.type"] == "not_found_error"
    names = {span.name for span in exporter.get_finished_spans()}
    assert names == {"POST /v1/messages", "queue", "prefill", "decode"}


async def test_off_a_trace_that_is_brought_is_in_the_log_all_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    async with serving(quick()) as server:
        reply = await server.ask(run("a", traceparent=GIVEN.decode()))
        assert (reply.status, "traceresponse" in reply.headers) == (200, False)
        assert (await server.ask(run("b"))).status == 200
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line.get("trace_id") for line in lines if line["event"] == "request"] == [TRACE, None]


class _Counting(SpanTracer):
    """A tracer that knows what it has begun and ended."""

    def __init__(self) -> None:
        super().__init__(["simulated"])
        self.begun: list[str] = []
        self.ended: list[str] = []

    def start(self, headers: Mapping[bytes, bytes]) -> TraceContext:
        context = super().start(headers)
        self.begun.append(context.span_id)
        return context

    def end(self, context: TraceContext, line: RequestLine, phases: Phases = NO_PHASES) -> None:
        super().end(context, line, phases)
        self.ended.append(context.span_id)


@pytest.mark.usefixtures("exporter")
async def test_a_call_that_is_handed_over_to_asgi_is_one_call(capfd: pytest.CaptureFixture[str]) -> None:
    """A stream is known by its body. What had been begun for it by then was dropped: its span never ended, and the call got
    another id, and a time that did not count what its body took to come."""
    async with serving(quick(tracing=Switch.ON)) as server:
        server.service.front.tracer.close()
        server.service.front.tracer = tracer = _Counting()
        for _ in range(2):
            async with connected(server.port) as client:
                await (await opened(client, ask("x", model="simulated", stream=True))).rest()
        assert (await server.ask(ask("x", model="made up", stream=True))).status == 404
    assert len(tracer.begun) == 3
    assert tracer.begun == tracer.ended
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    ids = [line["request_id"].rpartition("_")[2] for line in lines if line["event"] == "request"]
    assert ids == ["1", "2", "3"]


@pytest.mark.usefixtures("exporter")
async def test_a_handed_over_call_whose_key_is_withdrawn_meanwhile_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(quick(tracing=Switch.ON)) as server:
        server.service.front.tracer.close()
        server.service.front.tracer = tracer = _Counting()
        door = server.service.front.door
        judge, num_judged = door.authenticate, 0

        def forget(headers: Mapping[bytes, bytes]) -> Caller:
            nonlocal num_judged
            num_judged += 1
            return judge(headers if num_judged == 1 else {})

        monkeypatch.setattr(door, "authenticate", forget)
        assert (await server.ask(ask("x", model="simulated", stream=True))).status == 401
    assert len(tracer.begun) == 1
    assert tracer.begun == tracer.ended
