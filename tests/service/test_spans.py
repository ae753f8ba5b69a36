"""The spans that a request becomes, once it has ended; and what they are where nobody asks for them."""

import json
import sys
import threading

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from batcher.config import Switch
from batcher.errors import ConfigError
from batcher.service.records import RequestLine, Route
from batcher.service.spans import SpanTracer, create_span_tracer
from batcher.service.tracing import Phases, Tracer, create_tracer, parse
from batcher.types import Outcome
from tests.service.test_tracing import GIVEN, PARENT, TRACE

LINE = RequestLine(
    at=1_700_000_010.0,
    request_id="req_1",
    route=Route.MESSAGES,
    status=200,
    outcome=Outcome.OK,
    e2e_s=3.0,
    tenant="acme",
    tier="paid",
    model="simulated",
    is_streamed=True,
    input_tokens=5,
    output_tokens=7,
    queue_s=0.25,
    ttft_s=1.0,
)


class Traced:
    """A tracer that is on, and the spans that it made."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = SpanTracer(("simulated",))
        self.tracer.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


def interval(span: ReadableSpan) -> tuple[float, float]:
    """Start and end, in seconds after the line's arrival."""
    assert span.start_time is not None
    assert span.end_time is not None
    arrived_at = LINE.at - LINE.e2e_s
    return pytest.approx(span.start_time / 1e9 - arrived_at), pytest.approx(span.end_time / 1e9 - arrived_at)  # type: ignore[return-value]


def test_a_request_is_a_span_with_its_phases_in_it() -> None:
    traced = Traced()
    context = traced.tracer.start({b"traceparent": GIVEN, b"tracestate": b"congo=1"})
    assert (context.trace_id, context.parent_id) == (TRACE, PARENT)
    assert context.span_id != PARENT
    assert traced.spans == {}
    traced.tracer.end(context, LINE, Phases(started_s=0.5))
    spans = traced.spans
    assert {name: interval(span) for name, span in spans.items()} == {
        "POST /v1/messages": (0.0, 3.0),
        "queue": (0.25, 0.5),
        "prefill": (0.5, 1.0),
        "decode": (1.0, 3.0),
    }
    request = spans.pop("POST /v1/messages")
    assert request.kind is SpanKind.SERVER
    assert f"{request.context.trace_id:032x}" == TRACE
    assert f"{request.context.span_id:016x}" == context.span_id
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == PARENT
    assert request.context.trace_state.to_header() == "congo=1"
    assert request.status.status_code is StatusCode.UNSET
    assert request.attributes == {
        "http.request.method": "POST",
        "http.route": "/v1/messages",
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "batcher",
        "gen_ai.request.model": "simulated",
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.response.time_to_first_chunk": 1.0,
        "batcher.outcome": "ok",
        "batcher.tier": "paid",
    }
    for child in spans.values():
        assert child.parent is not None
        assert child.parent.span_id == request.context.span_id
        assert child.context.trace_id == request.context.trace_id
    assert len({span.context.span_id for span in traced.exporter.get_finished_spans()}) == 4


def test_a_request_of_a_batch_has_the_batch_as_its_phase() -> None:
    traced = Traced()
    line = RequestLine(1_700_000_010.0, "req_1", Route.RUN, 200, Outcome.OK, 3.0, queue_s=0.5, ttft_s=2.9)
    traced.tracer.end(traced.tracer.start({}), line, Phases(started_s=0.5, run_s=2.0))
    assert {name: interval(span) for name, span in traced.spans.items()} == {
        "POST /v1/run": (0.0, 3.0),
        "queue": (0.0, 0.5),
        "batch": (0.5, 2.5),
    }


def test_a_trace_begins_here_where_nobody_brings_one_and_each_is_another() -> None:
    traced = Traced()
    contexts = [traced.tracer.start({b"traceparent": b"odd"}) for _ in range(3)]
    for context in contexts:
        assert context.parent_id == ""
        assert context.traceresponse is not None
        assert parse(context.traceresponse.encode()) is not None
    for context in reversed(contexts):
        traced.tracer.end(context, LINE)
    roots = [span for span in traced.exporter.get_finished_spans() if span.name == "POST /v1/messages"]
    assert [f"{span.context.trace_id:032x}" for span in roots] == [context.trace_id for context in reversed(contexts)]
    assert [span.parent for span in roots] == [None] * 3
    assert len({context.trace_id for context in contexts}) == 3


def test_what_the_caller_does_not_sample_is_passed_on_and_not_recorded() -> None:
    traced = Traced()
    context = traced.tracer.start({b"traceparent": GIVEN[:-2] + b"00"})
    traced.tracer.end(context, LINE)
    assert context.traceresponse == f"00-{TRACE}-{context.span_id}-00"
    assert traced.spans == {}


def test_the_environment_says_how_many_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    traced = Traced()
    context = traced.tracer.start({})
    traced.tracer.end(context, LINE)
    assert (context.is_sampled, traced.spans) == (False, {})
    traced.tracer.end(traced.tracer.start({b"traceparent": GIVEN}), LINE)
    assert "POST /v1/messages" in traced.spans


def test_attributes_are_of_closed_sets_whatever_the_caller_says() -> None:
    traced = Traced()
    odd = RequestLine(
        *(LINE.at, "req_1", "/nope/\r\n", 529, Outcome.REJECTED_CAPACITY, 0.5),
        model="made up",
        error="overloaded_error",
        refused="shed",
        own_id="mine",
    )
    traced.tracer.end(traced.tracer.start({}), odd)
    (span,) = traced.exporter.get_finished_spans()
    assert span.name == "POST other"
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes is not None
    assert span.attributes["error.type"] == "shed"
    assert "gen_ai.request.model" not in span.attributes
    assert not {"made up", "mine", "req_1", "/nope/\r\n"} & set(span.attributes.values())


# The setting


def test_off_is_no_spans_and_nothing_of_the_sdk() -> None:
    tracer = create_tracer(Switch.OFF, models=("simulated",))
    assert type(tracer) is Tracer
    context = tracer.start({b"traceparent": GIVEN})
    assert context is not None
    tracer.end(context, LINE)
    tracer.close()


def test_on_without_the_sdk_is_told_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "batcher.service.spans")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"tracing is on.*batcher\[tracing\]"):
        create_tracer(Switch.ON, models=())


def test_an_exporter_that_is_not_installed_is_told_at_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    with pytest.raises(ConfigError, match="OTEL_TRACES_EXPORTER is 'zipkin'"):
        create_span_tracer(())


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-4", "must be a positive integer"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "9" * 30, "too large"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100000", "less than or equal to max_queue_size"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0", "must be positive"),
    ],
)
def test_a_variable_that_the_sdk_does_not_take_is_told_at_start(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "key=hunter2")
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=rf"tracing is on; .*\({name}={value}\): .*{words}") as raised:
        create_tracer(Switch.ON, models=())
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("asked", ["", "console"])
def test_without_a_collector_s_exporter_spans_are_printed_a_line_each(
    asked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", asked)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "front" if asked else "")
    tracer = create_tracer(Switch.ON, models=("simulated",))
    context = tracer.start({b"traceparent": GIVEN})
    assert context is not None
    tracer.end(context, LINE)
    tracer.close()
    prefill, decode, request = map(json.loads, capsys.readouterr().out.splitlines())
    assert [span["name"] for span in (prefill, decode, request)] == ["prefill", "decode", "POST /v1/messages"]
    assert request["context"]["trace_id"] == f"0x{TRACE}"
    assert request["resource"]["attributes"]["service.name"] == ("front" if asked else "batcher")


def test_a_collector_that_does_not_answer_keeps_nobody_from_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batcher.service.spans.CLOSE_S", 0.01)
    answers = threading.Event()

    class Stuck(SpanExporter):
        def shutdown(self) -> None:
            answers.wait()

    tracer = SpanTracer(())
    tracer.provider.add_span_processor(SimpleSpanProcessor(Stuck()))
    tracer.close()
    answers.set()
