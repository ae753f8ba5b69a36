"""One meaning of refused and of error, and what is said of a run that came to nothing."""

import pytest

from loadtest.outcomes import count_errors, count_refused, describe_outcomes, describe_success, hints
from loadtest.report import Report, make_report
from loadtest.samples import Ending
from tests.loadtest.examples import end, make_plan, make_recording


def make_ended(*endings: tuple[Ending, int, int]) -> Report:
    """Sixty requests: so many with each (ending, status), and good answers to the others."""
    recording = make_recording(make_plan(poison_share=0.5))
    row = 0
    for ending, status, num in endings:
        for _ in range(num):
            end(recording.samples, row, ending, latency_s=0.01, status=status)
            row += 1
    return make_report(recording)


def test_refused_is_a_busy_server_and_an_error_is_all_else() -> None:
    report = make_ended(
        (Ending.REJECTED_CAPACITY, 529, 5), (Ending.REJECTED_RATE, 429, 4), (Ending.CLIENT_ERROR, 404, 3),
        (Ending.FAILED, 500, 2), (Ending.TIMEOUT, 0, 1), (Ending.POISON_FAILED, 500, 6), (Ending.UNFINISHED, 0, 2),
    )  # fmt: skip
    assert (count_refused(report), count_errors(report)) == (9, 6)
    assert describe_outcomes(report) == (
        "ok 37 · refused 9 · errors 6 (client error 3, failed 2, timeout 1) · unfinished 2 · poison failed 6"
    )
    assert describe_success(report) == ""
    assert hints(report) == []


@pytest.mark.parametrize(
    ("ending", "status", "num", "words"),
    [
        (Ending.CLIENT_ERROR, 404, 60, "no good answer"),
        (Ending.MISMATCHED, 200, 60, "no good answer"),
        (Ending.REJECTED_CAPACITY, 529, 60, "no good answer"),
        (Ending.FAILED, 500, 31, "most requests failed"),
        (Ending.FAILED, 500, 30, ""),
        (Ending.REJECTED_CAPACITY, 529, 59, ""),
    ],
)
def test_what_stands_beside_the_verdict(ending: Ending, status: int, num: int, words: str) -> None:
    report = make_ended((ending, status, num))
    assert report.is_valid
    assert describe_success(report) == words


@pytest.mark.parametrize(
    ("ending", "status", "word"),
    [
        (Ending.CLIENT_ERROR, 404, "--path"),
        (Ending.CLIENT_ERROR, 400, "--body"),
        (Ending.CLIENT_ERROR, 401, "--key"),
        (Ending.CLIENT_ERROR, 307, "the URL that it points to"),
        (Ending.MISMATCHED, 200, "--check"),
        (Ending.TIMEOUT, 0, "--timeout"),
        (Ending.TRANSPORT, 0, "http or https"),
    ],
)
def test_a_run_that_failed_in_one_way_is_told_what_to_try(ending: Ending, status: int, word: str) -> None:
    (hint,) = hints(make_ended((ending, status, 31)))
    assert word in hint
    assert hints(make_ended((ending, status, 30))) == []
