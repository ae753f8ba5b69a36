"""Server-sent events, whatever a network does to their bytes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest import events
from loadtest.events import EventReader, EventTooLong
from tests.loadtest.talker import event, stream_of

STREAM = b"".join(stream_of(["a", "ünd", "", "𝄞 b"]))


def read(*reads: bytes) -> list[tuple[str, bytes]]:
    reader = EventReader()
    return [found for data in reads for found in reader.feed(data)]


@given(st.lists(st.integers(0, len(STREAM)), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_are_the_same_wherever_their_bytes_are_cut(cuts: list[int], line_end: bytes) -> None:
    stream = STREAM.replace(b"\n", line_end)
    edges = [0, *sorted(cuts), len(stream)]
    reads = [stream[start:end] for start, end in itertools.pairwise(edges)]
    assert read(*reads) == read(STREAM)
    assert [name for name, _ in read(STREAM)] == ["message_start", "ping", *["content_delta"] * 4, "message_stop"]


def test_a_byte_at_a_time() -> None:
    stream = STREAM.replace(b"\n", b"\r\n")
    assert read(*(stream[place : place + 1] for place in range(len(stream)))) == read(STREAM)


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        (b"data: one\n\n", [("", b"one")]),
        (b"data:one\n\n", [("", b"one")]),
        (b"data:  one\n\n", [("", b" one")]),
        (b": a comment\ndata: one\n\n", [("", b"one")]),
        (b": a comment alone\n\n", []),
        (b"data: one\ndata: two\ndata\n\n", [("", b"one\ntwo\n")]),
        (b"event: a\n\ndata: one\n\n", [("", b"one")]),
        (b"id: 7\nretry: 5\nevent: a\ndata: x\n\n", [("a", b"x")]),
        (b"\n\n\ndata: one\n\n\n\ndata: two\n\n", [("", b"one"), ("", b"two")]),
        (b"\xef\xbb\xbfdata: one\n\n", [("", b"one")]),
        (b"data: one\n\ndata: never whole\n", [("", b"one")]),
        (b"data: {}\r\rdata: x\r\n\r\n", [("", b"{}"), ("", b"x")]),
        (b"what is this\n\n", []),
    ],
)
def test_the_rules_of_the_standard(stream: bytes, found: list[tuple[str, bytes]]) -> None:
    assert read(stream) == found


def test_an_event_is_found_by_the_read_that_completes_it() -> None:
    reader = EventReader()
    assert reader.feed(event("content_delta", text="x")[:-1]) == []
    assert len(reader.feed(b"\n" + event("ping") + b"data")) == 2
    assert reader.feed(b": 1\n\n") == [("", b"1")]


def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 100)
    reader = EventReader()
    reader.feed(b"data: " + b"x" * 90)
    with pytest.raises(EventTooLong):
        reader.feed(b"x" * 10)
