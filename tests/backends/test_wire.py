"""Frames: cut right wherever the bytes are cut, bounded, and never quoting what they carry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import wire


@given(st.lists(st.lists(st.text(max_size=5), min_size=1, max_size=3), max_size=5), st.integers(1, 40))
def test_frames_survive_any_cut(batches: list[list[str]], step: int) -> None:
    stream = b"".join(wire.encode(wire.Run(inputs)) for inputs in batches)
    reader = wire.FrameReader()
    frames = [frame for at in range(0, len(stream), step) for frame in reader.feed(stream[at : at + step])]
    assert [wire.decode_from_parent(frame) for frame in frames] == [wire.Run(inputs) for inputs in batches]


def test_a_length_out_of_bounds_is_refused_before_its_bytes_are_awaited() -> None:
    with pytest.raises(ValueError, match="a frame of"):
        wire.FrameReader().feed(b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    "outputs",
    [["secret\ud800"], [object()], (text for text in ["secret"]), [2**70], range(3)],
    ids=lambda value: str(type(value)),
)
def test_what_cannot_be_carried_is_said_without_quoting_it(outputs: object) -> None:
    with pytest.raises(wire.CannotCarry) as raised:
        wire.encode(wire.Done(outputs, 0.0))
    assert "secret" not in str(raised.value)


def test_a_list_that_holds_itself_cannot_be_carried() -> None:
    outputs: list[object] = []
    outputs.append(outputs)
    with pytest.raises(wire.CannotCarry):
        wire.encode(wire.Done(outputs, 0.0))


def test_an_exception_is_described_bounded_and_encodable() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert wire.describe(Broken()) == ("Broken", "(its message could not be made)")
    kind, message = wire.describe(ValueError("\ud800" + "x" * 10_000))
    assert kind == "ValueError"
    assert len(message) == wire.MAX_ERROR_CHARS
    traceback = wire.describe_traceback(ValueError("\ud800" + "x" * 10_000 + "end"))
    assert traceback.endswith("end\n")
    assert len(traceback) == wire.MAX_TRACEBACK_CHARS
    wire.encode(wire.Raised(kind, message, 0.0, traceback))
