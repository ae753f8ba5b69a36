"""One key, one run: what is kept and replayed, who is told to wait, and a store that is away."""

import asyncio

import pytest

from batcher.config import IdempotencyConfig
from batcher.errors import IdempotencyConflict, IdempotencyMismatch, InvalidRequest, Overloaded, ServerFault
from batcher.service.idempotency import digest
from batcher.service.wire.replies import Reply
from tests.service.idempotent import Bench, Work, reply, until

pytestmark = pytest.mark.anyio


async def test_an_answer_is_kept_whole_and_replayed() -> None:
    bench, work = Bench(), Work(reply(7))
    assert await bench.ask(work) == reply(7)
    again = await bench.ask(work)
    assert (again.status, again.body, again.request_id) == (200, b'{"n": 7}', "req_7")
    assert again.headers == [(b"x-made", b"7"), (b"idempotent-replayed", b"true")]
    assert (await bench.ask(work)).headers == again.headers  # Not one header more each time.
    assert work.num_calls == 1
    assert bench.one.statistics().num_replayed == 2
    await bench.settled()


async def test_a_replay_does_not_close_the_connection() -> None:
    bench = Bench()
    made = Reply(200, b"{}", "req_1", [], closes=True)
    assert await bench.ask(Work(made)) == made
    assert not (await bench.ask(Work())).closes


@pytest.mark.parametrize("status", [201, 400, 429, 499, 500, 529])
async def test_a_reply_other_than_200_is_not_kept(status: int) -> None:
    bench = Bench()
    assert (await bench.ask(Work(reply(1, status=status)))).status == status
    assert await bench.ask(Work(reply(2))) == reply(2)
    assert bench.memory.statistics().num_answers == 1


@pytest.mark.parametrize("key", [b"", b"x" * 256, "é".encode("latin-1"), b"a\tb", b"a\r\nb", b"\x7f", b"k\n"])
async def test_a_key_that_is_none(key: bytes) -> None:
    bench, work = Bench(), Work()
    with pytest.raises(InvalidRequest):
        await bench.ask(work, key=key)
    assert work.num_calls == 0
    assert await bench.ask(work, key=b"~ " * 127) == reply()


async def test_another_body_is_refused_before_and_after_the_answer() -> None:
    bench, work = Bench(), Work(is_open=False)
    first = bench.ask(work)
    await work.begun.wait()
    with pytest.raises(IdempotencyMismatch):
        await bench.ask(work, body=b"other")
    with pytest.raises(IdempotencyMismatch):
        await bench.other.answer("tenant", b"k", b"other", "/v1/messages", work)
    work.open.set()
    assert await first == reply()
    with pytest.raises(IdempotencyMismatch):
        await bench.ask(work, body=b"other")
    with pytest.raises(IdempotencyMismatch):
        await bench.one.answer("tenant", b"k", b"b", "/v1/messages anthropic", work)
    assert work.num_calls == 1
    assert bench.one.statistics().num_mismatches == 3
    await bench.settled()


async def test_keys_are_a_tenants_own() -> None:
    bench = Bench()
    mine = await bench.one.answer("a", b"bc", b"b", "r", Work(reply(1)))
    assert await bench.one.answer("ab", b"c", b"b", "r", Work(reply(2))) == reply(2)
    assert mine == reply(1)
    assert digest("a", b"bc") != digest("ab", b"c")
    assert len(digest("a", b"bc")) == 64


async def test_fifty_at_once_by_two_gateways_are_one_run() -> None:
    bench, work = Bench(), Work(reply(3), is_open=False)
    callers = [
        asyncio.ensure_future(gateway.answer("tenant", b"k", b"b", "/v1/messages", work))
        for _ in range(25)
        for gateway in (bench.one, bench.other)
    ]
    await work.begun.wait()
    work.open.set()
    replies = await asyncio.gather(*callers)
    assert {answer.body for answer in replies} == {b'{"n": 3}'}
    assert work.num_calls == 1
    assert sum((b"idempotent-replayed", b"true") not in answer.headers for answer in replies) == 1
    await bench.settled()


async def test_an_error_reaches_all_who_wait_and_is_not_kept() -> None:
    bench, work = Bench(), Work(Overloaded("full", retry_after_s=3), is_open=False)
    callers = [bench.ask(work) for _ in range(3)]
    await work.begun.wait()
    work.open.set()
    assert await asyncio.gather(*callers, return_exceptions=True) == [work.answer] * 3
    assert await bench.ask(Work(reply(2))) == reply(2)
    await bench.settled()


async def test_answered_elsewhere_for_too_long_is_a_conflict() -> None:
    bench, work = Bench(IdempotencyConfig(wait_s=0.03)), Work(is_open=False)
    elsewhere = asyncio.ensure_future(bench.other.answer("tenant", b"k", b"b", "/v1/messages", work))
    await work.begun.wait()
    callers = [bench.ask(work), bench.ask(work)]
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(answer) for answer in answers] == [IdempotencyConflict] * 2
    work.open.set()
    assert await elsewhere == reply()
    assert (await bench.ask(work)).body == reply().body
    assert work.num_calls == 1
    await bench.settled()


async def test_without_the_store_nothing_runs() -> None:
    bench, work = Bench(), Work()
    bench.store.away = {"claim"}
    with pytest.raises(Overloaded):
        await bench.ask(work)
    assert work.num_calls == 0
    await bench.settled()


async def test_an_answer_that_cannot_be_kept_is_given() -> None:
    bench = Bench()
    bench.store.away = {"keep"}
    assert await bench.ask(Work()) == reply()
    assert bench.one.statistics().num_unkept == 1
    assert bench.memory.statistics().num_claims == 1  # Of a store that shares: until it ends by itself.


async def test_what_cannot_be_released_hides_no_error() -> None:
    bench = Bench()
    bench.store.away = {"release"}
    with pytest.raises(InvalidRequest, match="no"):
        await bench.ask(Work(InvalidRequest("no")))


async def test_a_claim_is_renewed_while_the_work_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batcher.service.idempotency._RENEW_S", 0.001)
    bench, work = Bench(), Work(is_open=False)
    caller = bench.ask(work)
    await until(lambda: bench.store.num_renewed >= 2)
    bench.store.away = {"renew"}  # It goes on trying.
    seen = bench.store.num_renewed
    await until(lambda: bench.store.num_renewed >= seen + 2)
    work.open.set()
    await caller
    await bench.settled()


async def test_an_answer_of_another_version_is_our_fault() -> None:
    bench = Bench()
    scope = digest("tenant", b"k")
    work = Work(is_open=False)
    caller = bench.ask(work)
    await work.begun.wait()
    await bench.memory.keep(scope, bench.one._attempts[scope].holder, b"\x00nonsense", tenant="t")
    work.open.set()
    assert await caller == reply()
    with pytest.raises(ServerFault):
        await bench.ask(work)
