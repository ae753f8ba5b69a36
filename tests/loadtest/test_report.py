"""report.json: its shape, what is kept apart from what, and when a run may not be believed."""

from typing import Any

import msgspec
import pytest

from batcher.sim.workload import Constant, Mix, Sender
from loadtest import tokens as tokens_module
from loadtest.report import Report, encode_report, label_key, make_report
from loadtest.runner import Recording
from loadtest.samples import Ending
from loadtest.stats import Quantiles
from tests.loadtest.examples import end, generate, make_messages_plan, make_plan, make_recording

STABLE_KEYS = {
    "verdict", "reasons", "seed", "url", "offered_rate", "duration_s", "sent", "dropped", "outcomes", "statuses",
    "mismatched", "latency_s", "service_latency_s", "rejection_latency_s", "ttft_s", "tpot_s", "tiers", "throughput_rate",
    "goodput_rate", "slo_s", "send_lag_s", "generator_cpu_s",
}  # fmt: skip
QUANTILE_KEYS = {"p50", "p90", "p95", "p99", "p999", "max", "mean"}


def make_thousand(**changes: Any) -> Recording:
    return make_recording(make_plan(arrivals=Constant(100.0), duration_s=10.0, **changes))


def test_a_run_that_kept_its_schedule_is_valid() -> None:
    report = make_report(make_thousand())
    assert (report.verdict, report.reasons) == ("VALID", [])
    assert (report.planned, report.sent, report.dropped) == (1000, 1000, 0)
    assert report.offered_rate == report.throughput_rate == report.goodput_rate == 100.0
    assert report.latency_s.p95 == pytest.approx(0.2)
    assert report.service_latency_s.p95 == pytest.approx(0.2)
    assert report.statuses == {"200": 1000}


def test_the_stable_keys_are_there_with_the_verdict_first() -> None:
    encoded = encode_report(make_report(make_thousand()))
    fields = msgspec.json.decode(encoded)
    assert set(fields) >= STABLE_KEYS
    assert list(fields)[:2] == ["verdict", "reasons"]
    for block in (fields, fields["tiers"]["paid"], fields["tiers"]["free"], fields["keys"]["dev-paid"]):
        for name in ("latency_s", "service_latency_s", "rejection_latency_s", "ttft_s", "tpot_s"):
            assert set(block[name]) >= QUANTILE_KEYS
    assert set(fields["send_lag_s"]) == {"p50", "p99", "max"}
    assert len(fields["seconds"]) == 10
    assert msgspec.json.decode(encoded, type=Report) == make_report(make_thousand())


def test_what_was_not_measured_is_null_and_never_0() -> None:
    fields = msgspec.json.decode(encode_report(make_report(make_thousand())))
    for name in ("rejection_latency_s", "ttft_s", "tpot_s"):
        assert {fields[name][key] for key in QUANTILE_KEYS} == {None}
    assert fields["poison"] is None


def test_refusals_and_errors_leave_latency_and_goodput_alone() -> None:
    """B95: 30 % fast refusals and 5 % errors; a fast 529 must not improve p50."""
    recording = make_thousand()
    for row in range(1000):
        if row % 10 < 3:
            end(recording.samples, row, Ending.REJECTED_CAPACITY, latency_s=0.001, status=529)
        elif row % 20 == 3:
            end(recording.samples, row, Ending.FAILED, latency_s=0.01, status=500)
    report = make_report(recording)
    assert report.verdict == "VALID"
    assert report.outcomes == {"ok": 650, "rejected_capacity": 300, "failed": 50}
    assert sum(report.outcomes.values()) == report.sent
    assert report.latency_s.p50 == pytest.approx(0.2)
    assert report.latency_s.count == 650
    assert report.rejection_latency_s.count == 300
    assert report.rejection_latency_s.max == pytest.approx(0.001)
    assert report.throughput_rate == report.goodput_rate == 65.0


def test_slow_answers_are_throughput_and_no_goodput() -> None:
    recording = make_thousand(slo_s=0.3)
    for row in range(100):
        end(recording.samples, row, Ending.OK, latency_s=0.31, status=200)
    report = make_report(recording)
    assert (report.throughput_rate, report.goodput_rate) == (100.0, 90.0)


def test_service_latency_counts_from_the_real_send() -> None:
    recording = make_thousand()
    recording.samples.sent_at[0] = recording.samples.planned_at[0] + 0.15
    report = make_report(recording)
    assert report.latency_s.max == pytest.approx(0.2)
    assert quantile_min(recording) == pytest.approx(0.05)
    assert report.send_lag_s.max == pytest.approx(0.15)


def quantile_min(recording: Recording) -> float:
    samples = recording.samples
    return min(ended - sent for ended, sent in zip(samples.ended_at, samples.sent_at, strict=True))


def test_tiers_add_up() -> None:
    report = make_report(make_thousand())
    assert report.tiers.keys() == {"paid", "free"}
    assert sum(tier.sent for tier in report.tiers.values()) == report.sent
    assert sum(tier.latency_s.count for tier in report.tiers.values()) == report.latency_s.count
    assert sum(tier.goodput_rate for tier in report.tiers.values()) == pytest.approx(report.goodput_rate)


def test_late_sends_make_a_run_invalid() -> None:
    recording = make_thousand()
    for row in range(11):
        recording.samples.sent_at[row] += 0.02
    report = make_report(recording)
    assert report.verdict == "INVALID"
    assert report.reasons == ["send lag p99 is 20.0 ms, more than 10"]


def test_dropped_sends_make_a_run_invalid() -> None:
    recording = make_thousand()
    recording.samples.ending[5] = Ending.DROPPED
    report = make_report(recording)
    assert report.verdict == "INVALID"
    assert (report.planned, report.sent, report.dropped) == (1000, 999, 1)
    assert "1 sends were dropped" in report.reasons[0]
    assert report.reasons[1] == "sent 999 of 1,000 planned requests"


def test_a_saturated_generator_makes_a_run_invalid() -> None:
    plan = make_plan(arrivals=Constant(100.0), duration_s=10.0)
    report = make_report(make_recording(plan, generator_cpu_s=9.5))
    assert report.reasons == ["the generator used 95% of its core, more than 90%"]


def test_an_interrupted_run_is_invalid_and_still_measured() -> None:
    plan = make_plan(arrivals=Constant(100.0), duration_s=10.0)
    recording = make_recording(plan, is_interrupted=True, measured_s=5.0)
    for row in range(500, 1000):
        recording.samples.ending[row] = Ending.UNSENT
        recording.samples.status[row] = 0
    report = make_report(recording)
    assert report.reasons == ["interrupted after 5.0 of 10 s", "sent 500 of 1,000 planned requests"]
    assert report.throughput_rate == 100.0
    assert len(report.seconds) == 5


def test_a_run_without_any_answer_has_no_latency() -> None:
    recording = make_thousand()
    for row in range(1000):
        end(recording.samples, row, Ending.TRANSPORT, latency_s=0.1, status=0)
    report = make_report(recording)
    assert report.outcomes == {"ok": 0, "transport": 1000}
    assert report.latency_s == Quantiles()
    assert report.statuses == {}


def test_poison_is_reported_apart() -> None:
    recording = make_thousand(poison_share=0.01)
    poison = [row for row in range(1000) if recording.samples.is_poison[row]]
    for row in poison:
        end(recording.samples, row, Ending.POISON_FAILED, latency_s=0.9, status=500)
    end(recording.samples, poison[0], Ending.POISON_ANSWERED, latency_s=0.9, status=200)
    report = make_report(recording)
    assert report.poison is not None
    assert (report.poison.sent, report.poison.failed, report.poison.answered) == (len(poison), len(poison) - 1, 1)
    assert report.latency_s.max == pytest.approx(0.2)


def test_real_keys_are_never_written() -> None:
    sender = Sender("sk-live-very-secret", "paid", 1.0)
    encoded = encode_report(make_report(make_thousand(mix=Mix((sender,)))))
    assert b"secret" not in encoded
    assert label_key(sender).encode() in encoded
    assert label_key(Sender("dev-paid-7", "paid", 1.0)) == "dev-paid-7"


def test_a_key_that_an_error_quotes_is_never_written() -> None:
    recording = make_thousand(mix=Mix((Sender("sk-live-very-secret", "paid", 1.0),)))
    recording.samples.first_error = "HTTP 401: no such key: sk-live-very-secret"
    report = make_report(recording)
    assert report.first_error is not None
    assert report.first_error.startswith("HTTP 401: no such key: sk-l...")
    assert b"secret" not in encode_report(report)


def test_an_interrupted_closed_loop_tells_its_requests() -> None:
    plan = make_plan(arrivals=None, concurrency=4, num_requests=96, duration_s=3600.0)
    samples = make_recording(make_plan()).samples
    recording = make_recording(plan, samples=samples, is_interrupted=True, measured_s=11.0, wall_s=11.0)
    assert make_report(recording).reasons == ["interrupted after 11.0 s: 60 of 96 requests"]


def test_the_keys_shown_are_bounded() -> None:
    mix = Mix(tuple(Sender(f"dev-free-{number}", "free", 1.0) for number in range(120)))
    report = make_report(make_thousand(mix=mix))
    assert len(report.keys) == 50
    assert report.num_keys == 120


def make_generated(**changes: Any) -> Recording:
    """Twenty answers of generated text: TTFT 0.5 s, then nine gaps of 10 ms."""
    recording = make_recording(make_messages_plan(**changes))
    for row in range(20):
        generate(recording.samples, row, ttft_s=0.5, gaps_s=[0.01] * 9)
    return recording


def test_tokens_are_in_every_block() -> None:
    fields = msgspec.json.decode(encode_report(make_report(make_generated())))
    blocks = (fields, fields["tiers"]["paid"], fields["tiers"]["free"], fields["keys"]["dev-paid"])
    for block in blocks:
        assert set(block["gap_s"]) >= QUANTILE_KEYS
        assert block["ttft_s"]["p50"] == pytest.approx(0.5)
        assert [block["tpot_s"]["p99"], block["gap_s"]["max"]] == pytest.approx([0.01, 0.01])
        assert block["tokens"].keys() == {"input", "output", "output_rate", "total_rate", "gaps_left_out"}
        assert block["stop_reasons"] == {"end_turn": block["sent"], "max_tokens": 0, "stop_sequence": 0}
    assert (fields["tokens"]["input"], fields["tokens"]["output"]) == (140, 200)
    assert sum(tier["tokens"]["output"] for tier in fields["tiers"].values()) == 200
    assert (fields["loop"], fields["concurrency"]) == ("open", None)


def test_without_generated_text_there_are_no_tokens() -> None:
    fields = msgspec.json.decode(encode_report(make_report(make_thousand())))
    assert fields["tokens"] is fields["stop_reasons"] is fields["tiers"]["paid"]["tokens"] is None
    assert {fields["gap_s"][key] for key in QUANTILE_KEYS} == {None}


def test_rates_of_tokens_divide_by_the_time_that_the_tokens_took() -> None:
    """An overloaded server that answered 0.2 s of traffic in 4 s was told to be twenty times as fast as it is."""
    recording = make_generated()
    generate(recording.samples, 0, ttft_s=3.0, gaps_s=[0.1] * 10, output_tokens=20)
    report = make_report(recording)
    assert report.tokens is not None
    assert report.tokens.output_rate == pytest.approx((190 + 20) / 4.0)
    assert report.tokens.total_rate == pytest.approx((140 + 190 + 20) / 4.0)


def test_a_longest_gap_is_told_though_its_gaps_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens_module, "MAX_GAPS", 100)
    recording = make_generated()
    generate(recording.samples, 19, ttft_s=0.5, gaps_s=[0.01, 2.0])
    report = make_report(recording)
    assert report.tokens is not None
    assert report.tokens.gaps_left_out == 8 * 9 + 2
    assert report.gap_s.count == 99
    assert report.gap_s.p99 == pytest.approx(0.01)
    assert report.gap_s.max == pytest.approx(2.0)
    assert report.tpot_s.count == 20


def test_goodput_of_generated_text_is_within_the_slos_of_its_tokens() -> None:
    recording = make_generated(slo_ttft_s=0.6, slo_tpot_s=0.05)
    generate(recording.samples, 0, ttft_s=0.7, gaps_s=[0.01])
    generate(recording.samples, 1, ttft_s=0.5, gaps_s=[0.06])
    generate(recording.samples, 2, ttft_s=0.5, gaps_s=[])
    report = make_report(recording)
    assert report.throughput_rate == pytest.approx(100.0)
    assert report.goodput_rate == pytest.approx(90.0)
    assert (report.slo_s, report.slo_ttft_s, report.slo_tpot_s) == (None, 0.6, 0.05)
