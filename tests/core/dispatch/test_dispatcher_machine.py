"""The dispatcher against a plain model, by rules: its laws hold in any order of events, and without faults all finishes."""

from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from batcher.core.effects import RunBatch
from batcher.types import WorkerFault
from tests.core.dispatch.doubting_shell import AMPLE_RESERVE, DoubtingShell
from tests.core.examples import a_dispatcher, a_request, echo

TENANTS = st.sampled_from(["ann", "bob", "cy"])


class DispatcherMachine(DoubtingShell):
    """It is the shell: it performs effects at once and reports what a rule decides, in any order, now and then late."""

    timeout_s = 0.0625

    def __init__(self) -> None:
        super().__init__()
        self.next_id = 1

    @initialize(
        policy=st.sampled_from(["single", "static", "size-or-timeout", "paced"]),
        max_batch_size=st.sampled_from([1, 2, 5, 9]),
        num_workers=st.integers(1, 4),
        max_waiting=st.sampled_from([3, 30]),
        breaker_threshold=st.sampled_from([1, 3]),
        retry_reserve=st.sampled_from([0, 5, AMPLE_RESERVE]),
        max_attempts=st.integers(1, 4),
    )
    def build(
        self,
        policy: str,
        max_batch_size: int,
        num_workers: int,
        max_waiting: int,
        breaker_threshold: int,
        retry_reserve: int,
        max_attempts: int,
    ) -> None:
        self.policy = policy
        self.max_batch_size = 1 if policy == "single" else max_batch_size
        self.max_attempts = max_attempts
        self.retry_reserve = retry_reserve
        max_waiting = max(max_waiting, 2 * max_batch_size)
        self.dispatcher = a_dispatcher(
            num_ready=0,
            now=self.now,
            policy=policy,
            max_batch_size=max_batch_size,
            num_workers=num_workers,
            batch_timeout_s=self.timeout_s,
            max_waiting=max_waiting,
            max_waiting_bytes=10 * max_waiting,
            breaker_threshold=breaker_threshold,
            retry_reserve=retry_reserve,
            max_attempts=max_attempts,
            restart_backoff_s=0.125,
            breaker_rest_s=2.0,
            first_batch_timeout_s=1.0,
            start_timeout_s=3.0,
        )
        self.perform(self.dispatcher.start())

    # Rules: requests.

    @rule(
        tenant=TENANTS,
        tier=st.sampled_from(["paid", "free"]),
        patience_s=st.sampled_from([0.1, 1.0, 10.0, inf]),
        num_bytes=st.sampled_from([1, 10]),
        is_poison=st.sampled_from([False, False, False, False, True]),
        num=st.integers(1, 6),
    )
    def submit(self, tenant: str, tier: str, patience_s: float, num_bytes: int, is_poison: bool, num: int) -> None:
        for _ in range(num):
            request = a_request(
                self.next_id,
                tenant=tenant,
                tier=tier,
                num_bytes=num_bytes,
                arrived_at=self.now,
                deadline_at=self.now + patience_s,
            )
            self.next_id += 1
            self.live.add(request.id)
            self.deadlines[request.id] = request.deadline_at
            if is_poison:
                self.poison.add(request.id)
            self.perform(self.dispatcher.submit(request, now=self.now))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.live)))
        assert self.dispatcher.cancel(request_id)
        self.end(request_id)

    @rule()
    def cancel_what_has_ended(self) -> None:
        assert not any(self.dispatcher.cancel(request_id) for request_id in self.ended)

    # Rules: workers.

    @precondition(lambda self: self.starting)
    @rule(num=st.integers(1, 4))
    def workers_ready(self, num: int) -> None:
        for worker_id in sorted(self.starting)[:num]:
            self.report_ready(worker_id)

    def report_ready(self, worker_id: int) -> None:
        self.starting.remove(worker_id)
        self.perform(self.dispatcher.worker_ready(worker_id, self.incarnations[worker_id], now=self.now))

    @rule(data=st.data(), fault=st.sampled_from([WorkerFault.DIED, WorkerFault.NOT_STARTED]))
    def worker_lost(self, data: st.DataObject, fault: WorkerFault) -> None:
        """Of any worker, also of one that rests, and of an incarnation that is long gone."""
        worker_id = data.draw(st.sampled_from(sorted(self.incarnations)))
        incarnation = data.draw(st.integers(1, self.incarnations[worker_id]))
        effects = self.dispatcher.worker_lost(worker_id, incarnation, fault, now=self.now)
        if incarnation < self.incarnations[worker_id]:
            assert list(effects) == []
        self.perform(effects)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        """A batch ends as a good worker would end it."""
        self.report_end(self.running[data.draw(st.sampled_from(sorted(self.running)))])

    def report_end(self, run: RunBatch) -> None:
        self.past.append(self.running.pop(run.worker_id))
        if any(request.id in self.poison for request in run.requests):
            self.perform(self.dispatcher.fail(run.batch_id, run.attempt, now=self.now))
        else:
            self.failed.discard(run.worker_id)
            self.perform(self.dispatcher.complete(run.batch_id, run.attempt, echo(run), now=self.now))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), num_wrong=st.sampled_from([-1, 1]))
    def return_the_wrong_number_of_outputs(self, data: st.DataObject, num_wrong: int) -> None:
        run = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        outputs = (echo(run) * 2)[: len(run.requests) + num_wrong]
        self.perform(self.dispatcher.complete(run.batch_id, run.attempt, outputs, now=self.now))

    @precondition(lambda self: self.past)
    @rule(data=st.data(), has_raised=st.booleans())
    def report_late(self, data: st.DataObject, has_raised: bool) -> None:
        again = {run.batch_id for run in self.running.values()}
        run = data.draw(st.sampled_from([run for run in self.past if run.batch_id in again] or self.past))
        if has_raised:
            assert list(self.dispatcher.fail(run.batch_id, run.attempt, now=self.now)) == []
        else:
            assert list(self.dispatcher.complete(run.batch_id, run.attempt, echo(run), now=self.now)) == []

    # Rules: time.

    @rule(pass_s=st.sampled_from([0.0, 0.01, 0.1, 0.3, 1.0]))
    def pass_time(self, pass_s: float) -> None:
        self.let_time_pass(pass_s)

    @rule(pass_s=st.sampled_from([0.01, 0.15, 2.0]))
    def let_the_next_tick_come_late(self, pass_s: float) -> None:
        self.now += pass_s

    def let_time_pass(self, pass_s: float) -> None:
        until = self.now + pass_s
        for _ in range(200):
            due_at = self.dispatcher.next_deadline()
            if due_at is None or due_at > until:
                break
            self.now = max(self.now, due_at)
            self.tick()
        else:
            raise AssertionError("the shell would tick for ever")
        self.now = until

    def tick(self) -> None:
        self.perform(self.dispatcher.tick(now=self.now))
        due_at = self.dispatcher.next_deadline()
        assert due_at is None or due_at > self.now, "still due after a tick: a shell that sleeps until then spins"

    @rule()
    def drain(self) -> None:
        self.perform(self.dispatcher.drain(now=self.now))

    # Laws.

    @invariant()
    def laws(self) -> None:
        if not self.incarnations:
            return
        self.dispatcher.check()
        statistics = self.dispatcher.statistics()
        assert statistics.num_live == len(self.live)
        assert {request.id for request in self.dispatcher.live_requests} == self.live
        assert statistics.num_inflight == len(self.running)
        assert statistics.num_running == sum(len(run.requests) for run in self.running.values())
        assert statistics.retry_budget >= 0.0
        due_at = self.dispatcher.next_deadline()
        earliest_at = min(self.deadlines.values(), default=inf)
        assert earliest_at == inf or (due_at is not None and due_at <= earliest_at), "a deadline would be slept through"
        is_waiting = any(tier.num_waiting for tier in statistics.tiers)
        if is_waiting and statistics.workers["free"] and self.policy != "static":
            assert due_at is not None
            assert due_at <= self.now + self.timeout_s, "beside a free worker nobody waits longer than the timeout"

    def teardown(self) -> None:
        """The faults stop: workers start, and end their batches as they should. Everything must finish."""
        self.perform(self.dispatcher.drain(now=self.now))
        for _ in range(2000):
            if self.starting:
                self.report_ready(min(self.starting))
            elif self.running:
                self.let_time_pass(0.001)
                if self.running:
                    self.report_end(self.running[min(self.running)])
            elif self.live or len(self.incarnations) > self.dispatcher.num_ready_workers:
                due_at = self.dispatcher.next_deadline()
                assert due_at is not None, "live requests, and nothing will ever happen"
                self.now = max(self.now, due_at)
                self.tick()
            else:
                break
        else:
            raise AssertionError("it never finishes")
        self.laws()
        statistics = self.dispatcher.statistics()
        assert (statistics.num_live, statistics.num_inflight, statistics.num_parked, statistics.num_running) == (0, 0, 0, 0)
        assert statistics.workers["free"] == len(self.incarnations)
        assert self.dispatcher.next_deadline() is None


# It takes two seconds; a program that fails takes minutes to make short.
TestDispatcherMachine = pytest.mark.timeout(400)(DispatcherMachine.TestCase)
TestDispatcherMachine.settings = settings(derandomize=True, max_examples=100, stateful_step_count=50, deadline=None)
