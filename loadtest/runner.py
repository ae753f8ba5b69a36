"""Performs a plan: sends each request at its instant, whatever the answers do, and says how well it kept the schedule.

One event loop on one core does everything. Requests that are due go out in one go at each turn of a timer that rounds up
to a millisecond: a request leaves late by up to one, never early, and 2,000/s cost two sends a turn. The garbage collector
is off while the run lasts, since its pauses would be read as the server's.
"""

import asyncio
import gc
import resource
import signal
import time
from collections.abc import Callable, Sequence

import msgspec
import uvloop

from batcher.errors import BatcherError
from batcher.sim.workload import stream
from loadtest.client import Pool
from loadtest.messages import MessagesTalk
from loadtest.plan import Plan, draw_schedule
from loadtest.progress import Beat, Progress, Silent
from loadtest.samples import NOT_OUTCOMES, Samples
from loadtest.talk import RunTalk, Talk
from loadtest.target import Questions, Wire
from loadtest.turner import Follower, Turner

INTERRUPTED_GRACE_S = 1.0
"""How long an interrupted run waits for the answers of what it has sent."""

MAX_FILES = 65_536
"""More than there are ports for connections to one server."""

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CannotConnect(BatcherError):
    """There is no server, so there is no run."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured: the rows, and how the generator itself fared."""

    plan: Plan
    samples: Samples
    measured_s: float
    """Length of the schedule that was offered: the plan's duration, or less when interrupted. A closed loop's is the time
    until its last answer."""
    generator_cpu_s: float
    wall_s: float
    is_interrupted: bool


Action = tuple[float, Callable[[], object]]
"""What to do beside the traffic, at an instant of the run; in a thread, so that it does not delay a send."""


def run(plan: Plan, *, progress: Progress | None = None, actions: Sequence[Action] = ()) -> Recording:
    """Perform the plan and wait for its answers. Ctrl-C, and SIGTERM, end it early with what was measured.

    Raises `CannotConnect` when the server cannot be reached at the start; later failures are outcomes.
    """
    samples = draw_schedule(plan)
    raise_file_limit()
    handlers = {number: signal.getsignal(number) for number in _ENDING_SIGNALS}
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_perform(plan, samples, progress or Silent(), actions))
    finally:
        gc.enable()
        gc.unfreeze()
        # uvloop leaves its own behind, and then nothing would end a sweep between two of its runs.
        for number, handler in handlers.items():
            signal.signal(number, handler)


def raise_file_limit() -> None:
    """Every connection is an open file, and the usual soft limit of 1,024 is not what the machine can do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


async def _perform(plan: Plan, samples: Samples, progress: Progress, actions: Sequence[Action]) -> Recording:
    warm_connections, max_connections = _num_connections(plan, len(samples))
    talk = _make_talk(plan, samples)
    pool = Pool(talk, samples, max_connections=max_connections, timeout_s=plan.timeout_s)
    if talk.address.is_tls:
        pool.use_tls(is_insecure=plan.target.is_insecure)
    try:
        await asyncio.wait_for(pool.warm(warm_connections), max(plan.timeout_s, 5.0))
    except (OSError, TimeoutError) as error:
        await pool.close()
        raise CannotConnect(f"cannot connect to {plan.target.url}: {error or 'no answer in time'}") from error
    turner = _make_turner(plan, pool, samples)
    interrupted = _stop_on_signals(turner)
    cpu_before_s, wall_before_s = time.process_time(), time.monotonic()
    pool.start_clock()
    turner.turn()
    helpers = [asyncio.create_task(_watch(pool, plan, turner, progress))]
    helpers += [asyncio.create_task(_act(at, act)) for at, act in actions]
    await turner.done
    stopped_at = pool.now()
    await _wait_for_answers(pool, plan.timeout_s, interrupted)
    generator_cpu_s, wall_s = time.process_time() - cpu_before_s, time.monotonic() - wall_before_s
    for helper in helpers:
        helper.cancel()
    await pool.close()
    _raise_failure(await asyncio.gather(*helpers, return_exceptions=True))
    return Recording(
        plan=plan,
        samples=samples,
        measured_s=_measured_s(plan, samples, min(stopped_at, plan.duration_s), is_interrupted=bool(interrupted)),
        generator_cpu_s=generator_cpu_s,
        wall_s=wall_s,
        is_interrupted=bool(interrupted),
    )


def _make_talk(plan: Plan, samples: Samples) -> Talk:
    if plan.messages is not None:
        return MessagesTalk(plan.target, plan.messages, samples, seed=plan.seed)
    wire = Wire(plan.target, plan.mix.senders, plan.input_size)
    questions = Questions(size=plan.input_size, seed=plan.seed, poison_prefix=plan.poison_prefix)
    return RunTalk(wire, questions, samples)


def _make_turner(plan: Plan, pool: Pool, samples: Samples) -> Turner:
    if plan.concurrency is None and (plan.messages is None or plan.messages.turns == 1):
        return Turner(pool, samples)
    return Follower(pool, samples, plan, plan.mix.draws(stream(plan.seed, "mix")))


def _num_connections(plan: Plan, num_planned: int) -> tuple[int, int]:
    """(opened before the run, most at once). The most follows from how long an answer may take."""
    if plan.concurrency is not None:
        # Twice, since a connection that the server has closed is not gone at the instant of the next request.
        most, warm = 2 * plan.concurrency + 8, plan.concurrency
    else:
        rate = num_planned * (plan.messages.turns if plan.messages else 1) / plan.duration_s
        held_s = 5.0 if plan.messages is None else plan.timeout_s
        most, warm = round(min(max(held_s * rate, 64), 20_000)), round(min(max(0.5 * rate, 2), 2_000))
    most = plan.max_connections or most
    return min(plan.warm_connections or warm, most), most


def _measured_s(plan: Plan, samples: Samples, stopped_at: float, *, is_interrupted: bool) -> float:
    """A closed loop lasts until its last answer; a schedule is what was offered, however long its answers took."""
    if plan.concurrency is not None:
        return max(
            (at for at, code in zip(samples.ended_at, samples.ending, strict=True) if code not in NOT_OUTCOMES),
            default=stopped_at,
        )
    return stopped_at if is_interrupted else plan.duration_s


async def _wait_for_answers(pool: Pool, timeout_s: float, interrupted: list[int]) -> None:
    """Until nothing is pending; bounded, since `give_up_late` ends what waits longer than the timeout."""
    started_at = pool.now()
    for _ in range(1_000_000):
        grace_s = INTERRUPTED_GRACE_S if interrupted else timeout_s + 1.0
        if not pool.num_pending or pool.now() > started_at + grace_s:
            return
        await asyncio.sleep(0.02)


async def _watch(pool: Pool, plan: Plan, turner: Turner, progress: Progress) -> None:
    """Gives up what waits too long, ten times a second, and shows progress once a second."""
    with progress:
        for beat in range(1, 1_000_000_000):
            await asyncio.sleep(0.1)
            pool.give_up_late()
            if beat % 10 == 0:
                latencies_s, pool.recent_latencies_s = pool.recent_latencies_s, []
                num_turned, num_pending = turner.num_turned, pool.num_pending
                progress.show(
                    Beat(pool.now(), plan.duration_s, plan.num_requests, num_turned, num_pending, pool.counts, latencies_s)
                )


async def _act(at: float, act: Callable[[], object]) -> None:
    await asyncio.sleep(at)
    await asyncio.get_running_loop().run_in_executor(None, act)


def _raise_failure(results: Sequence[object]) -> None:
    """A helper that broke has spoilt the run: its error is not swallowed."""
    for result in results:
        if isinstance(result, Exception):
            raise result


def _stop_on_signals(turner: Turner) -> list[int]:
    """The list gets the signal that stopped the run."""
    received: list[int] = []

    def stop(number: int) -> None:
        received.append(number)
        turner.stop()

    loop = asyncio.get_running_loop()
    for number in _ENDING_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    return received
