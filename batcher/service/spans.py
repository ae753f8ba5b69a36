"""Spans of OpenTelemetry, made when a request has ended, out of the instants that its line has anyway.

The SDK's own manner, a context manager around each piece of work, was refused: work here is callbacks, and each would pay for
it. Names of attributes are OpenTelemetry's conventions for HTTP servers and for generative models, where they have one. Values
are numbers and words of closed sets, never a caller's; a request's own are in its log line, which has the trace's id.
"""

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, set_span_in_context
from opentelemetry.trace.span import TraceState

from batcher.errors import ConfigError
from batcher.service import log
from batcher.service.records import OTHER, Refused, RequestLine, Route
from batcher.service.tracing import NO_PHASES, Phases, TraceContext, Tracer
from batcher.types import Outcome

CLOSE_S = 2.0
"""What sending the last spans may take; the SDK would wait half a minute for a collector that does not answer."""

_OPERATIONS: dict[str, str] = {Route.RUN: "text_completion", Route.MESSAGES: "chat", Route.CHAT: "chat"}
_EXPORTERS = "opentelemetry_traces_exporter"
_EXPORTER_VARIABLE = "OTEL_TRACES_EXPORTER"
_OTLP_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}


class _Ids(RandomIdGenerator):
    """Random ids, unless the next ones are given: a request's are told before there is its span."""

    def __init__(self) -> None:
        self.trace_id: int | None = None
        self.span_id: int | None = None

    def generate_trace_id(self) -> int:
        given, self.trace_id = self.trace_id, None
        return super().generate_trace_id() if given is None else given

    def generate_span_id(self) -> int:
        given, self.span_id = self.span_id, None
        return super().generate_span_id() if given is None else given


class SpanTracer(Tracer):
    """One span for each request, and one in it for each phase that is known. Belongs to one event loop.

    The provider's processor keeps a bounded queue (OTEL_BSP_MAX_QUEUE_SIZE) and sends from a thread of its own.
    """

    def __init__(self, models: Iterable[str], *, resource: Resource | None = None) -> None:
        self._models = frozenset(models)
        self._random = RandomIdGenerator()
        self._ids = _Ids()
        self.provider = TracerProvider(id_generator=self._ids, resource=resource, shutdown_on_exit=False)
        self._tracer = self.provider.get_tracer("batcher")

    def start(self, headers: Mapping[bytes, bytes]) -> TraceContext:
        """As in Tracer, and the beginning of a trace where there is none. OTEL_TRACES_SAMPLER decides whether it is sampled."""
        given = super().start(headers)
        span_id = f"{self._random.generate_span_id():016x}"
        if given is None:
            number = self._random.generate_trace_id()
            return TraceContext(f"{number:032x}", span_id, is_sampled=self._is_sampled(Context(), number))
        is_sampled = self._is_sampled(_parent(given), int(given.trace_id, 16))
        return TraceContext(given.trace_id, span_id, given.parent_id, is_sampled, given.tracestate)

    def _is_sampled(self, parent: Context, trace_id: int) -> bool:
        result = self.provider.sampler.should_sample(parent, trace_id, "request", SpanKind.SERVER)
        return result.decision is Decision.RECORD_AND_SAMPLE

    def end(self, context: TraceContext, line: RequestLine, phases: Phases = NO_PHASES) -> None:
        if not context.is_sampled:
            return
        route = line.route if line.route in _OPERATIONS else OTHER
        arrived_at = line.at - line.e2e_s
        if not context.parent_id:
            self._ids.trace_id = int(context.trace_id, 16)
        self._ids.span_id = int(context.span_id, 16)
        span = self._tracer.start_span(
            f"POST {route}",
            context=_parent(context) if context.parent_id else Context(),
            kind=SpanKind.SERVER,
            attributes=self._attributes(line, route),
            start_time=_ns(arrived_at),
        )
        if line.status >= 500 or line.outcome == Outcome.FAILED:
            span.set_status(StatusCode.ERROR)
        inside = set_span_in_context(span, Context())
        for name, start_s, end_s in _intervals(line, phases):
            child = self._tracer.start_span(name, context=inside, start_time=_ns(arrived_at + start_s))
            child.end(_ns(arrived_at + end_s))
        span.end(_ns(line.at))

    def _attributes(self, line: RequestLine, route: str) -> dict[str, str | int | float | bool]:
        attributes: dict[str, str | int | float | bool] = {
            "http.request.method": "POST",
            "http.route": route,
            "http.response.status_code": line.status,
            "gen_ai.operation.name": _OPERATIONS.get(route, OTHER),
            "gen_ai.provider.name": "batcher",
            "gen_ai.request.stream": line.is_streamed,
            "gen_ai.usage.input_tokens": line.input_tokens,
            "gen_ai.usage.output_tokens": line.output_tokens,
            "batcher.outcome": line.outcome,
            "batcher.tier": line.tier or "none",
        }
        if line.model in self._models:
            attributes["gen_ai.request.model"] = line.model
        if line.error:
            # Of what nobody could accept the error says more than the word for all such.
            attributes["error.type"] = line.error if line.refused in ("", Refused.INVALID) else line.refused
        if line.ttft_s is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = line.ttft_s
        return attributes

    def close(self) -> None:
        """Sends what is left, in CLOSE_S at most."""
        closing = threading.Thread(target=self.provider.shutdown, name="tracer-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def _intervals(line: RequestLine, phases: Phases) -> Iterator[tuple[str, float, float]]:
    """(name, start, end) of what is known of the way from the arrival to the end, in seconds after the arrival."""
    started_s = phases.started_s
    if started_s is not None:
        if line.queue_s is not None:
            yield "queue", started_s - line.queue_s, started_s
        if phases.run_s is not None:
            yield "batch", started_s, started_s + phases.run_s
            return
    if line.ttft_s is not None:
        yield "prefill", 0.0 if started_s is None else started_s, line.ttft_s
        yield "decode", line.ttft_s, line.e2e_s


def _parent(context: TraceContext) -> Context:
    state = TraceState.from_header([context.tracestate]) if context.tracestate else None
    flags = TraceFlags(TraceFlags.SAMPLED if context.is_sampled else TraceFlags.DEFAULT)
    parent = SpanContext(int(context.trace_id, 16), int(context.parent_id, 16), True, flags, state)
    return set_span_in_context(NonRecordingSpan(parent), Context())


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)


def create_span_tracer(models: Iterable[str]) -> SpanTracer:
    """As the OTEL_* variables say: by itself to an OTLP collector if its exporter is installed, else to standard output.

    Raises ConfigError for an exporter that is asked for and not installed.
    """
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "batcher"}))
    tracer = SpanTracer(models, resource=resource)
    exporter = _exporter(os.environ)
    if exporter is not None:
        tracer.provider.add_span_processor(BatchSpanProcessor(exporter))
    log.event("tracing", exporter=None if exporter is None else type(exporter).__name__)
    return tracer


def _exporter(environment: Mapping[str, str]) -> SpanExporter | None:
    asked = environment.get(_EXPORTER_VARIABLE, "").strip()
    if asked == "none":
        return None
    protocol = next((environment[name] for name in _OTLP_VARIABLES if name in environment), None)
    names = [*_OTLP.values()] if protocol is None else [_OTLP.get(protocol, protocol)]
    wanted = names if asked in ("", "otlp") else [asked]
    for name in wanted:
        for found in entry_points(group=_EXPORTERS, name=name):
            if name != "console":
                exporter: SpanExporter = found.load()()
                return exporter
    if asked not in ("", "console"):
        raise ConfigError(f"{_EXPORTER_VARIABLE} is {asked!r}; no such exporter is installed ({' or '.join(wanted)})")
    return ConsoleSpanExporter(out=sys.stdout, formatter=lambda span: f"{span.to_json(indent=None)}\n")
