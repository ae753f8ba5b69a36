"""What the pictures are drawn from: how wide a window is, and what it divides by."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.pictures import draw_pictures, rates, window_width
from loadtest.report import make_report
from loadtest.samples import Ending
from loadtest.stats import windows
from tests.loadtest.examples import end, make_plan, make_recording

REPORT = make_report(make_recording(make_plan()))


@pytest.mark.parametrize(
    ("measured_s", "throughput_rate", "width_s"),
    [
        (30.0, 2000.0, 0.25),
        (30.0, 100.0, 2.0),
        (11.0, 8.7, 1.0),  # Ninety-six answers of a small model: the window was a minute.
        (30.0, 1.0, 2.0),
        (3600.0, 1.0, 60.0),
        (1.0, 5000.0, 0.1),
    ],
)
def test_a_window_has_hundreds_of_answers_or_is_a_tenth_of_the_run(
    measured_s: float, throughput_rate: float, width_s: float
) -> None:
    report = msgspec.structs.replace(REPORT, measured_s=measured_s, throughput_rate=throughput_rate)
    assert window_width(report) == width_s


@given(st.floats(min_value=0.02, max_value=86_400.0), st.floats(min_value=0.0, max_value=1e5))
def test_a_window_is_at_most_a_tenth_of_the_run(measured_s: float, throughput_rate: float) -> None:
    report = msgspec.structs.replace(REPORT, measured_s=measured_s, throughput_rate=throughput_rate)
    assert 0.0 < window_width(report) <= measured_s / 10


def test_a_rate_divides_by_what_the_window_really_lasted() -> None:
    recording = make_recording(make_plan(rate=4.0, duration_s=2.5))
    completed, offered = rates(windows(recording.samples, width_s=1.0, end_s=2.5), 1.0, 2.5)
    assert offered == [4.0, 4.0, 4.0]
    assert completed == [4.0, 4.0, 4.0]


@pytest.mark.parametrize("num_good", [1, 2, 60])
def test_few_answers_can_be_drawn(tmp_path: Path, num_good: int) -> None:
    recording = make_recording(make_plan())
    for row in range(num_good, 60):
        end(recording.samples, row, Ending.TIMEOUT, latency_s=5.0, status=0)
    assert len(draw_pictures(tmp_path, make_report(recording), recording.samples)) == 2
