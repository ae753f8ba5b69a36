"""Sums by groups, and each question billed once."""

import random

from batcher.config import MAX_KEEP_S
from batcher.types import Outcome
from batcher.usage.books import Books, By, Row
from batcher.usage.record import UsageRecord
from tests.usage.examples import DAY, NOON, record


def rows(
    *records: UsageRecord, by: tuple[By, ...] = (By.KEY,), first_day: int | None = None, last_day: int | None = None
) -> tuple[list[Row], int]:
    """The rows, and how many records were not billed, whatever the order in which records come."""
    found = set()
    for seed in range(4):
        shuffled = list(records)
        random.Random(seed).shuffle(shuffled)
        with Books(by, first_day=first_day, last_day=last_day) as books:
            for each in shuffled:
                books.add(each)
            found.add((tuple(books.rows()), books.num_repeated))
    ((result, num_repeated),) = found
    return list(result), num_repeated


def test_sums_by_every_noun() -> None:
    records = (
        record(key="a", tenant="t", tier="paid", model="m", tokens=(1, 10)),
        record(key="b", tenant="t", tier="free", model="m", tokens=(2, 20), outcome=Outcome.CANCELLED),
        record(key="a", tenant="t", tier="paid", model="n", tokens=(0, 0), at=NOON + 43_200.0),
    )
    assert rows(*records) == ([Row(("a",), 2, 1, 10), Row(("b",), 1, 2, 20)], 0)
    assert rows(*records, by=(By.MODEL,))[0] == [Row(("m",), 2, 3, 30), Row(("n",), 1, 0, 0)]
    assert rows(*records, by=(By.DAY, By.TIER))[0] == [
        Row(("2026-11-30", "free"), 1, 2, 20),
        Row(("2026-11-30", "paid"), 1, 1, 10),
        Row(("2026-12-01", "paid"), 1, 0, 0),
    ]
    assert rows(*records, by=(By.TENANT,))[0] == [Row(("t",), 3, 3, 30)]
    assert rows() == ([], 0)


def test_one_question_is_billed_once_the_last_that_was_given_in_full() -> None:
    first = record("req_1", tokens=(10, 1), at=NOON, idempotency="d")
    second = record("req_2", tokens=(10, 2), at=NOON + 60, idempotency="d")
    left = record("req_3", tokens=(10, 0), at=NOON + 120, outcome=Outcome.CANCELLED, idempotency="d")
    assert rows(first, second) == ([Row(("key_a",), 1, 10, 2)], 1)
    assert rows(first, second, left) == ([Row(("key_a",), 1, 10, 2)], 2)
    assert rows(left) == ([Row(("key_a",), 1, 10, 0)], 0)
    other = record("req_4", tokens=(7, 7), idempotency="e")
    assert rows(first, other, record("req_5", tokens=(1, 1))) == ([Row(("key_a",), 3, 18, 9)], 0)


def test_a_day_later_the_key_is_another_question() -> None:
    first = record(tokens=(1, 1), at=NOON, idempotency="d")
    within = record(tokens=(2, 2), at=NOON + MAX_KEEP_S - 1, idempotency="d")
    after = record(tokens=(4, 4), at=NOON + MAX_KEEP_S, idempotency="d")
    assert rows(first, within) == ([Row(("key_a",), 1, 2, 2)], 1)
    assert rows(first, after) == ([Row(("key_a",), 2, 5, 5)], 0)
    assert rows(first, within, after) == ([Row(("key_a",), 2, 6, 6)], 1)


def test_days_asked_for() -> None:
    midnight = DAY * 86_400.0
    records = (
        record(tokens=(1, 0), at=midnight - 0.5),
        record(tokens=(2, 0), at=midnight),
        record(tokens=(4, 0), at=midnight + 86_399.5),
        record(tokens=(8, 0), at=midnight + 86_400.0),
    )
    assert rows(*records, first_day=DAY, last_day=DAY) == ([Row(("key_a",), 2, 6, 0)], 0)
    assert rows(*records, first_day=DAY) == ([Row(("key_a",), 3, 14, 0)], 0)
    assert rows(*records, last_day=DAY - 1) == ([Row(("key_a",), 1, 1, 0)], 0)


def test_a_question_answered_on_both_sides_of_midnight_is_in_one_days_bill() -> None:
    midnight = DAY * 86_400.0
    early = record(tokens=(1, 1), at=midnight - 1, idempotency="d")
    late = record(tokens=(2, 2), at=midnight + 1, idempotency="d")
    assert rows(early, late, last_day=DAY - 1)[0] == []
    assert rows(early, late, first_day=DAY)[0] == [Row(("key_a",), 1, 2, 2)]
    left = record(tokens=(2, 0), at=midnight + 1, outcome=Outcome.CANCELLED, idempotency="d")
    assert rows(early, left, first_day=DAY)[0] == []
    assert rows(early, left, last_day=DAY - 1)[0] == [Row(("key_a",), 1, 1, 1)]


def test_many_digests_beside_a_plain_model() -> None:
    rng = random.Random(3)
    records = [
        record(f"req_{n}", tokens=(n, 1), at=NOON + n, idempotency=f"d{rng.randrange(400)}", key=f"k{n % 3}")
        for n in range(2000)
    ]
    last = {each.idempotency: each for each in records}
    expected = [
        Row((key,), len(chosen), sum(each.input_tokens for each in chosen), len(chosen))
        for key in ("k0", "k1", "k2")
        for chosen in [[each for each in last.values() if each.key == key]]
    ]
    assert rows(*records) == (expected, 2000 - len(last))
