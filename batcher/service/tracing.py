"""Traces: a caller's W3C trace context is accepted and passed on, and each request becomes spans where they are asked for.

With `tracing = off` nothing of OpenTelemetry is imported (`spans.py` has all of it), and a request without a `traceparent`
costs one look into its headers. The grammar is that of "Trace Context" (W3C, 2021).

Where spans are made, whoever asked is told which is its own, as `traceresponse`. That header is of the draft of Trace Context's
level 3 (it was taken out of level 2), and names the operation here: without spans there is none, and to send the caller's own
id back as ours was refused.
"""

import os
import re
from collections.abc import Iterable, Mapping

import msgspec

from batcher.config import Switch
from batcher.errors import ConfigError
from batcher.service.records import RequestLine

MAX_TRACESTATE_BYTES = 512
"""What everybody has to pass on of it; members at its end give way."""

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_MEMBER = re.compile(r"([a-z0-9][a-z0-9_\-*/@]{0,255})=[ -+\--<>-~]{0,255}[!-+\--<>-~]")
_NUMBER = re.compile(r"OTEL_\w+=[-+.\d]+")
_MAX_MEMBERS = 32
_SAMPLED = 1


class TraceContext(msgspec.Struct, frozen=True, gc=False):
    """Where a request stands in a trace. All of it is checked or ours, and fit for a header."""

    trace_id: str
    """32 hexadecimal digits."""
    span_id: str
    """16 of them: of our span, or the caller's where we make none."""
    parent_id: str = ""
    """The caller's; empty where the trace begins here."""
    is_sampled: bool = False
    tracestate: str = ""

    @property
    def traceresponse(self) -> str | None:
        """For whoever asked; None where there is no span of ours."""
        return None if self.span_id == self.parent_id else f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


class Phases(msgspec.Struct, frozen=True, gc=False):
    """What is known of a request beside its line. None where nobody has measured it."""

    started_s: float | None = None
    """From its arrival until its batch left, or its first step was launched."""
    run_s: float | None = None
    """Batch mode: what its batch took."""


NO_PHASES = Phases()


class Tracer:
    """Passes on what callers bring, and makes no spans."""

    def start(self, headers: Mapping[bytes, bytes]) -> TraceContext | None:
        """Of a request with these headers (names in lower case). None if it is in no trace: what is odd is ignored."""
        traceparent = headers.get(b"traceparent")
        return None if traceparent is None else parse(traceparent, headers.get(b"tracestate", b""))

    def end(self, context: TraceContext, line: RequestLine, phases: Phases = NO_PHASES) -> None:
        """The request has ended."""

    def close(self) -> None:
        """Nothing is left to send."""


def parse(traceparent: bytes, tracestate: bytes = b"") -> TraceContext | None:
    """None for what is no traceparent. One of a later version is read as far as this version goes."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None:
        return None
    version, trace_id, parent_id, flags, more = match.groups()
    if version == b"ff" or (version == b"00" and more is not None) or not int(trace_id, 16) or not int(parent_id, 16):
        return None
    parent = parent_id.decode()
    is_sampled = bool(int(flags, 16) & _SAMPLED)
    return TraceContext(trace_id.decode(), parent, parent, is_sampled, _checked(tracestate) if tracestate else "")


def _checked(tracestate: bytes) -> str:
    """As much of it as is passed on; nothing if it is not as it should be."""
    if len(tracestate) > 16 * MAX_TRACESTATE_BYTES or not tracestate.isascii():
        return ""
    members = [member.strip(" \t") for member in tracestate.decode("ascii").split(",")]
    members = [member for member in members if member]
    matches = [_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in matches if match is not None}
    if len(members) > _MAX_MEMBERS or len(keys) != len(members):
        return ""  # A member that is none, or a key that is there twice.
    while len(checked := ",".join(members)) > MAX_TRACESTATE_BYTES:
        members.pop()
    return checked


def create_tracer(tracing: Switch, *, models: Iterable[str]) -> Tracer:
    """`models` are the ids that callers may name. Raises ConfigError where spans are asked for and cannot be made."""
    if tracing is Switch.OFF:
        return Tracer()
    try:
        from batcher.service.spans import create_span_tracer

        return create_span_tracer(models)
    except ModuleNotFoundError as error:
        raise ConfigError(f"tracing is on; it needs OpenTelemetry's SDK ({error}): pip install 'batcher[tracing]'") from error
    except (ValueError, OverflowError) as error:
        # Its words seldom name the variable. Those of numbers are shown: others may hold a secret.
        said = ", ".join(sorted(filter(_NUMBER.fullmatch, (f"{name}={value}" for name, value in os.environ.items()))))
        raise ConfigError(
            f"tracing is on; OpenTelemetry does not take its variables{said and f' ({said})'}: {error}"
        ) from error
