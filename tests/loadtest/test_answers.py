"""Answers of generated text: which are good, and how they are timed. Every instant is given."""

from typing import Any

import pytest

from loadtest.answers import StreamedAnswer, WholeAnswer
from loadtest.samples import Ending
from loadtest.stats import quantiles
from loadtest.tokens import StopReason, Tokens, blank_tokens
from tests.loadtest.talker import event, stream_of, whole

USAGE = {"input_tokens": 7, "output_tokens": 2}
START, STOP = event("message_start", id="msg_0"), event("message_stop", stop_reason="end_turn", usage=USAGE)


class Ear:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def take_answer(self, text: str) -> None:
        self.texts.append(text)


def delta(text: str) -> bytes:
    return event("content_delta", text=text)


def hear(*reads: tuple[float, bytes], max_tokens: int = 1000) -> tuple[Ending, Tokens]:
    """What came of one stream, of these reads."""
    tokens = blank_tokens(1)
    tokens.max_tokens[0] = max_tokens
    answer = StreamedAnswer(tokens, 0, None)
    for at, data in reads:
        answer.feed(200, data, at)
    return answer.end(200)[0], tokens


def test_ttft_gaps_and_tpot_of_one_answer() -> None:
    """B96: a first token after 1 s, then 98 gaps of 10 ms and one of 2 s, whose event carries 5 tokens."""
    at = 1.0
    reads = [(0.2, START), (1.0, delta("first"))]
    for _ in range(98):
        at += 0.01
        reads.append((at, delta("x")))
    at += 2.0
    usage = {"input_tokens": 50, "output_tokens": 104}
    reads += [(at, delta("five tokens in one")), (at + 0.5, event("message_stop", stop_reason="max_tokens", usage=usage))]
    ending, tokens = hear(*reads)
    assert ending is Ending.OK
    assert tokens.ttft_s(0, 0.0) == 1.0
    assert tokens.ttft_s(0, 0.25) == 0.75  # From the instant at which it was meant to leave.
    gaps = quantiles(tokens.gaps_of(0))
    assert gaps.count == 99
    assert gaps.p50 == pytest.approx(0.01)
    assert gaps.max == pytest.approx(2.0)
    assert tokens.max_gap_s[0] == pytest.approx(2.0)
    assert tokens.tpot_s(0) == pytest.approx((98 * 0.01 + 2.0) / 103)
    assert (tokens.input_tokens[0], tokens.output_tokens[0]) == (50, 104)
    assert tokens.stop_reason[0] == StopReason.MAX_TOKENS


def test_the_first_token_is_the_first_text() -> None:
    """B97: neither the start, nor a ping, nor an empty text is a token."""
    reads = [
        (0.1, START),
        (0.2, event("ping")),
        (0.3, delta("")),
        (0.4, delta("a")),
        (0.6, delta("")),
        (0.7, delta("b")),
        (0.8, STOP),
    ]
    ending, tokens = hear(*reads)
    assert ending is Ending.OK
    assert tokens.first_at[0] == 0.4
    assert list(tokens.gaps_of(0)) == [pytest.approx(0.3)]
    assert tokens.tpot_s(0) == pytest.approx(0.3)


def test_an_answer_without_text_has_no_times() -> None:
    """B97: no sample is null, never 0."""
    nothing = event("message_stop", stop_reason="end_turn", usage={"input_tokens": 7, "output_tokens": 0})
    ending, tokens = hear((0.1, START), (0.5, nothing))
    assert ending is Ending.OK
    assert tokens.ttft_s(0, 0.0) is None
    assert tokens.tpot_s(0) is None
    assert list(tokens.gaps_of(0)) == []


def test_one_token_has_a_ttft_and_no_pace() -> None:
    ending, tokens = hear((0.1, START), (0.5, delta("a")), (0.6, STOP))
    assert ending is Ending.OK
    assert tokens.ttft_s(0, 0.0) == 0.5
    assert tokens.tpot_s(0) is None


def test_all_that_one_read_brings_came_at_once() -> None:
    ending, tokens = hear((0.1, START), (0.5, delta("a") + delta("b") + STOP))
    assert ending is Ending.OK
    assert list(tokens.gaps_of(0)) == [0.0]


def test_a_stream_that_is_cut_into_bytes_is_heard_alike() -> None:
    stream = b"".join(stream_of(["a", "b"])).replace(b"\n", b"\r\n")
    ending, tokens = hear(*((float(place), stream[place : place + 1]) for place in range(len(stream))))
    assert ending is Ending.OK
    assert tokens.first_at[0] < tokens.last_at[0] < len(stream)
    assert tokens.num_deltas[0] == 2


@pytest.mark.parametrize(
    ("reads", "ending"),
    [
        ((START, delta("a")), Ending.STREAM_CUT),
        ((START, delta("a"), STOP[:-1]), Ending.STREAM_CUT),
        ((), Ending.STREAM_CUT),
        ((START, delta("a"), event("error", error={"type": "api_error", "message": "gone"})), Ending.STREAM_ERROR),
        ((event("error", error={"type": "overloaded_error", "message": "full"}),), Ending.STREAM_ERROR),
        ((START, delta("a"), STOP, event("error", error={})), Ending.STREAM_ERROR),
        ((delta("a"), START, STOP), Ending.MISMATCHED),
        ((START, START, STOP), Ending.MISMATCHED),
        ((START, STOP, delta("a")), Ending.MISMATCHED),
        ((START, STOP, STOP), Ending.MISMATCHED),
        ((event("message_start", id=""), STOP), Ending.MISMATCHED),
        ((START, b"event: content_delta\ndata: {broken\n\n", STOP), Ending.MISMATCHED),
        ((START, b'event: content_delta\ndata: {"text": "\xff"}\n\n', STOP), Ending.MISMATCHED),
        ((START, b'event: content_delta\ndata: {"text": "\\ud83d"}\n\n', STOP), Ending.MISMATCHED),
        ((START, b'event: content_delta\ndata: {"text": 7}\n\n', STOP), Ending.MISMATCHED),
        ((START, event("something_new", much=1), STOP), Ending.OK),
        ((b": hello\n\n", START.replace(b"event: message_start\n", b""), STOP), Ending.OK),
    ],
)
def test_which_streams_are_good(reads: tuple[bytes, ...], ending: Ending) -> None:
    """B68: a status of 200 says nothing about what comes after it."""
    assert hear(*((0.1, data) for data in reads))[0] is ending


@pytest.mark.parametrize(
    ("changes", "ending"),
    [
        ({}, Ending.OK),
        ({"output_tokens": 5}, Ending.OK),
        ({"output_tokens": 6}, Ending.MISMATCHED),
        ({"output_tokens": -1}, Ending.MISMATCHED),
        ({"output_tokens": "2"}, Ending.MISMATCHED),
        ({"input_tokens": 0}, Ending.MISMATCHED),
        ({"input_tokens": 2**40}, Ending.MISMATCHED),
        ({"stop_reason": "length"}, Ending.MISMATCHED),
        ({"stop_reason": None}, Ending.MISMATCHED),
        ({"usage": None}, Ending.MISMATCHED),
    ],
)
def test_what_an_answer_says_of_itself_must_be_possible(changes: dict[str, Any], ending: Ending) -> None:
    usage = USAGE | {name: value for name, value in changes.items() if name.endswith("tokens")}
    fields = {"stop_reason": "end_turn", "usage": usage} | {
        name: changes[name] for name in changes if name in ("stop_reason", "usage")
    }
    found, tokens = hear((0.1, START), (0.2, event("message_stop", **fields)), max_tokens=5)
    assert found is ending
    assert bool(tokens.input_tokens[0]) is (ending is Ending.OK)


def test_gaps_of_a_failed_stream_are_not_kept() -> None:
    """B95: a stream that breaks off is in no figure of those that did not."""
    ending, tokens = hear((0.1, START), (0.2, delta("a")), (0.9, delta("b")))
    assert ending is Ending.STREAM_CUT
    assert len(tokens.gaps_s) == 0
    assert tokens.num_deltas[0] == 2  # The row itself tells how far it came.


def test_a_connection_that_dies_in_the_stream_is_a_cut_stream() -> None:
    answer = StreamedAnswer(blank_tokens(1), 0, None)
    assert answer.cut() is Ending.TRANSPORT
    answer.feed(200, START, 0.1)
    assert answer.cut() is Ending.STREAM_CUT


@pytest.mark.parametrize(
    ("status", "ending"), [(529, Ending.REJECTED_CAPACITY), (429, Ending.REJECTED_RATE), (400, Ending.CLIENT_ERROR)]
)
def test_a_refusal_is_no_stream(status: int, ending: Ending) -> None:
    for answer in (StreamedAnswer(blank_tokens(1), 0, None), WholeAnswer(blank_tokens(1), 0, None)):
        answer.feed(status, b'{"type": "error"}', 0.1)
        assert answer.end(status) == (ending, None)


def test_the_text_is_told_to_whom_it_may_concern() -> None:
    ear, tokens = Ear(), blank_tokens(2)
    tokens.max_tokens[0] = tokens.max_tokens[1] = 10
    streamed = StreamedAnswer(tokens, 0, ear)
    streamed.feed(200, b"".join(stream_of(["a", " b", " c"])), 0.1)
    assert streamed.end(200) == (Ending.OK, "msg_0")
    at_once = WholeAnswer(tokens, 1, ear)
    at_once.feed(200, whole("a b c", answer_id="msg_1", output_tokens=3), 0.1)
    assert at_once.end(200) == (Ending.OK, "msg_1")
    assert ear.texts == ["a b c", "a b c"]
    assert tokens.ttft_s(1, 0.0) is None
    assert tokens.output_tokens[1] == 3


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", whole("x", answer_id=""), whole("x", answer_id="m", output_tokens=11)])
def test_a_whole_answer_is_doubted_alike(body: bytes) -> None:
    tokens = blank_tokens(1)
    tokens.max_tokens[0] = 10
    answer = WholeAnswer(tokens, 0, None)
    answer.feed(200, body, 0.1)
    assert answer.end(200)[0] is Ending.MISMATCHED
