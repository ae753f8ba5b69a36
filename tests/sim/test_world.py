"""The shell's stand-in, on worlds small enough to be worked out by hand."""

from random import Random

from batcher.config import DEFAULT_TIERS, DispatchConfig, PolicyName
from batcher.core.admission.gate import Gate
from batcher.core.dispatch.dispatcher import Dispatcher
from batcher.sim.faults import KILLER, POISON, FaultPlan, Faults
from batcher.sim.latency import Fixed
from batcher.sim.loop import Loop
from batcher.sim.report import Recorder, Report
from batcher.sim.world import World, run_batch
from batcher.types import Request


def live(requests: list[Request], *, plan: FaultPlan | None = None, num_workers: int = 1, start_s: float = 0.0) -> Report:
    """Size-or-timeout with 50 ms, batches of up to 4 that take 200 ms."""
    config = DispatchConfig(
        num_workers=num_workers, policy=PolicyName.SIZE_OR_TIMEOUT, max_batch_size=4, batch_timeout_s=0.05, start_timeout_s=1.0
    )
    recorder = Recorder(config.tiers, duration_s=1.0)
    world = World(
        loop=Loop(),
        gate=Gate(DEFAULT_TIERS, secret=b"secret"),
        dispatcher=Dispatcher(config, now=0.0),
        latency=Fixed(0.2),
        faults=Faults(plan or FaultPlan(), Random(1)),
        rng=Random(1),
        recorder=recorder,
        start_s=start_s,
        start_timeout_s=config.start_timeout_s,
    )
    world.run(iter(requests), until=10.0)
    return recorder.report(num_workers=num_workers)


def request(num: int, *, at: float, word: str = "x", deadline_s: float = 5.0) -> Request:
    return Request(num, f"tenant {num}", "paid", word, 1, at, at + deadline_s)


def max_ms(report: Report) -> int:
    assert report.latency is not None
    return round(1000.0 * report.latency.max_s)


def test_run_batch_marks_each_input() -> None:
    assert run_batch(["a", "b"]) == ["<a>", "<b>"]


def test_one_request_waits_for_the_timeout_and_takes_one_batch() -> None:
    report = live([request(0, at=0.1)])
    assert report.outcomes == {"ok": 1}
    assert report.batches == {"timeout": 1}
    assert max_ms(report) == 250
    assert round(report.busy_share, 9) == 0.2


def test_four_that_come_together_leave_at_once() -> None:
    report = live([request(num, at=0.1) for num in range(4)])
    assert report.batches == {"full": 1}
    assert max_ms(report) == 200


def test_before_a_worker_is_ready_the_gate_refuses() -> None:
    assert live([request(0, at=0.1)], start_s=0.5).outcomes == {"ok": 0, "rejected_capacity": 1}


def test_a_deadline_ends_a_request_while_its_batch_runs() -> None:
    assert live([request(0, at=0.1, deadline_s=0.1)]).outcomes == {"ok": 0, "expired": 1}


def test_only_the_poison_of_a_batch_fails() -> None:
    report = live([request(num, at=0.1, word=f"{POISON} {num}" if num == 2 else "x") for num in range(4)])
    assert report.outcomes == {"ok": 3, "failed": 1}
    assert report.batches == {"full": 1, "split": 4}
    assert report.faults == {}


def test_a_killer_costs_workers_and_only_itself() -> None:
    report = live([request(num, at=0.1, word=f"{KILLER} {num}" if num == 2 else "x") for num in range(4)], num_workers=4)
    assert report.outcomes == {"ok": 3, "failed": 1}
    assert report.faults == {"died": 3}


def test_workers_that_always_die_fail_everything_and_nothing_hangs() -> None:
    report = live([request(num, at=0.1) for num in range(4)], plan=FaultPlan(dies=1.0), num_workers=4)
    assert report.outcomes == {"ok": 0, "failed": 4}


def test_a_caller_who_leaves_is_not_answered() -> None:
    report = live([request(num, at=0.1, deadline_s=0.3) for num in range(4)], plan=FaultPlan(cancels=1.0))
    assert report.outcomes.get("cancelled", 0) + report.outcomes["ok"] == 4
    assert report.outcomes["cancelled"] > 0


def test_workers_that_start_badly_start_again() -> None:
    report = live([request(num, at=3.0) for num in range(4)], plan=FaultPlan(starts_badly=0.5), num_workers=4, start_s=0.01)
    assert report.outcomes == {"ok": 4}
    assert report.faults["not_started"] > 0
