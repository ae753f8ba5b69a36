"""Runs of generated text against a server with a will of its own, over real sockets."""

from typing import Any

import pytest

from batcher.errors import ConfigError
from batcher.sim.lengths import Fixed, LengthMix, Uniform
from loadtest.messages import Messages, Script
from loadtest.prompts import TokenUnit
from loadtest.report import Report, make_report
from loadtest.runner import run
from loadtest.stats import Quantiles
from tests.loadtest.examples import arrive_ten, make_messages_plan
from tests.loadtest.talker import Heard, Said, Talker, chat, event, stream_of, talking


def run_against(will: Any = chat, **changes: Any) -> tuple[Report, Talker]:
    with talking(will) as server:
        return make_report(run(make_messages_plan(server.url, **changes))), server


def test_a_request_as_it_goes_out() -> None:
    settings = {"model": "m", "temperature": 0.7, "top_p": 0.9, "top_k": 40, "stop_sequences": ("STOP",)}
    report, server = run_against(messages=settings)
    assert report.outcomes == {"ok": 20}
    body = server.heard[0].body
    assert set(body) == {"model", "messages", "max_tokens", "temperature", "stream", "top_p", "top_k", "stop_sequences", "seed"}
    assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 4, True)
    assert (body["temperature"], body["top_p"], body["top_k"], body["stop_sequences"]) == (0.7, 0.9, 40, ["STOP"])
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert {len(heard.last_text.split()) for heard in server.heard} == {16}
    assert len({heard.last_text for heard in server.heard}) == 20
    assert len({heard.body["seed"] for heard in server.heard}) == 20
    assert {heard.headers["x-api-key"] for heard in server.heard} == {"dev-paid", "dev-free"}
    assert server.heard[0].headers["content-type"] == "application/json"


def test_without_temperature_no_sampling_is_asked_for() -> None:
    _, server = run_against()
    assert set(server.heard[0].body) == {"model", "messages", "max_tokens", "temperature", "stream"}


def test_tokens_are_reported_by_tier() -> None:
    report, _ = run_against()
    assert report.tokens is not None
    assert (report.tokens.input, report.tokens.output, report.tokens.gaps_left_out) == (20 * 7, 20 * 4, 0)
    assert report.tokens.output_rate * 7 == pytest.approx((report.tokens.total_rate - report.tokens.output_rate) * 4)
    assert report.stop_reasons == {"end_turn": 0, "max_tokens": 20, "stop_sequence": 0}
    assert report.ttft_s.count == report.tpot_s.count == 20
    assert report.gap_s.count == 60
    assert sum(tier.tokens.output for tier in report.tiers.values() if tier.tokens) == 80
    assert sum(tier.gap_s.count for tier in report.tiers.values()) == 60
    assert sum(tier.ttft_s.count for tier in report.tiers.values()) == 20


def test_whole_answers_have_tokens_and_no_times_of_them() -> None:
    report, server = run_against(messages={"is_streamed": False})
    assert report.outcomes == {"ok": 20}
    assert server.heard[0].body["stream"] is False
    assert report.tokens is not None
    assert report.tokens.output == 80
    assert report.ttft_s == report.tpot_s == report.gap_s == Quantiles()


def test_events_may_be_cut_anywhere() -> None:
    def cut(heard: Heard) -> Said:
        stream = b"".join(stream_of(["a", "ü", "𝄞"], answer_id=f"msg_{heard.number}"))
        step = heard.number + 1
        return Said([stream[start : start + step] for start in range(0, len(stream), step)])

    report, _ = run_against(cut)
    assert report.outcomes == {"ok": 20}
    assert report.mismatched == report.duplicated == 0


def test_failures_in_a_stream_are_of_their_own_kinds() -> None:
    """B68, B95: the status is 200 for all of these; only whole answers are in the figures."""

    def fail(heard: Heard) -> Said:
        whole_answer = stream_of(["a", "b"], answer_id=f"msg_{heard.number}")
        match heard.number % 5:
            case 0:
                return Said([*whole_answer[:3], event("error", error={"type": "overloaded_error", "message": "full"})])
            case 1:
                return Said(whole_answer[:3])
            case 2:
                return Said(whole_answer[:3], is_cut=True)
            case 3:
                return Said([b'{"type": "error"}'], status=529, kind="application/json")
        return Said(whole_answer)

    report, _ = run_against(fail)
    assert report.outcomes == {"ok": 4, "rejected_capacity": 4, "stream_error": 4, "stream_cut": 8}
    assert report.statuses == {"200": 16, "529": 4}
    assert report.ttft_s.count == report.latency_s.count == report.gap_s.count == 4
    assert report.rejection_latency_s.count == 4
    assert report.tokens is not None
    assert report.tokens.output == 8


def test_answers_that_cannot_be_are_mismatched_and_ids_seen_twice_duplicated() -> None:
    def lie(heard: Heard) -> Said:
        if heard.number % 2:
            return Said(stream_of(["a"] * 5, answer_id=f"msg_{heard.number}"))
        return Said(stream_of(["a"], answer_id="msg_again"))

    report, _ = run_against(lie)
    assert report.outcomes == {"ok": 10, "mismatched": 10}
    assert report.duplicated == 9


def test_an_answer_without_text_is_measured_as_such() -> None:
    report, _ = run_against(lambda heard: Said(stream_of([], answer_id=f"msg_{heard.number}")))
    assert report.outcomes == {"ok": 20}
    assert report.ttft_s == report.gap_s == report.tpot_s == Quantiles()
    assert report.tokens is not None
    assert report.tokens.output == 0


def test_one_seed_asks_the_same_of_every_server() -> None:
    def refuse_half(heard: Heard) -> Said:
        return chat(heard) if heard.number % 2 else Said([b""], status=529)

    settings = {"prompt_tokens": Uniform(8, 40), "output_tokens": LengthMix(((8, 3.0), (20, 1.0))), "temperature": 1.0}
    bodies = [
        sorted(str(heard.body) for heard in run_against(will, messages=settings, seed=seed)[1].heard)
        for will, seed in ((chat, 3), (refuse_half, 3), (chat, 4))
    ]
    assert bodies[0] == bodies[1]
    assert bodies[0] != bodies[2]


def test_lengths_are_drawn_by_turn_whatever_is_asked_first() -> None:
    messages = Messages(
        prompt_tokens=Uniform(1, 1000), output_tokens=Uniform(1, 1000), turns=3, max_prompt_tokens=500, prefix_groups=4
    )
    places = [(conversation, turn) for conversation in range(20) for turn in range(3)]
    forwards, backwards = Script(messages, seed=1), Script(messages, seed=1)
    first = {place: (forwards.turn(*place), forwards.group(place[0])) for place in places}
    second = {place: (backwards.turn(*place), backwards.group(place[0])) for place in reversed(places)}
    assert first == second
    assert max(prompt for (prompt, _), _ in first.values()) == 500
    assert len({output for (_, output), _ in first.values()}) > 40
    assert {group for _, group in first.values()} == {0, 1, 2, 3}


def test_prefixes_are_shared_by_groups() -> None:
    settings = {"shared_prefix_tokens": 48, "prefix_groups": 2}
    _, server = run_against(messages=settings)
    words = [heard.last_text.split() for heard in server.heard]
    assert {len(text) for text in words} == {64}
    assert len({tuple(text[:48]) for text in words}) == 2
    assert len({tuple(text[48:]) for text in words}) == 20


def test_a_byte_may_be_a_token() -> None:
    _, server = run_against(messages={"unit": TokenUnit.BYTE, "shared_prefix_tokens": 32, "prompt_tokens": Fixed(20)})
    assert {len(heard.last_text) for heard in server.heard} == {52}
    assert len({heard.last_text[:32] for heard in server.heard}) == 1


def test_a_conversation_repeats_what_was_said() -> None:
    report, server = run_against(messages={"turns": 3, "shared_prefix_tokens": 10}, arrivals=arrive_ten(), duration_s=60.0)
    assert report.outcomes == {"ok": 30}
    assert report.planned == report.sent == 30
    by_length = {num: [heard for heard in server.heard if len(heard.body["messages"]) == num] for num in (1, 3, 5)}
    assert [len(heard) for heard in by_length.values()] == [10, 10, 10]
    for longer in by_length[5]:
        roles = [message["role"] for message in longer.body["messages"]]
        assert roles == ["user", "assistant", "user", "assistant", "user"]
        shorter = next(heard for heard in by_length[3] if heard.body["messages"] == longer.body["messages"][:3])
        assert longer.body["messages"][3]["content"] == f" {shorter.number}" * 4
        assert longer.headers["x-api-key"] == shorter.headers["x-api-key"]
    lengths = [len(message["content"].split()) for message in by_length[5][0].body["messages"]]
    assert lengths == [26, 4, 16, 4, 16]


def test_a_conversation_ends_with_its_first_failure() -> None:
    def refuse_second(heard: Heard) -> Said:
        return chat(heard) if len(heard.body["messages"]) == 1 else Said([b""], status=529)

    report, _ = run_against(refuse_second, messages={"turns": 5}, arrivals=arrive_ten(), duration_s=60.0)
    assert report.outcomes == {"ok": 10, "rejected_capacity": 10}
    assert report.sent == report.planned == 20


def test_a_turn_counts_from_the_end_of_the_last_and_the_thinking() -> None:
    with talking() as server:
        settings = {"turns": 2, "think_time_s": 0.05}
        recording = run(make_messages_plan(server.url, messages=settings, arrivals=arrive_ten(), duration_s=60.0))
    samples, tokens = recording.samples, recording.samples.tokens
    assert tokens is not None
    first = {tokens.conversation[row]: row for row in range(len(samples)) if tokens.turn[row] == 0}
    seconds = [row for row in range(len(samples)) if tokens.turn[row] == 1]
    assert len(first) == len(seconds) == 10
    for row in seconds:
        assert samples.planned_at[row] == pytest.approx(samples.ended_at[first[tokens.conversation[row]]] + 0.05)
        assert samples.sent_at[row] >= samples.planned_at[row]


def test_no_turn_is_asked_after_the_end() -> None:
    report, _ = run_against(messages={"turns": 2, "think_time_s": 0.5})
    assert report.outcomes == {"ok": 20}
    assert report.planned == 20


@pytest.mark.parametrize(
    "changes",
    [
        {"concurrency": 3},
        {"num_requests": 3},
        {"arrivals": None},
        {"poison_share": 0.1},
        {"slo_ttft_s": 0.0},
        {"arrivals": None, "concurrency": 3, "num_requests": 0},
        {"messages": {"turns": 0}},
        {"messages": {"think_time_s": -1.0}},
        {"messages": {"prefix_groups": 0}},
        {"messages": {"shared_prefix_tokens": -1}},
        {"messages": {"temperature": -1.0}},
        {"messages": {"max_prompt_tokens": 0}},
        {"messages": {"model": ""}},
    ],
)
def test_what_cannot_be_asked_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_messages_plan(**changes)


def test_answers_are_good_within_all_their_slos() -> None:
    def goodput(**slos: float) -> float:
        return run_against(**slos)[0].goodput_rate

    assert goodput() == 100.0
    assert goodput(slo_ttft_s=30.0, slo_tpot_s=30.0) == 100.0
    assert goodput(slo_ttft_s=1e-9) == 0.0
    assert goodput(slo_s=1e-9) == 0.0
