"""Whole runs against a server with a will of its own, over real sockets.

How fast a run was is never asserted: a busy machine may make any of them INVALID.
"""

import os
import signal
import socket
import threading
import time
from typing import Any

import pytest

from batcher.sim.workload import Constant
from loadtest.progress import Beat, Silent
from loadtest.report import Report, make_report
from loadtest.runner import CannotConnect, run
from loadtest.target import Check, Target
from tests.loadtest.examples import make_plan
from tests.loadtest.standin import Answer, Asked, StandIn, Will, echo, say, standing_in


def run_against(will: Will = echo, *, is_tls: bool = False, **changes: Any) -> tuple[Report, StandIn]:
    with standing_in(will, is_tls=is_tls) as server:
        return make_report(run(make_plan(server.url, **changes))), server


def test_every_request_is_sent_once_and_answered() -> None:
    report, server = run_against()
    assert report.sent == report.planned == 60
    assert report.outcomes == {"ok": 60}
    assert (report.mismatched, report.duplicated) == (0, 0)
    inputs = [asked.input for asked in server.asked]
    assert len(set(inputs)) == 60
    assert {len(text) for text in inputs} == {100}
    assert {asked.headers["x-api-key"] for asked in server.asked} == {"dev-paid", "dev-free"}
    assert {asked.path for asked in server.asked} == {"/v1/run"}


def test_two_runs_of_one_seed_ask_the_same() -> None:
    first, second = ({(asked.input, asked.headers["x-api-key"]) for asked in run_against()[1].asked} for _ in range(2))
    assert first == second


def test_connections_are_kept_and_used_again() -> None:
    report, server = run_against(warm_connections=3, max_connections=3, rate=100.0)
    assert report.outcomes["ok"] == report.sent
    assert server.num_connections == 3


def test_a_server_that_closes_after_each_answer_gets_new_connections() -> None:
    report, server = run_against(lambda asked: Answer(body=echo(asked).body, is_last=True))
    assert report.outcomes == {"ok": 60}
    assert server.num_connections >= 60


def test_without_a_free_connection_a_send_is_dropped_and_the_run_invalid() -> None:
    """B93: a generator at its own limit must say so."""
    report, server = run_against(
        lambda asked: Answer(body=echo(asked).body, delay_s=0.1), warm_connections=1, max_connections=2
    )
    assert report.verdict == "INVALID"
    assert report.dropped > 0
    assert report.sent == len(server.asked)
    assert report.sent + report.dropped == report.planned


def test_a_stalled_generator_is_invalid() -> None:
    """B93: its lag counts in latency from the intended send, and not in latency from the real one."""

    class Stall(Silent):
        def show(self, beat: Beat) -> None:
            time.sleep(0.3)

    with standing_in() as server:
        report = make_report(run(make_plan(server.url, rate=100.0, duration_s=1.2), progress=Stall()))
    assert report.verdict == "INVALID"
    assert any("send lag p99" in reason for reason in report.reasons)
    assert report.send_lag_s.max is not None
    assert report.latency_s.max is not None
    assert report.latency_s.max >= report.send_lag_s.max >= 0.1
    assert report.outcomes["ok"] == report.sent == 120


def test_an_answer_to_another_question_is_seen() -> None:
    def swap(asked: Asked) -> Answer:
        return Answer(body=say("another's answer", answer_id=str(asked.number))) if asked.number % 3 == 0 else echo(asked)

    report, _ = run_against(swap)
    assert report.mismatched == report.outcomes["mismatched"] == 20
    assert report.latency_s.count == 40


def test_an_answer_id_seen_twice_is_counted() -> None:
    report, _ = run_against(lambda asked: Answer(body=say(asked.input, answer_id=str(asked.number // 2))))
    assert report.outcomes == {"ok": 60}
    assert report.duplicated == 30


def test_an_answer_to_nothing_is_counted() -> None:
    trailing = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    report, _ = run_against(lambda asked: Answer(body=echo(asked).body, trailing=trailing if asked.number == 5 else b""))
    assert report.duplicated + report.mismatched + report.outcomes.get("transport", 0) >= 1
    assert report.sent == 60


def test_a_connection_that_dies_is_an_outcome_and_nothing_is_sent_again() -> None:
    report, server = run_against(lambda asked: Answer(body=echo(asked).body, is_cut=asked.number % 4 == 0))
    assert report.outcomes == {"ok": 45, "transport": 15}
    assert len(server.asked) == 60


def test_what_is_no_http_is_a_transport_error() -> None:
    report, _ = run_against(lambda asked: Answer(head=b"SSH-2.0-what\r\n\r\n"), rate=20.0)
    assert report.outcomes == {"ok": 0, "transport": 6}


def test_a_request_without_an_answer_is_given_up() -> None:
    report, _ = run_against(lambda asked: Answer(body=echo(asked).body, delay_s=30.0 * (asked.number == 3)), timeout_s=2.0)
    assert report.outcomes.get("timeout") == 1
    assert sum(report.outcomes.values()) == 60


def test_refusals_are_kept_apart() -> None:
    report, _ = run_against(lambda asked: Answer(status=529) if asked.number % 2 else echo(asked))
    assert report.outcomes == {"ok": 30, "rejected_capacity": 30}
    assert report.statuses == {"200": 30, "529": 30}
    assert report.latency_s.count == report.rejection_latency_s.count == 30


def test_the_first_error_is_told_in_the_servers_words() -> None:
    def fail(asked: Asked) -> Answer:
        return Answer(status=404, body=b'{"detail":\n "no \x1b[31m' + b"o" * 500 + b'"}') if asked.number == 3 else echo(asked)

    report, _ = run_against(fail)
    assert report.outcomes == {"ok": 59, "client_error": 1}
    assert report.first_error is not None
    assert report.first_error.startswith('HTTP 404: {"detail": "no [31mooo')
    assert report.first_error.endswith("oo…")
    assert len(report.first_error) == 200 + len("HTTP 404: ")


def test_refusals_are_no_errors_to_tell() -> None:
    assert run_against(lambda asked: Answer(status=529, body=b"busy"))[0].first_error is None
    assert run_against(lambda asked: Answer(status=502))[0].first_error == "HTTP 502 without a text"


def test_poison_is_expected_to_fail() -> None:
    def choke(asked: Asked) -> Answer:
        return Answer(status=500) if asked.input.startswith("BOOM") else echo(asked)

    report, server = run_against(choke, poison_share=0.2, seed=1)
    num_poison = sum(asked.input.startswith("BOOM") for asked in server.asked)
    assert num_poison > 0
    assert report.outcomes == {"ok": 60 - num_poison, "poison_failed": num_poison}
    assert report.poison is not None
    assert (report.poison.sent, report.poison.failed, report.poison.answered) == (num_poison, num_poison, 0)


def test_any_endpoint_by_a_template() -> None:
    def shout(asked: Asked) -> Answer:
        return Answer(status=201, body=b'{"choices": [{"text": "you said: ' + asked.body + b'"}]}')

    with standing_in(shout) as server:
        target = Target(
            url=server.url + "/complete?v=2",
            body="<{input}>",
            headers=(("Authorization", "Bearer {key}"),),
            check=Check.CONTAINS,
            output_field="choices.0.text",
            id_field="",
        )
        report = make_report(run(make_plan(target=target, input_size=30)))
    assert report.outcomes == {"ok": 60}
    assert server.asked[0].path == "/complete?v=2"
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer dev-paid", "Bearer dev-free"}
    assert {len(asked.body) for asked in server.asked} == {32}


def test_https() -> None:
    with standing_in(is_tls=True) as server:
        insecure = Target(url=server.url + "/v1/run", is_insecure=True)
        assert make_report(run(make_plan(target=insecure, rate=50.0))).outcomes == {"ok": 15}
        with pytest.raises(CannotConnect, match="certificate"):
            run(make_plan(server.url))


def test_a_server_that_is_not_there_is_an_error_and_no_run() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(CannotConnect, match="cannot connect to http://127"):
            run(make_plan(f"http://127.0.0.1:{unused.getsockname()[1]}"))


def test_ctrl_c_ends_a_run_with_what_was_measured() -> None:
    before = signal.getsignal(signal.SIGINT)
    with standing_in() as server:
        plan = make_plan(server.url, duration_s=600.0, arrivals=Constant(100.0))
        interrupt = (0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        report = make_report(run(plan, actions=[interrupt]))
    assert report.verdict == "INVALID"
    assert report.reasons[0].startswith("interrupted after ")
    assert 0 < report.sent < 60_000
    assert sum(report.outcomes.values()) == report.sent
    assert signal.getsignal(signal.SIGINT) == before


def test_actions_happen_beside_the_traffic() -> None:
    threads: list[threading.Thread] = []
    with standing_in() as server:
        run(make_plan(server.url), actions=[(0.1, lambda: threads.append(threading.current_thread()))])
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_an_action_that_breaks_is_not_swallowed() -> None:
    def fail() -> None:
        raise ValueError("no such worker")

    with standing_in() as server, pytest.raises(ValueError, match="no such worker"):
        run(make_plan(server.url), actions=[(0.1, fail)])
