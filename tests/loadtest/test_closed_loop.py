"""Closed loops: so many at a time, over real sockets."""

import os
import signal
from typing import Any

import pytest

from loadtest.report import Report, make_report
from loadtest.runner import run
from tests.loadtest.examples import make_closed_plan, make_plan
from tests.loadtest.standin import standing_in
from tests.loadtest.talker import Heard, Said, Talker, chat, talking


def run_closed(will: Any = chat, **changes: Any) -> tuple[Report, Talker]:
    with talking(will) as server:
        return make_report(run(make_closed_plan(server.url, **changes))), server


def test_a_closed_loop_asks_so_many_at_a_time() -> None:
    report, server = run_closed(concurrency=3, num_requests=40)
    assert report.outcomes == {"ok": 40}
    assert 1 <= server.most_at_once <= 3
    assert (report.loop, report.concurrency, report.planned, report.sent) == ("closed", 3, 40, 40)
    assert report.duration_s == report.measured_s < 60.0
    assert report.throughput_rate == pytest.approx(40 / report.measured_s)
    assert len({heard.last_text for heard in server.heard}) == 40


def test_a_closed_loop_of_fewer_requests_than_users() -> None:
    report, _ = run_closed(concurrency=9, num_requests=2)
    assert report.outcomes == {"ok": 2}


def test_a_closed_loop_of_conversations() -> None:
    report, server = run_closed(concurrency=2, num_requests=11, messages={"turns": 3})
    assert report.outcomes == {"ok": 11}
    lengths = sorted(len(heard.body["messages"]) for heard in server.heard)
    assert lengths.count(1) in (4, 5)
    assert lengths.count(1) >= lengths.count(3) >= lengths.count(5) >= 2


def test_a_closed_loop_ends_with_its_duration() -> None:
    report, server = run_closed(concurrency=2, num_requests=None, duration_s=0.2)
    assert report.outcomes["ok"] == len(server.heard) > 0
    assert report.verdict == "VALID" or "send lag" in report.reasons[0] or "core" in report.reasons[0]


def test_a_closed_loop_rests_after_a_failure() -> None:
    """A server that refuses at once was asked thousands of times in a blink."""
    report, server = run_closed(lambda heard: Said([b""], status=529), concurrency=2, num_requests=None, duration_s=0.35)
    assert set(report.outcomes) == {"ok", "rejected_capacity"}
    assert len(server.heard) <= 8


def test_a_closed_loop_goes_on_where_connections_do_not_stay() -> None:
    def leave(heard: Heard) -> Said:
        return Said(chat(heard).pieces[:1], is_cut=True) if heard.number % 4 == 0 else chat(heard)

    report, _ = run_closed(leave, concurrency=2, num_requests=12)
    assert report.sent == 12
    assert set(report.outcomes) == {"ok", "stream_cut"}


def test_any_endpoint_can_be_asked_in_a_closed_loop() -> None:
    with standing_in() as server:
        plan = make_plan(server.url, arrivals=None, concurrency=4, num_requests=50, duration_s=60.0)
        report = make_report(run(plan))
    assert report.outcomes == {"ok": 50}
    assert len({asked.input for asked in server.asked}) == 50
    assert report.tokens is None


def test_a_closed_loop_that_is_interrupted_says_so() -> None:
    with talking() as server:
        plan = make_closed_plan(server.url, concurrency=2, num_requests=None, duration_s=600.0)
        report = make_report(run(plan, actions=[(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))]))
    assert report.verdict == "INVALID"
    assert report.reasons[0].startswith("interrupted after ")
    assert report.outcomes["ok"] > 0
