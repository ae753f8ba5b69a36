"""Which sequences share the next pass of the model: iteration-level scheduling (SPEC S6.1) over paged KV.

A pass over the weights costs nearly the same for one sequence as for hundreds, so the batch is formed anew at every step:
whatever decodes goes first, one token each, and prompts fill the rest in chunks, so that decoding slows a little and never
stalls (S6.3). It decides and never computes: `schedule` names tokens and blocks, `update` is told what was sampled.

    submit -> waits -> schedule -> (the device runs the step) -> update -> Emit ... Emit with a finish
                ^                                                  |
                +------------------ preempted ---------------------+

`schedule` may be called again before the step in flight is updated: then the token that a sequence is about to get is named
PENDING, and the device puts it in. Slots and blocks of what ends meanwhile are given out at once, for steps take effect in
the order of their launches. What a late step says of a sequence that lost its blocks is only its token; its blocks are told to
the prefix cache by a step that still holds them, when it is updated, and never before.
"""

from collections.abc import Sequence as Items
from math import inf

from batcher.config import ReplicaConfig
from batcher.core.effects import Emit, EndSequence, ReplicaEffect, ReplicaEffects
from batcher.core.replica.admission import Admission
from batcher.core.replica.counters import Counters
from batcher.core.replica.deadlines import Deadlines
from batcher.core.replica.flights import Flights
from batcher.core.replica.memory import Memory
from batcher.core.replica.pace import PrefillPace
from batcher.core.replica.policies import create_policy
from batcher.core.replica.queue import WaitingQueue
from batcher.core.replica.running import Running
from batcher.core.replica.sequence import Sequence, SequenceState
from batcher.core.replica.statistics import ReplicaStatistics, gather
from batcher.core.replica.steps import build_step
from batcher.core.replica.verdicts import DrainRate, expired, failed, no_room, shutting_down, too_long
from batcher.errors import ServiceError
from batcher.types import FinishReason, Step


def max_step_tokens(config: ReplicaConfig) -> int:
    """Most tokens of one step: a budget of prompt tokens, and one for each other slot (KvLayout)."""
    return (config.prefill_chunk or config.max_model_len) + config.max_num_seqs


class Scheduler:
    """The scheduler of one replica. Its owner is the replica's thread; it has no locks.

    `_live` holds every sequence that was accepted and has not ended, by id; each of them is either in `_queue` or in
    `_running`. `_flights` are the steps in flight, the oldest first; they may name sequences that have ended. `_outbox` are
    the ends of what expired while a step was scheduled; the next call that returns effects takes them along.
    """

    def __init__(self, config: ReplicaConfig, *, model_version: str = "") -> None:
        self.config = config
        self.max_step_tokens = max_step_tokens(config)
        self._tier_indexes = {name: index for index, name in enumerate(config.tiers)}
        self._policy = create_policy(config)
        self._counters = Counters()
        self._memory = Memory(config, model_version=model_version)
        self._queue = WaitingQueue(config.tiers, max_waiting=config.max_waiting, max_tokens=config.max_waiting_tokens)
        self._running = Running(
            self._memory,
            self._queue,
            self._counters,
            num_slots=self._policy.num_slots,
            num_first_tier_slots=self._policy.num_reserved,
        )
        self._pace = PrefillPace(config)
        self._admission = Admission(config, self._policy, self._pace, self._memory, self._queue, self._running, self._counters)
        self._deadlines = Deadlines()
        self._drain_rate = DrainRate()
        self._live: dict[int, Sequence] = {}
        self._flights = Flights()
        self._outbox: list[ReplicaEffect] = []
        self._num_submitted = 0
        self._draining_at: float | None = None

    def __repr__(self) -> str:
        counts = f"waiting={len(self._queue)} running={len(self._running)} inflight={len(self._flights)}"
        return f"<Scheduler {counts} {self._memory.pool!r}>"

    @property
    def num_live(self) -> int:
        """Sequences that were accepted and have not ended."""
        return len(self._live)

    @property
    def has_work(self) -> bool:
        """Whether a sequence is live, a step in flight or an end not told yet."""
        return bool(self._live or len(self._flights) or self._outbox)

    def submit(self, sequence: Sequence, *, now: float) -> ReplicaEffects:
        """Lets it wait, or refuses it in the effects; they may also end others that give way to it.

        Raises ValueError, and changes nothing, if its id is live, its tier unknown or it was submitted before.
        """
        if sequence.id in self._live or sequence.tier not in self._tier_indexes or sequence.order:
            raise ValueError(f"{sequence!r}: a live id, an unknown tier or a sequence that was submitted before")
        sequence.tier_index = self._tier_indexes[sequence.tier]
        refusal = shutting_down(sequence) if self._draining_at is not None else too_long(sequence, self.config)
        displaced: list[Sequence] | None = None
        if refusal is None and (displaced := self._queue.make_room_for(sequence)) is None:
            refusal = self._no_room(sequence)
        if refusal is not None:
            self._counters.num_refused += 1
            return (refusal,)
        assert displaced is not None
        for other in displaced:
            other.move_to(SequenceState.FINISHED)
            other.finished_at = now
            del self._live[other.id]
        self._counters.num_displaced += len(displaced)
        if not self._live:
            self._drain_rate.restart(now=now)
        self._num_submitted += 1
        sequence.order = self._num_submitted
        self._live[sequence.id] = sequence
        self._queue.push(sequence)
        self._deadlines.add(sequence, num_live=self._queue.num_fresh)
        return [self._no_room(other) for other in displaced]

    def schedule(self, *, now: float) -> Step | None:
        """The next step; None when there is nothing to do, or nothing before the steps in flight are updated."""
        if self._flights.is_full:
            return None
        self._expire(now=now)
        has_room = self._running.grow(now=now)
        chunks = self._admission.plan(may_start=has_room, is_draining=self._draining_at is not None, now=now)
        num_padding = self._policy.num_padding(num_running=len(self._running))
        flight = build_step(self._counters.num_steps + 1, self._running, chunks, num_padding=num_padding, now=now)
        if flight is None:
            return None
        num_prefill_tokens = sum([num for _, num in chunks])
        self._counters.num_steps += 1
        self._counters.num_prefill_tokens += num_prefill_tokens
        self._counters.num_decode_tokens += flight.step.num_tokens - num_prefill_tokens
        self._flights.add(flight)
        return flight.step

    def update(self, step: Step, tokens: Items[int], *, now: float) -> ReplicaEffects:
        """What the oldest step in flight sampled: one token for each of its sequences with `is_sampled`, in their order.

        Raises ValueError, and changes nothing, if another step is the oldest or the number of tokens is not the step's.
        """
        flight = self._flights.oldest(step)
        if len(tokens) != flight.num_sampled:
            raise ValueError(f"step {step.step_id} samples {flight.num_sampled} tokens, not {len(tokens)}")
        num_prefill_tokens = step.num_tokens - flight.num_decodes
        duration_s = self._flights.land(now=now)
        self._pace.observe(num_decodes=flight.num_decodes, num_prefill_tokens=num_prefill_tokens, duration_s=duration_s)
        effects = self._take_outbox()
        sampled = iter(tokens)
        for entry, sequence in flight.parts():
            # A sequence that stopped since has another table, or none: what it lost is neither confirmed nor published.
            if sequence.block_table is entry.block_table:
                sequence.num_confirmed = num_confirmed = entry.start + len(entry.tokens)
                if num_confirmed >= sequence.publish_at:
                    self._memory.publish(sequence)
            if not entry.is_sampled:
                continue
            token = next(sampled)
            if sequence.state is SequenceState.FINISHED:
                self._counters.num_late_tokens += 1
                continue
            known = sequence.tokens
            known.append(token)
            if token in sequence.stop_ids:
                effects.append(self._finish(sequence, token, FinishReason.END_TURN, now=now))
            elif len(known) == sequence.max_len:
                effects.append(self._finish(sequence, token, FinishReason.MAX_TOKENS, now=now))
            else:
                effects.append(Emit(sequence.id, token))
                if sequence.first_token_at is None:
                    sequence.first_token_at = now
        return effects

    def finish(self, sequence_id: int, *, now: float) -> None:
        """The shell ended it: a stop string was found in its text. Ignored if it has ended."""
        if (sequence := self._live.get(sequence_id)) is not None:
            self._end(sequence, now=now)
            self._counters.num_stopped += 1

    def cancel(self, sequence_id: int, *, now: float) -> None:
        """Its caller is gone: it waits or runs no more, and gives everything back. Ignored if it has ended.

        If it expired in a `schedule` just before, the next effects still tell of that end: the two may cross."""
        if (sequence := self._live.get(sequence_id)) is not None:
            self._end(sequence, now=now)
            self._counters.num_cancelled += 1

    def fail_step(self, step: Step, error: ServiceError, *, now: float) -> ReplicaEffects:
        """The oldest step in flight raised: those of its sequences that run end, and nothing of it is published.

        One that was preempted meanwhile goes on: it lost a token that nobody has seen, and is computed again anyway.
        Raises ValueError, and changes nothing, if another step is the oldest.
        """
        flight = self._flights.oldest(step)
        self._flights.land(now=now)
        effects = self._take_outbox()
        for entry, sequence in flight.parts():
            if sequence.block_table is entry.block_table:
                effects.append(self._fail(sequence, error, now=now))
            elif entry.is_sampled and sequence.state is not SequenceState.FINISHED:
                sequence.num_sampled -= 1
        return effects

    def fail_all(self, error: ServiceError, *, now: float) -> ReplicaEffects:
        """The engine is gone: everything that waits or runs ends, and the steps in flight are forgotten."""
        self._flights.clear()
        return self._take_outbox() + [self._fail(sequence, error, now=now) for sequence in list(self._live.values())]

    def drain(self, now: float) -> None:
        """From now on whatever is submitted is refused; what was accepted runs to its end."""
        self._draining_at = now

    def next_deadline(self) -> float | None:
        """When to call `tick`, and then `schedule`, if nothing happens before; None if nothing is due."""
        if self._outbox:
            return -inf
        instant = self._deadlines.first()
        if len(self._queue) and not len(self._flights):
            opens_at = self._policy.opens_at(num_running=len(self._running), oldest_at=self._queue.oldest_at())
            instant = min(instant, opens_at)
        return instant if instant != inf else None

    def tick(self, *, now: float) -> ReplicaEffects:
        """Ends what has waited past its deadline."""
        self._expire(now=now)
        return self._take_outbox()

    def statistics(self) -> ReplicaStatistics:
        return gather(
            self._counters,
            self._memory,
            self._queue,
            self._running,
            num_inflight_steps=len(self._flights),
            is_draining=self._draining_at is not None,
        )

    def _no_room(self, sequence: Sequence) -> EndSequence:
        return no_room(sequence, self._drain_rate, num_ahead=self._queue.num_ahead_of(sequence.tier_index))

    def _finish(self, sequence: Sequence, token: int, reason: FinishReason, *, now: float) -> Emit:
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        self._end(sequence, now=now)
        self._counters.num_finished += 1
        return Emit(sequence.id, token, reason)

    def _fail(self, sequence: Sequence, error: ServiceError, *, now: float) -> ReplicaEffect:
        self._end(sequence, now=now)
        self._counters.num_failed += 1
        return failed(sequence, error)

    def _end(self, sequence: Sequence, *, now: float) -> None:
        """Whatever it holds is given back at once."""
        if sequence.is_running:
            self._running.stop(sequence, SequenceState.FINISHED)
            self._drain_rate.observe_end(now=now)
        else:
            self._queue.remove(sequence)
            sequence.move_to(SequenceState.FINISHED)
        sequence.finished_at = now
        sequence.hashes = []
        del self._live[sequence.id]

    def _expire(self, *, now: float) -> None:
        """What is past its deadline does not start, however late the tick comes."""
        for sequence in self._deadlines.pop_due(now=now):
            self._end(sequence, now=now)
            self._counters.num_expired += 1
            self._outbox.append(expired(sequence))

    def _take_outbox(self) -> list[ReplicaEffect]:
        effects, self._outbox = self._outbox, []
        return effects

    def check(self, *, deep: bool = True) -> None:
        """Asserts the object's laws. Not `deep` it is O(running); else O(blocks + waiting), for tests (CASES B99)."""
        self._running.check()
        self._queue.check_bounds()
        self._memory.pool.check(deep=deep)
        assert len(self._queue) + len(self._running) == len(self._live), "a live sequence is in no place, or in two"
        assert all(self._live.get(sequence.id) is sequence for sequence in self._running), "one runs that has ended"
        assert len(self._flights) or not any(s.num_pending for s in self._running), "a token is awaited and no step makes it"
        if deep:
            self._queue.check()
            self._memory.check_tables(list(self._running))
            assert all(self._live.get(s.id) is s for tier in self._queue.tiers for s in tier), "one waits that has ended"
            assert all(not s.block_table for tier in self._queue.tiers for s in tier), "one that waits holds blocks"
