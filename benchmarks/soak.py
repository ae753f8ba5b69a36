"""Bar C7: whatever callers do, a replica keeps nothing of them.

Thousands of requests on the simulated model at full speed: some stay, some leave at a random moment or from their own callback,
some expire, some have a connection that breaks. The pool is too small for all that run, so that sequences are preempted, too.
Those that stay must get exactly the text that they would get alone, each request exactly one outcome, and in the end no record,
message, block or slot may be left.

    python -m benchmarks.soak [--requests 20000] [--seed 1]
"""

import argparse
import asyncio
import logging
import random
import resource
import sys
import time

from backends.bytes_model import BytesTokenizer
from backends.models import create_model
from batcher.config import ReplicaConfig
from batcher.service.generation import NO_USAGE, Delta, Event, Failed, Finished, GenerationRequest
from batcher.service.replica import Replica
from batcher.types import Message, Outcome

CONFIG = ReplicaConfig(num_blocks=1024, max_num_seqs=64, max_model_len=4096, prefill_chunk=512)
MAX_LIVE = 400
"""Callers at a time: several times what runs, and fewer than may wait."""
LIMIT_S = 900.0
"""A soak that takes longer has lost somebody."""
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "and", "añ€🙂", "")
TOKENIZER = BytesTokenizer()


class Caller:
    """One request and what its caller does: it may leave after `leaves_after` tokens, by a cancel or by raising."""

    def __init__(self, soak: "Soak", rng: random.Random) -> None:
        self.soak = soak
        opening = "system prompt " * rng.choice([0, 0, 20, 60])
        self.text = opening + " ".join(rng.choices(WORDS, k=rng.randrange(1, 60)))
        self.max_tokens = rng.randrange(1, 600)
        self.stop = "lazy dog" if rng.random() < 0.1 else "never said"
        self.tier = rng.choice(CONFIG.tiers)
        self.patience_s = rng.choice([0.0, 0.002, 0.02]) if rng.random() < 0.1 else 3600.0
        way = rng.random()
        self.leaves_after = rng.randrange(0, 200) if way < 0.5 else None
        self.breaks = way < 0.1
        self.num_tokens = 0
        self.received = ""
        self.id = 0
        self.is_over = False

    def start(self) -> None:
        request = GenerationRequest(
            tenant=f"t{len(self.text) % 7}",
            tier=self.tier,
            prompt=TOKENIZER.render([Message("user", self.text)]),
            max_tokens=self.max_tokens,
            stop_sequences=(self.stop,),
            deadline_at=time.monotonic() + self.patience_s,
        )
        self.id = self.soak.replica.submit(request, self.on_event)
        if self.leaves_after == 0 and not self.is_over:
            asyncio.get_running_loop().call_later(0.001 * (self.id % 4), self.leave)

    def on_event(self, event: Event) -> None:
        assert not self.is_over, "an event after the end, or after leaving"
        if not isinstance(event, Delta):
            self.end(event)
            return
        self.received += event.text
        self.num_tokens += event.num_tokens
        if self.leaves_after and self.num_tokens >= self.leaves_after:
            if self.breaks:
                self.over()
                raise ConnectionResetError
            self.leave()

    def end(self, event: Event) -> None:
        self.over()
        if isinstance(event, Finished):
            self.received += event.text
            cut = self.text.encode()[: self.max_tokens].decode(errors="replace")
            if self.received != cut.partition(self.stop)[0]:
                self.soak.faults.append(f"request {self.id} was told {self.received!r} instead of {cut!r}")
        elif not isinstance(event, Failed) or event.outcome is not Outcome.EXPIRED or event.usage != NO_USAGE:
            self.soak.faults.append(f"request {self.id} ended with {event}")

    def leave(self) -> None:
        if not self.is_over:
            self.over()
            self.soak.replica.cancel(self.id, lambda usage: self.soak.told_usage.append(usage.output_tokens))
            self.soak.num_left += 1

    def over(self) -> None:
        self.is_over = True
        self.soak.num_live -= 1
        self.soak.has_room.set()


class Soak:
    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.faults: list[str] = []
        self.told_usage: list[int] = []
        self.num_left = 0
        self.num_live = 0
        self.has_room = asyncio.Event()

    async def run(self, num_requests: int, rng: random.Random) -> None:
        for _ in range(num_requests):
            self.num_live += 1
            Caller(self, rng).start()
            while self.num_live >= MAX_LIVE:
                self.has_room.clear()
                await self.has_room.wait()
        self.replica.drain()
        await self.replica.wait_idle()

    def check(self, num_requests: int) -> None:
        """Notes what is left, or was counted wrong."""
        replica = self.replica
        outcomes = {outcome: sum(tier[outcome] for tier in replica.outcomes.values()) for outcome in Outcome}
        statistics = replica.statistics()
        facts = {
            "a caller is live": self.num_live or replica.num_live,
            "requests without exactly one outcome": num_requests - sum(outcomes.values()),
            "requests failed or refused": outcomes[Outcome.FAILED] + outcomes[Outcome.REJECTED_CAPACITY],
            "some who left were not told their usage": self.num_left - len(self.told_usage),
            "sequences left": statistics.num_live,
            "slots left": statistics.num_slots - statistics.num_free_slots,
            "blocks left": statistics.num_held_blocks,
            "blocks lost": CONFIG.num_blocks
            - (statistics.num_free_blocks + statistics.num_cached_blocks + statistics.num_held_blocks),
            "checks failed": replica.num_failed_checks,
        }
        self.faults += [f"{what}: {number}" for what, number in facts.items() if number]
        counts = {outcome.value: number for outcome, number in outcomes.items() if number}
        print(f"outcomes {counts}; steps {statistics.counters.num_steps}, tokens {replica.meters.num_output_tokens}")
        print(f"preemptions {statistics.counters.num_preemptions}, cached tokens {statistics.counters.num_cached_tokens}")


async def soak(num_requests: int, seed: int) -> bool:
    """Whether nothing is left and nothing was wrong; prints what was seen."""
    print(f"seed {seed}")
    model = create_model("simulated", settings={"time_scale": 0.0})
    replica = Replica(model, CONFIG)
    replica.start()
    await replica.wait_ready()
    run = Soak(replica)
    begun_at, rss_before = time.monotonic(), _rss_mb()
    try:
        async with asyncio.timeout(LIMIT_S):
            await run.run(num_requests, random.Random(seed))
    except TimeoutError:
        run.faults.append(f"{replica.num_live} requests did not end in {LIMIT_S:g} s")
    finally:
        await replica.close()
    run.check(num_requests)
    print(f"{num_requests} requests in {time.monotonic() - begun_at:.1f} s; memory grew by {_rss_mb() - rss_before:.0f} MB")
    for fault in run.faults[:20]:
        print(f"WRONG: {fault}")
    print("nothing is left of anybody" if not run.faults else f"{len(run.faults)} faults")
    return not run.faults


def _rss_mb() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    logging.getLogger("batcher").setLevel(logging.CRITICAL)  # Connections that break are errors, and thousands of them.
    sys.exit(0 if asyncio.run(soak(arguments.requests, arguments.seed)) else 1)


if __name__ == "__main__":
    main()
