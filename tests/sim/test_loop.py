"""The virtual clock: order, ties, stalls, and an owner that never lets time go on."""

from random import Random

import pytest

from batcher.sim.loop import Loop
from batcher.types import Request


class Diary:
    """An owner that writes down what happens and when; its timer rings once at each instant of `deadlines`."""

    def __init__(self, loop: Loop, *deadlines: float) -> None:
        self.loop = loop
        self.deadlines = list(deadlines)
        self.lines: list[tuple[float, str]] = []

    def write(self, what: str) -> None:
        self.lines.append((self.loop.now, what))

    def arrive(self, request: Request) -> None:
        self.write(f"arrive {request.id}")

    def next_deadline(self) -> float | None:
        return self.deadlines[0] if self.deadlines else None

    def tick(self, due_at: float) -> None:
        assert due_at == self.deadlines.pop(0)
        self.write("tick")


def request(num: int, at: float) -> Request:
    return Request(num, "tenant", "paid", "x", 1, at, at + 1.0)


def test_things_happen_in_order_of_their_instants() -> None:
    loop = Loop()
    diary = Diary(loop, 2.0, 5.0)
    loop.call_at(4.0, diary.write, "event")
    loop.run(diary, iter([request(0, 1.0), request(1, 3.0)]))
    assert diary.lines == [(1.0, "arrive 0"), (2.0, "tick"), (3.0, "arrive 1"), (4.0, "event"), (5.0, "tick")]


def test_at_one_instant_events_go_first_in_the_order_of_asking_and_the_timer_last() -> None:
    loop = Loop()
    diary = Diary(loop, 1.0)
    loop.call_at(1.0, diary.write, "first asked")
    loop.call_at(1.0, diary.write, "second asked")
    loop.run(diary, iter([request(0, 1.0)]))
    assert [what for _, what in diary.lines] == ["first asked", "second asked", "arrive 0", "tick"]


def test_ties_in_an_order_drawn_from_a_seed_are_all_tried_and_come_back() -> None:
    def order(seed: int) -> tuple[str, ...]:
        loop = Loop()
        diary = Diary(loop, 1.0)
        loop.call_at(1.0, diary.write, "event")
        loop.run(diary, iter([request(0, 1.0)]), ties=Random(seed))
        return tuple(what for _, what in diary.lines)

    orders = [order(seed) for seed in range(50)]
    assert len(set(orders)) == 6
    assert orders == [order(seed) for seed in range(50)]


def test_what_is_asked_for_in_the_past_happens_now() -> None:
    loop = Loop()
    diary = Diary(loop)
    loop.call_at(2.0, loop.call_at, 1.0, diary.write, "late")
    loop.run(diary, iter(()))
    assert diary.lines == [(2.0, "late")]


def test_a_stall_delivers_what_fell_due_in_a_bunch_at_its_end() -> None:
    loop = Loop()
    diary = Diary(loop, 1.5, 3.0)
    loop.call_at(1.0, loop.stall, 1.0)
    loop.run(diary, iter([request(0, 1.2), request(1, 2.5)]))
    assert diary.lines == [(2.0, "arrive 0"), (2.0, "tick"), (2.5, "arrive 1"), (3.0, "tick")]


def test_before_the_clock_moves_the_watcher_hears_where_to() -> None:
    loop = Loop()
    diary = Diary(loop, 1.0)
    moves: list[tuple[float, float]] = []
    loop.call_at(1.0, diary.write, "event")
    loop.run(diary, iter([request(0, 3.0)]), before_advance=lambda to: moves.append((loop.now, to)))
    assert moves == [(0.0, 1.0), (1.0, 3.0)]


def test_a_timer_that_is_always_due_is_a_fault_and_no_endless_loop() -> None:
    class Restless(Diary):
        def next_deadline(self) -> float | None:
            return 1.0

        def tick(self, due_at: float) -> None:
            pass

    with pytest.raises(AssertionError, match="again after each tick"):
        Loop().run(Restless(Loop()), iter(()))
