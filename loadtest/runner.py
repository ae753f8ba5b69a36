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
from loadtest.client import Pool
from loadtest.plan import Plan, draw_schedule
from loadtest.progress import Beat, Progress, Silent
from loadtest.samples import Samples
from loadtest.target import Questions, Wire

MAX_LATE_S = 1.0
"""A request this late is dropped: sending it would pile more load on a later second than the plan says."""

MAX_SENDS_A_TURN = 64
"""Sends in one go. Then the answers that have come are read, or a generator that lags would read them later and later."""

INTERRUPTED_GRACE_S = 1.0
"""How long an interrupted run waits for the answers of what it has sent."""

MAX_FILES = 65_536
"""More than there are ports for connections to one server."""

_TURN_S = 0.001
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class CannotConnect(BatcherError):
    """There is no server, so there is no run."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured: the rows, and how the generator itself fared."""

    plan: Plan
    samples: Samples
    measured_s: float
    """Length of the schedule that was offered: the plan's duration, or less when interrupted."""
    generator_cpu_s: float
    wall_s: float
    is_interrupted: bool


Action = tuple[float, Callable[[], object]]
"""What to do beside the traffic, at an instant of the run; in a thread, so that it does not delay a send."""


class Turner:
    """Sends what is due, then sets a timer for what is next. Owned by the event loop."""

    def __init__(self, pool: Pool, samples: Samples) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pool = pool
        self._planned_at = samples.planned_at
        self._num_turned = 0
        self._timer: asyncio.Handle | None = None

    @property
    def num_turned(self) -> int:
        """Requests whose turn has come."""
        return self._num_turned

    def turn(self) -> None:
        pool, planned_at = self._pool, self._planned_at
        index, last = self._num_turned, min(self._num_turned + MAX_SENDS_A_TURN, len(planned_at))
        now = pool.now()
        while index < last and planned_at[index] <= now:
            if now - planned_at[index] > MAX_LATE_S:
                pool.drop(index)
            else:
                pool.send(index)
            index += 1
        self._num_turned = index
        if index == len(planned_at):
            self.stop()
        else:
            wait_s = planned_at[index] - pool.now()
            # uvloop rounds to the nearest millisecond, so half of one more means never early.
            delay_s = max(wait_s + _TURN_S / 2, _TURN_S) if wait_s > 0.0 else 0.0
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.turn)

    def stop(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if not self.done.done():
            self.done.set_result(None)


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
    rate = len(samples) / plan.duration_s
    max_connections = plan.max_connections or round(min(max(5.0 * rate, 64), 20_000))
    warm_connections = min(plan.warm_connections or round(min(max(0.5 * rate, 2), 2_000)), max_connections)
    wire = Wire(plan.target, plan.mix.senders, plan.input_size)
    questions = Questions(size=plan.input_size, seed=plan.seed, poison_prefix=plan.poison_prefix)
    pool = Pool(wire, questions, samples, max_connections=max_connections, timeout_s=plan.timeout_s)
    if wire.address.is_tls:
        pool.use_tls(is_insecure=plan.target.is_insecure)
    try:
        await asyncio.wait_for(pool.warm(warm_connections), max(plan.timeout_s, 5.0))
    except (OSError, TimeoutError) as error:
        await pool.close()
        raise CannotConnect(f"cannot connect to {plan.target.url}: {error or 'no answer in time'}") from error
    turner = Turner(pool, samples)
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
        measured_s=min(stopped_at, plan.duration_s) if interrupted else plan.duration_s,
        generator_cpu_s=generator_cpu_s,
        wall_s=wall_s,
        is_interrupted=bool(interrupted),
    )


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
                progress.show(Beat(pool.now(), plan.duration_s, turner.num_turned, pool.num_pending, pool.counts, latencies_s))


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
