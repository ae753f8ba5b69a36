"""What each answer of generated text was like: its tokens and their times, in columns beside those of all requests.

Three times are told apart, since each has its own cause. TTFT is from the intended send to the first text: queueing and
prefill. A gap is the time between two events with text: what a reader sees as a stutter. TPOT is one mean per answer,
(last text - first text) / (output tokens - 1): the pace of decoding. TTFT is in no gap and in no TPOT, or one slow prefill
would look like slow decoding.

An event may carry several tokens, so gaps are per event and never divided among its tokens: what is seen is measured. TPOT
divides by the server's own count of tokens, so it is right whatever the events carry. Answers that came in one piece have
neither, and answers without text have no TTFT: nothing measured is null, never 0.
"""

from array import array
from enum import IntEnum

import msgspec

MAX_GAPS = 5_000_000
"""Gaps kept in one run, as 32-bit floats (exact to a ten-millionth of themselves): 20 MB, and some 200 MB while they are
sorted. They are kept answer by answer; those of answers that end later are counted as left out, while their TTFT, TPOT and
longest gap are kept for every answer."""

MAX_COUNT = 2**31 - 1
"""No usage is higher: a server that says more is wrong."""


class StopReason(IntEnum):
    """Why an answer ended: a closed set. The lower-case names are the wire's."""

    NONE = 0
    """No answer, or none that said it."""
    END_TURN = 1
    MAX_TOKENS = 2
    STOP_SEQUENCE = 3


STOP_REASONS = {reason.name.lower(): reason for reason in StopReason if reason is not StopReason.NONE}


class Tokens(msgspec.Struct, gc=False):
    """One row per request, as in `loadtest.samples.Samples`. Written once each by whoever reads the row's answer.

    `first_at` and `last_at` mean something where `num_deltas` is not 0, `max_gap_s` where it is more than 1. Usage, stop
    reason and gaps are those of good answers.
    """

    conversation: "array[int]"
    turn: "array[int]"
    """From 0, within the conversation."""
    max_tokens: "array[int]"
    """What was asked for; 0 where the request was never made."""
    first_at: "array[float]"
    last_at: "array[float]"
    """Instants of the first and the last event with text, in seconds from the start of the run."""
    num_deltas: "array[int]"
    """Events with text."""
    max_gap_s: "array[float]"
    input_tokens: "array[int]"
    output_tokens: "array[int]"
    """By the server's usage."""
    stop_reason: bytearray
    gap_start: "array[int]"
    num_gaps: "array[int]"
    """The row's own gaps are `gaps_s[gap_start : gap_start + num_gaps]`, in order."""
    gaps_s: "array[float]"
    num_gaps_left_out: int = 0

    def add(self, conversation: int, turn: int) -> None:
        """One more row, of a request that is not yet made."""
        self.conversation.append(conversation)
        self.turn.append(turn)
        for column in self.numbers():
            column.append(0)
        self.stop_reason.append(StopReason.NONE)

    def numbers(self) -> "tuple[array[int] | array[float], ...]":
        """The columns that start at 0."""
        return (
            self.max_tokens, self.first_at, self.last_at, self.num_deltas, self.max_gap_s, self.input_tokens,
            self.output_tokens, self.gap_start, self.num_gaps,
        )  # fmt: skip

    def keep_gaps(self, row: int, gaps_s: "array[float]") -> None:
        if len(self.gaps_s) + len(gaps_s) > MAX_GAPS:
            self.num_gaps_left_out += len(gaps_s)
            return
        self.gap_start[row] = len(self.gaps_s)
        self.num_gaps[row] = len(gaps_s)
        self.gaps_s.extend(gaps_s)

    def gaps_of(self, row: int) -> "array[float]":
        return self.gaps_s[self.gap_start[row] : self.gap_start[row] + self.num_gaps[row]]

    def ttft_s(self, row: int, planned_at: float) -> float | None:
        """From the intended send; None for an answer without text, and for one that was not streamed."""
        return self.first_at[row] - planned_at if self.num_deltas[row] else None

    def tpot_s(self, row: int) -> float | None:
        """None where the text came at one instant's event, or is one token."""
        if self.num_deltas[row] < 2 or self.output_tokens[row] < 2:
            return None
        return (self.last_at[row] - self.first_at[row]) / (self.output_tokens[row] - 1)


def blank_tokens(num: int) -> Tokens:
    """Rows of so many conversations, each at its first turn."""
    return Tokens(
        conversation=array("I", range(num)),
        turn=array("H", bytes(2 * num)),
        max_tokens=array("I", bytes(4 * num)),
        first_at=array("d", bytes(8 * num)),
        last_at=array("d", bytes(8 * num)),
        num_deltas=array("I", bytes(4 * num)),
        max_gap_s=array("f", bytes(4 * num)),
        input_tokens=array("I", bytes(4 * num)),
        output_tokens=array("I", bytes(4 * num)),
        stop_reason=bytearray(num),
        gap_start=array("Q", bytes(8 * num)),
        num_gaps=array("I", bytes(4 * num)),
        gaps_s=array("f"),
    )


class Hearing:
    """The times of one answer, while it comes."""

    __slots__ = ("first_at", "gaps_s", "last_at", "max_gap_s", "num_deltas")

    def __init__(self) -> None:
        self.num_deltas = 0
        self.first_at = 0.0
        self.last_at = 0.0
        self.max_gap_s = 0.0
        self.gaps_s: array[float] = array("f")

    def hear(self, at: float) -> None:
        """Text came."""
        if self.num_deltas:
            gap_s = at - self.last_at
            self.gaps_s.append(gap_s)
            if gap_s > self.max_gap_s:
                self.max_gap_s = gap_s
        else:
            self.first_at = at
        self.last_at = at
        self.num_deltas += 1

    def write(self, tokens: Tokens, row: int) -> None:
        """The times, but for the gaps, into the row."""
        tokens.first_at[row] = self.first_at
        tokens.last_at[row] = self.last_at
        tokens.num_deltas[row] = self.num_deltas
        tokens.max_gap_s[row] = self.max_gap_s
