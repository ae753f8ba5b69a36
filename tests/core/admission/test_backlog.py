"""What was let in and has not started, what of it is ahead of whom, and how fast such work starts."""

from math import inf, isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batcher.core.admission.backlog import RATE_MEMORY_S, Ahead, Backlog, StartRate, Waiting, with_margin, work_before


def add(backlog: Backlog, sequence_id: int, *, tier: str = "paid", tenant: str = "ann", since: float = 1.0) -> None:
    """A prompt of 100 tokens and an answer of 50."""
    backlog.add(Waiting(sequence_id, tier, tenant, 100, 150.0, since))


def test_it_counts_what_was_sent_at_once_and_until_it_starts() -> None:
    """B87: a burst within one step of the engine."""
    backlog = Backlog(("paid", "free"))
    for number in range(10):
        assert backlog.ahead_of("paid", "ann") == Ahead(number, 100.0 * number, 150.0 * number)
        add(backlog, number)
    backlog.start(3)
    backlog.end(4)
    assert backlog.ahead_of("paid", "ann") == Ahead(8, 800.0, 1200.0)
    assert backlog.num_running() == [1, 0]
    backlog.end(3)
    assert backlog.num_running() == [0, 0]
    backlog.check()


def test_higher_tiers_are_ahead_and_lower_ones_are_not() -> None:
    backlog = Backlog(("paid", "free"))
    add(backlog, 1)
    add(backlog, 2, tier="free", tenant="ben")
    assert backlog.ahead_of("paid", "cid").num == 1
    assert backlog.ahead_of("free", "cid").num == 2


def test_of_a_flood_only_one_is_ahead_of_another_tenant() -> None:
    """S1.4: tenants take turns."""
    backlog = Backlog(("paid",))
    for number in range(50):
        add(backlog, number, tenant="flood")
    add(backlog, 50, tenant="ben")
    assert backlog.ahead_of("paid", "flood").num == 51
    assert backlog.ahead_of("paid", "ben").num == 3
    assert backlog.ahead_of("paid", "cid") == Ahead(2, 200.0, 300.0)


def test_what_it_does_not_know_changes_nothing() -> None:
    """Starts and ends cross: one that ended here may be heard of as started later."""
    backlog = Backlog(("paid",))
    add(backlog, 1)
    backlog.end(1)
    backlog.start(1)
    backlog.end(1)
    assert len(backlog) == 0
    assert backlog.num_running() == [0]


def test_an_answer_is_expected_to_be_as_long_as_answers_were_and_no_longer_than_it_may() -> None:
    backlog = Backlog(("paid",))
    assert backlog.work_of(10, 500) == 510
    backlog.end(1, answer_len=100)
    assert backlog.work_of(10, 500) == 110
    assert backlog.work_of(10, 20) == 30
    for _ in range(200):
        backlog.end(1, answer_len=300)
    assert backlog.work_of(10, 500) == pytest.approx(310, abs=1)


def test_who_waited_too_long_is_found_in_lower_tiers_only() -> None:
    backlog = Backlog(("paid", "free"))
    add(backlog, 1, since=1.0)
    add(backlog, 2, tier="free", since=2.0)
    add(backlog, 3, tier="free", since=3.0)
    assert [entry.sequence_id for entry in backlog.late(before=2.5)] == [2]


def test_without_a_sample_everybody_may_enter() -> None:
    """B11."""
    rate = StartRate()
    assert rate.rate(150.0, 50.0) == inf
    assert rate.sure_rate == 0.0
    rate.advance(is_held=False, now=50.0)
    assert rate.rate(150.0, 50.0) == inf


def test_the_longer_nothing_starts_the_lower_is_the_rate() -> None:
    """The slots have just been filled: nobody knows when the first of them ends."""
    rate = StartRate()
    rate.advance(is_held=True, now=1.0)
    rate.advance(is_held=True, now=2.0)
    assert rate.rate(150.0, 50.0) == pytest.approx(150.0)
    rate.advance(is_held=True, now=4.0)
    assert 50.0 < rate.rate(150.0, 50.0) < 65.0
    assert rate.sure_rate == 0.0


def test_a_steady_stream_is_measured_as_what_it_is() -> None:
    rate = StartRate()
    for step in range(400):
        rate.advance(is_held=True, now=step * 0.1)
        rate.observe(200.0)
    assert rate.rate(200.0, 50.0) == pytest.approx(2000.0, rel=0.03)
    assert rate.sure_rate == pytest.approx(2000.0, rel=0.03)


def test_before_anything_has_ended_the_pace_of_decoding_tells_the_rate() -> None:
    """A cold start: 30 sequences run, each decodes 50 tokens a second, and an answer is of 50: 30 places a second."""
    rate = StartRate()
    rate.advance(is_held=True, num_decoded=700, now=1.0)
    rate.advance(is_held=True, num_decoded=700 + 150, now=1.1)
    assert rate.rate(150.0, 50.0) == pytest.approx(30 * 150.0, rel=0.1)
    rate.advance(is_held=True, num_decoded=700 + 1500, now=2.0)
    assert rate.rate(150.0, 50.0) == pytest.approx(30 * 150.0, rel=0.25)
    assert rate.sure_rate == 0.0


def test_what_is_decoded_while_nothing_is_held_says_nothing() -> None:
    rate = StartRate()
    rate.advance(is_held=False, num_decoded=0, now=1.0)
    rate.advance(is_held=True, num_decoded=10**6, now=2.0)
    assert rate.rate(150.0, 50.0) == inf
    rate.advance(is_held=True, num_decoded=10**6, now=3.0)
    assert rate.rate(150.0, 50.0) == pytest.approx(150.0)


def test_an_engine_that_starts_anew_counts_from_nothing() -> None:
    rate = StartRate()
    rate.advance(is_held=True, num_decoded=5000, now=1.0)
    rate.advance(is_held=True, num_decoded=20, now=2.0)
    assert rate.rate(150.0, 50.0) > 0.0


def test_of_few_ahead_the_time_varies_by_more_of_itself_than_of_many() -> None:
    assert with_margin(0.0, 150.0) == 0.0
    assert with_margin(9 * 150.0, 150.0) == pytest.approx((9 + 1.64 * 3) * 150.0)
    assert with_margin(900 * 150.0, 150.0) == pytest.approx((900 + 1.64 * 30) * 150.0)


def test_what_starts_while_nothing_is_held_says_nothing() -> None:
    rate = StartRate()
    for step in range(100):
        rate.advance(is_held=True, now=step * 0.1)
        rate.observe(200.0)
    before = rate.rate(0.0, 50.0)
    rate.advance(is_held=False, now=10.0)
    rate.observe(10**6)
    rate.advance(is_held=False, now=10.0 + 3 * RATE_MEMORY_S)
    assert rate.rate(0.0, 50.0) == pytest.approx(before, rel=0.02)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from((0.0, 1e-6, 0.1, 5.0, 1e4)), st.booleans(), st.floats(0.0, 1e7), st.integers(0, 10**6)),
        max_size=30,
    )
)
def test_the_rate_is_never_negative_and_only_infinite_without_a_sample(events: list[tuple[float, bool, float, int]]) -> None:
    """B10."""
    rate, now = StartRate(), 0.0
    for passed_s, is_held, work, num_decoded in events:
        now += passed_s
        rate.advance(is_held=is_held, num_decoded=num_decoded, now=now)
        rate.observe(work)
        found = rate.rate(100.0, 50.0)
        assert found > 0.0
        assert isfinite(found) or rate._span_s <= 1e-3
        assert 0.0 <= rate.sure_rate < inf


AHEAD = Ahead(10, 1000.0, 1500.0)


@pytest.mark.parametrize(
    ("ahead", "slots", "tokens", "higher_share", "expected"),
    [
        (Ahead(0, 0.0, 0.0), 1, 1, 0.9, 0.0),  # A place is free.
        (AHEAD, 11, 2000, 0.9, 0.0),  # For all of them and this one.
        (AHEAD, 10, 2000, 0.0, 0.0),  # It has not one of its own, and nobody else wants the next.
        (AHEAD, 10, 2000, 0.5, 75.0),
        (AHEAD, 4, 2000, 0.0, 900.0),
        (AHEAD, 11, 250, 0.0, 1125.0),  # Memory is what is short.
        (AHEAD, 0, 0, 0.0, 1500.0),
        (Ahead(0, 0.0, 0.0), 0, 0, 0.0, 0.0),  # The first in line is always let in.
        (Ahead(0, 0.0, 0.0), 0, 0, 7.0, 147.0),  # But where higher tiers take every place.
    ],
)
def test_only_what_has_no_free_place_is_before_one(
    ahead: Ahead, slots: int, tokens: int, higher_share: float, expected: float
) -> None:
    work = work_before(ahead, num_free_slots=slots, num_free_tokens=tokens, own_work=150.0, higher_share=higher_share)
    assert work == pytest.approx(expected)
