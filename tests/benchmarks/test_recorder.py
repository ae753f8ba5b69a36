"""What passes through a recorder is written down and unchanged, but for the lengths that were planned."""

from array import array

from backends.base import KvLayout
from batcher.types import GREEDY, ScheduledSequence, Step
from benchmarks.recorder import Part, Recorder

STOP, TOKEN, OTHER = 2, 7, 0
"""OTHER is the lowest id that stops nothing."""


class FixedBackend:
    """Implements StepBackend: each sampled sequence gets `token`."""

    max_inflight_steps = 1

    def __init__(self, token: int) -> None:
        self.token = token
        self.steps: list[Step] = []

    def load(self, layout: KvLayout) -> None:
        self.max_inflight_steps = 2

    def launch(self, step: Step) -> None:
        self.steps.append(step)

    def collect(self) -> list[int]:
        return [self.token] * self.steps.pop(0).num_sampled

    def close(self) -> None:
        self.steps.clear()


class Clock:
    """Goes on by a second at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def make_recorder(token: int = TOKEN) -> Recorder:
    return Recorder(FixedBackend(token), stop_ids=frozenset((STOP,)), clock=Clock())


def make_step(*parts: Part) -> Step:
    sequences = [
        ScheduledSequence(part.sequence_id, 0, [5] * part.num_tokens, part.start, array("i", [0]), part.is_sampled, GREEDY)
        for part in parts
    ]
    return Step(1, tuple(sequences), sum(part.num_tokens for part in parts))


def run(recorder: Recorder, *parts: Part) -> list[int]:
    recorder.launch(make_step(*parts))
    return recorder.collect()


def decode(sequence_id: int) -> Part:
    return Part(sequence_id, 3, 1, True)


def test_steps_and_token_times_are_written_down() -> None:
    recorder = make_recorder()
    chunk = Part(2, 0, 4, False)
    assert run(recorder, decode(1), chunk) == [TOKEN]
    assert run(recorder, decode(1)) == [TOKEN]
    assert recorder.token_times == {1: [2.0, 4.0]}
    first, second = recorder.steps
    assert (first.parts, first.launched_at, first.ended_at) == ((decode(1), chunk), 1.0, 2.0)
    assert (first.num_tokens, first.is_decode, second.is_decode) == (5, False, True)
    recorder.clear()
    assert not recorder.steps
    assert not recorder.token_times


def test_a_planned_answer_stops_where_it_was_planned() -> None:
    recorder = make_recorder()
    recorder.planned[1] = 2
    assert [run(recorder, decode(1), decode(2)) for _ in range(2)] == [[TOKEN, TOKEN], [STOP, TOKEN]]


def test_a_planned_answer_does_not_stop_before() -> None:
    recorder = make_recorder(token=STOP)
    recorder.planned[1] = 2
    assert [run(recorder, decode(1)) for _ in range(2)] == [[OTHER], [STOP]]


def test_a_token_behind_the_planned_stop_counts_for_nothing() -> None:
    """On a device the next step is launched before the stop token is collected."""
    recorder = make_recorder()
    recorder.planned[1] = 1
    recorder.launch(make_step(decode(1)))
    recorder.launch(make_step(decode(1)))
    assert recorder.collect() == [STOP]
    recorder.collect()
    assert len(recorder.token_times[1]) == 1


def test_it_takes_as_many_steps_as_the_backend_does_once_it_is_loaded() -> None:
    recorder = make_recorder()
    recorder.load(KvLayout(num_blocks=2, max_num_seqs=1, max_model_len=16, max_step_tokens=16))
    assert recorder.max_inflight_steps == 2
