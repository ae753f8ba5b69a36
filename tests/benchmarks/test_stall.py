"""Which gaps count as a stall, from instants that are written out."""

import pytest

from benchmarks.stall import output_len, row_of, stall_of


def test_gaps_before_the_arrival_and_gaps_that_the_long_prompt_makes() -> None:
    streams = [[1.0, 2.0, 3.0, 6.0, 7.0, 30.0], [1.5, 2.5, 3.0, 5.5, 7.5, 8.0]]
    stall = stall_of(streams, arrived_at=3.0, first_token_at=6.5)
    # Before: from 1.5 on, when both decode, to 3.0: 1.0 (2.0 to 3.0), 1.0 and 0.5.
    assert stall.median_gap_s == 1.0
    # Meanwhile: 3.0, 1.0 and 2.5, 2.0; what begins after the newcomer's first token is not its doing.
    assert stall.largest_gap_s == 3.0
    assert stall.ttft_s == 3.5
    assert stall.ratio == 3.0


@pytest.mark.parametrize(("arrived_gap_s", "verdict"), [(2.0, "met"), (2.6, "MISSED")])
def test_a_row_says_whether_the_bar_is_met(arrived_gap_s: float, verdict: str) -> None:
    stall = stall_of([[0.0, 1.0, 2.0, 2.0 + arrived_gap_s]], arrived_at=2.0, first_token_at=2.0 + arrived_gap_s)
    assert row_of("512", [stall])[-1] == verdict
    assert row_of("0", [stall])[0] == "whole"


def test_streams_outlast_the_long_prompt() -> None:
    """With chunks of 64: 32 steps until all decode, 20 before the arrival, 63 of the long prompt, and 4 to spare."""
    assert output_len("64", streams=16, prompt=128, long_prompt=4000) == 32 + 20 + 63 + 4
    assert output_len("0", streams=16, prompt=128, long_prompt=4000) == 1 + 20 + 1 + 4
