"""The book of promises: each second has room, each promise has one end, and nobody fills the book alone."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batcher.core.admission import promises as module
from batcher.core.admission.promises import EARLY_S, GRACE_S, Promises

RATE = 80.0
"""Of which 2 fit into a slot of 50 ms, half of it promised."""


def make(book: Promises, *keys: str, now: float, rate: float = RATE, at_least_s: int = 1) -> list[int | None]:
    return [book.make(key, rate=rate, at_least_s=at_least_s, now=now) for key in keys]


def test_each_gets_the_first_room_there_is() -> None:
    book = Promises()
    assert make(book, "a", "b", "c", "d", "e", now=10.0) == [1, 1, 2, 2, 3]
    assert make(book, "f", now=10.2) == [1]  # Another slot.
    assert book.num_open == book.counts.num_made == 6
    book.check()


def test_nobody_is_told_less_than_the_queue_takes() -> None:
    book = Promises()
    assert make(book, "a", "b", "c", now=10.0, at_least_s=7) == [7, 7, 8]
    assert make(book, "d", now=10.0) == [1]


def test_who_comes_when_told_redeems() -> None:
    book = Promises()
    make(book, "a", now=10.0)
    assert not book.is_due("a", now=11.0 - 2 * EARLY_S)
    assert not book.is_due("b", now=11.0)
    assert book.is_due("a", now=11.0 - EARLY_S)
    assert book.is_due("a", now=11.0 + GRACE_S)
    book.redeem("a", is_kept=True, now=11.2)
    assert not book.is_due("a", now=11.2)
    assert (book.counts.num_kept, book.num_open) == (1, 0)
    assert book.counts.late_counts == [0, 0, 1, 0, 0, 0, 0]
    assert book.counts.late_sum_s == pytest.approx(0.2)
    book.check()


def test_a_promise_that_was_not_kept_is_counted_as_broken() -> None:
    book = Promises()
    make(book, "a", now=10.0)
    book.redeem("a", is_kept=False, now=11.0)
    assert (book.counts.num_kept, book.counts.num_broken, book.num_open) == (0, 1, 0)


def test_what_nobody_redeems_expires_after_the_grace() -> None:
    book = Promises()
    make(book, "a", "b", now=10.0)
    assert not book.is_due("a", now=11.0 + GRACE_S + 0.1)
    assert (book.counts.num_expired, book.num_open) == (2, 0)
    book.check()


def test_a_key_has_a_promise_for_each_refusal_and_redeems_the_oldest_first() -> None:
    book = Promises()
    assert make(book, "a", "a", "a", now=10.0) == [1, 1, 2]
    book.redeem("a", is_kept=True, now=11.0)
    book.redeem("a", is_kept=True, now=11.0)
    assert not book.is_due("a", now=11.0)
    assert book.is_due("a", now=12.0)


def test_without_room_within_a_minute_nothing_is_promised() -> None:
    book = Promises()
    told = make(book, *map(str, range(130)), now=10.0)
    assert told == [second for second in range(1, 61) for _ in range(2)] + [60] * 10
    assert book.num_open == 120
    assert book.counts.num_unpromised == 10
    assert make(book, "x", now=10.0, rate=0.0) == [None]
    assert book.counts.num_unpromised == 11
    assert book.num_open == 120


def test_more_room_is_found_when_the_rate_grows() -> None:
    book = Promises()
    make(book, *map(str, range(200)), now=10.0)
    assert make(book, "x", now=10.0) == [60]
    assert make(book, "y", "z", now=10.0, rate=2 * RATE) == [1, 1]


@pytest.mark.parametrize("rate", [1.0, 3.0, 30.0, 500.0])
def test_no_more_is_promised_for_any_stretch_of_time_than_its_share(rate: float) -> None:
    """Of a slow replica too, where one request takes the room of many slots."""
    book, rng = Promises(), Random(1)
    due_at = []
    now = 0.0
    for number in range(3000):
        now += rng.expovariate(rate)
        made = book.counts.num_made
        seconds = book.make(f"key {number}", rate=rate, at_least_s=1, now=now)
        assert seconds is not None
        if book.counts.num_made > made:
            due_at.append(now + seconds)
    due_at.sort()
    assert len(due_at) > 500 * 0.5
    for width_s in (2.0, 10.0, 50.0):
        most = max(sum(1 for at in due_at if start <= at < start + width_s) for start in due_at[:: len(due_at) // 50])
        assert most <= rate * 0.5 * (width_s + 0.1) + 2


def test_one_key_alone_fills_half_of_the_book(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PROMISES", 20)
    book = Promises()
    make(book, *["flood"] * 50, now=10.0)
    assert book.num_open == 10
    assert make(book, "small", now=10.0) != [60]
    make(book, *map(str, range(50)), now=10.0)
    assert book.num_open == 20
    book.check()


def test_a_full_book_is_not_searched_again_and_again() -> None:
    book = Promises()
    make(book, *map(str, range(200)), now=10.0)
    looked = []

    class Taken(dict[int, int]):
        def get(self, slot: int, default: int = 0) -> int:  # type: ignore[override]
            looked.append(slot)
            return super().get(slot, default)

    book._taken = Taken(book._taken)
    make(book, *["x"] * 100, now=10.0)
    assert not looked


def test_after_a_long_silence_the_book_is_empty() -> None:
    book = Promises()
    make(book, *map(str, range(100)), now=10.0)
    assert make(book, "x", now=1e6) == [1]
    assert (book.num_open, book.counts.num_expired) == (1, 100)
    book.check()


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.data())
def test_every_promise_has_one_end(data: st.DataObject) -> None:
    """Against a plain list of (key, instant)."""
    book, model = Promises(), list[tuple[str, float]]()
    now = data.draw(st.floats(0.0, 1e5))
    for _ in range(data.draw(st.integers(1, 60))):
        now += data.draw(st.sampled_from((0.0, 0.001, 0.3, 1.0, 5.0, 70.0)))
        key = data.draw(st.sampled_from("abc"))
        model = [(of, at) for of, at in model if at >= now - GRACE_S - 0.06]
        due = [at for of, at in model if of == key and at <= now + EARLY_S]
        is_due = book.is_due(key, now=now)
        assert is_due == bool(due) or min(due) < now - GRACE_S + 0.06  # Within a slot of its end it may be either.
        if is_due and data.draw(st.booleans()):
            oldest = book._due[key][0]
            assert oldest in due
            book.redeem(key, is_kept=data.draw(st.booleans()), now=now)
            model.remove((key, oldest))
            continue
        made = book.counts.num_made
        seconds = book.make(key, rate=data.draw(st.sampled_from((0.1, 5.0, 80.0, 1e4))), at_least_s=1, now=now)
        assert seconds is not None
        assert 1 <= seconds <= 60
        if book.counts.num_made > made:
            model.append((key, now + seconds))
        book.check()
    book.is_due("a", now=now + 100.0)
    assert book.num_open == 0
    book.check()


def test_a_promise_is_the_keys_and_not_the_requests() -> None:
    """Whichever of its requests comes first when one is due redeems that one, and no other key's can."""
    promises = Promises()
    told = [promises.make("ann", rate=40.0, at_least_s=at_least_s, now=1.0) for at_least_s in (1, 3)]
    assert told == [1, 3]
    assert promises.is_due("ann", now=2.0)
    assert not promises.is_due("ben", now=2.0)
    promises.redeem("ann", is_kept=True, now=2.0)
    assert not promises.is_due("ann", now=2.5)
    assert promises.is_due("ann", now=4.0)
    promises.check()
