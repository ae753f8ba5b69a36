"""Plans and recordings that tests begin with."""

import itertools
from array import array
from collections.abc import Sequence
from typing import Any

from batcher.sim.lengths import Fixed
from batcher.sim.workload import Constant, Mix, Sender, Trace
from loadtest.messages import Messages, messages_target
from loadtest.plan import Plan, draw_schedule
from loadtest.runner import Recording
from loadtest.samples import Ending, Samples
from loadtest.target import run_target
from loadtest.tokens import Hearing, StopReason

MIX = Mix((Sender("dev-paid", "paid", 0.5), Sender("dev-free", "free", 0.5)))


def make_plan(url: str = "http://127.0.0.1:1", *, rate: float = 200.0, duration_s: float = 0.3, **changes: Any) -> Plan:
    settings: dict[str, Any] = {
        "target": run_target(url),
        "arrivals": Constant(rate),
        "arrivals_name": "constant",
        "mix": MIX,
        "duration_s": duration_s,
        "timeout_s": 5.0,
    }
    return Plan(**(settings | changes))


def arrive_ten() -> Trace:
    """Ten arrivals within a tenth of a second, however long the run may last."""
    return Trace(array("d", (number / 100.0 for number in range(10))))


def make_messages_plan(url: str = "http://127.0.0.1:1", *, messages: dict[str, Any] | None = None, **changes: Any) -> Plan:
    """Twenty requests (or conversations) of generated text."""
    asked: dict[str, Any] = {"prompt_tokens": Fixed(16), "output_tokens": Fixed(4)} | (messages or {})
    settings: dict[str, Any] = {
        "target": messages_target(url),
        "messages": Messages(**asked),
        "rate": 100.0,
        "duration_s": 0.2,
        "slo_s": None,
    }
    return make_plan(**(settings | changes))


def make_closed_plan(url: str, *, concurrency: int, num_requests: int | None, **changes: Any) -> Plan:
    closed: dict[str, Any] = {"arrivals": None, "concurrency": concurrency, "num_requests": num_requests, "duration_s": 60.0}
    return make_messages_plan(url, **(closed | changes))


def make_recording(plan: Plan, **changes: Any) -> Recording:
    """As if every request had left at its instant and been answered well after 200 ms."""
    samples = draw_schedule(plan)
    for row, planned_at in enumerate(samples.planned_at):
        end(samples, row, Ending.OK, latency_s=0.2, status=200)
        samples.sent_at[row] = planned_at
    settings: dict[str, Any] = {
        "plan": plan,
        "samples": samples,
        "measured_s": plan.duration_s,
        "generator_cpu_s": 0.01,
        "wall_s": plan.duration_s,
        "is_interrupted": False,
    }
    return Recording(**(settings | changes))


def end(samples: Samples, row: int, ending: Ending, *, latency_s: float, status: int) -> None:
    samples.ending[row] = ending
    samples.ended_at[row] = samples.planned_at[row] + latency_s
    samples.status[row] = status


def generate(samples: Samples, row: int, *, ttft_s: float, gaps_s: Sequence[float], output_tokens: int | None = None) -> None:
    """As if the row had been answered well, a token an event unless more are said, with 7 tokens of prompt."""
    assert samples.tokens is not None
    hearing = Hearing()
    for at in itertools.accumulate(gaps_s, initial=samples.planned_at[row] + ttft_s):
        hearing.hear(at)
    hearing.write(samples.tokens, row)
    samples.tokens.keep_gaps(row, hearing.gaps_s)
    samples.tokens.input_tokens[row] = 7
    samples.tokens.output_tokens[row] = len(gaps_s) + 1 if output_tokens is None else output_tokens
    samples.tokens.stop_reason[row] = StopReason.END_TURN
    end(samples, row, Ending.OK, latency_s=ttft_s + sum(gaps_s), status=200)
