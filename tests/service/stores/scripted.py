"""The script that counts in Redis, asked one thing at a time, at instants that a test chooses."""

import redis

from batcher.core.admission.reservation import LimitRefusal, Reservation, Subject
from batcher.service.stores.redis_codec import Answer, Ask, decode_answer, encode_call, is_admitted, refusal, reservation
from batcher.service.stores.redis_corrections import Difference, Key
from batcher.service.stores.redis_link import RedisLink, Script

CLOCK = "batcher:limits:clock"
MINUTE_US = 60 * 10**6
SCRIPT = Script("redis_limits.lua")


def asking(*subjects: Subject, tokens: int = 0) -> Ask:
    return Ask(subjects, tokens, lambda verdict: None, 0.0, is_first_shown=True)


class ScriptedStore:
    def __init__(self, link: RedisLink, beside: redis.Redis) -> None:
        self.link = link
        self.beside = beside

    async def call(self, *corrections: tuple[Key, Difference], ask: Ask | None = None, at_us: int | None = None) -> Answer:
        """At the instant `at_us`, which is to be one in the future of the machine and no call's first: as if the wall clock of
        Redis had shown it, and had gone back since."""
        if at_us is not None:
            assert self.beside.hset(CLOCK, mapping={"wall": at_us, "lag": 0}) == 0, "there is a clock"
        reply = await self.link.run(SCRIPT, encode_call("seed", corrections, [] if ask is None else [ask]))
        assert isinstance(reply, bytes)
        answer = decode_answer(reply)
        assert at_us is None or answer.now_us == at_us
        return answer

    async def reserve(self, *subjects: Subject, tokens: int = 0, at_us: int | None = None) -> Reservation | LimitRefusal:
        ask = asking(*subjects, tokens=tokens)
        answer = await self.call(ask=ask, at_us=at_us)
        verdict = answer.verdicts[0]
        return reservation(ask, verdict, answer) if is_admitted(verdict) else refusal(ask, verdict, answer)

    def pass_s(self, seconds: int) -> None:
        self.beside.hincrby(CLOCK, "lag", seconds * 10**6)

    def held(self, subject: Subject) -> dict[str, int]:
        fields = self.beside.hgetall(f"batcher:limits:of:{subject.name}")
        return {bytes(name).decode(): int(value) for name, value in fields.items() if isinstance(name, bytes)}
