"""What is taken for a caller's trace context, what is not, and what is passed on of it (B46, B76)."""

import pytest

from batcher.service.tracing import MAX_TRACESTATE_BYTES, TraceContext, Tracer, parse

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{PARENT}-01".encode()


# What is taken


def test_a_callers_trace_is_taken_and_passed_on() -> None:
    context = Tracer().start({b"traceparent": GIVEN, b"tracestate": b"congo=t61rcWkgMzE, rojo=00f067aa0ba902b7"})
    assert context == TraceContext(TRACE, PARENT, PARENT, True, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7")
    assert context.traceresponse is None


def test_who_brings_none_has_none() -> None:
    assert Tracer().start({b"tracestate": b"congo=1"}) is None


@pytest.mark.parametrize(("flags", "is_sampled"), [(b"00", False), (b"01", True), (b"02", False), (b"ff", True)])
def test_of_the_flags_only_the_sampled_one_is_passed_on(flags: bytes, is_sampled: bool) -> None:
    context = parse(GIVEN[:-2] + flags)
    assert context is not None
    assert context.is_sampled is is_sampled


@pytest.mark.parametrize(
    "traceparent",
    [
        pytest.param(b"", id="empty"),
        pytest.param(GIVEN.upper(), id="upper case"),
        pytest.param(GIVEN + b"-", id="longer in version 00"),
        pytest.param(GIVEN + b"-more", id="more in version 00"),
        pytest.param(GIVEN + b"\n", id="line feed"),
        pytest.param(GIVEN + b"\r\nset-cookie: a=b", id="another header"),
        pytest.param(b" " + GIVEN, id="blank before"),
        pytest.param(GIVEN[:-1], id="shorter"),
        pytest.param(b"ff" + GIVEN[2:], id="version ff"),
        pytest.param(b"01" + GIVEN[2:] + b"more", id="later version, no dash"),
        pytest.param(GIVEN.replace(TRACE.encode(), b"0" * 32), id="trace of zeros"),
        pytest.param(GIVEN.replace(PARENT.encode(), b"0" * 16), id="parent of zeros"),
        pytest.param(GIVEN.replace(b"-", b"_"), id="other dashes"),
        pytest.param(GIVEN.replace(b"0af", b"0xf"), id="no digit"),
        pytest.param(GIVEN.replace(b"0af", "٠af".encode()), id="other digits"),
        pytest.param(b"\xff" * 55, id="no text"),
        pytest.param(b"0" * 1_000_000, id="a megabyte"),
    ],
)
def test_what_is_odd_is_ignored(traceparent: bytes) -> None:
    assert parse(traceparent) is None
    assert Tracer().start({b"traceparent": traceparent}) is None


def test_a_later_version_is_read_as_far_as_this_one_goes() -> None:
    context = parse(b"cc" + GIVEN[2:] + b"-what-the-future-brings")
    assert context is not None
    assert context == parse(GIVEN)


@pytest.mark.parametrize(
    "tracestate",
    [
        *(b"no-value", b"a=1,a=2", b"A=1", b"a=1\r\nb: c", b"a=\x00", b"a=b=c", b"a=\xff", b"a" * 257 + b"=1"),
        *(b"a=" + b"v" * 257, ",".join(f"k{number}=1" for number in range(33)).encode(), b"a=1," * 5000),
    ],
)
def test_a_tracestate_that_is_not_as_it_should_be_is_dropped(tracestate: bytes) -> None:
    context = parse(GIVEN, tracestate)
    assert context is not None
    assert context.tracestate == ""


def test_a_tracestate_is_passed_on_up_to_a_bound() -> None:
    members = [f"key{number}={'v' * 90}" for number in range(10)]
    context = parse(GIVEN, ",".join(members).encode())
    assert context is not None
    assert context.tracestate == ",".join(members[:5])
    assert len(context.tracestate) <= MAX_TRACESTATE_BYTES < len(",".join(members[:6]))
