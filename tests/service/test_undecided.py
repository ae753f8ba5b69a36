"""Callers who leave, or are refused, while something about them is still to be decided: a limit, a check, an answer that others
may ask for too. Whatever was reserved comes back once, and what was computed is charged once."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from batcher.config import TierConfig
from batcher.core.admission.reservation import Reservation
from batcher.service.account import Account
from batcher.service.front import Front
from batcher.service.run_asgi import RunAsgi
from batcher.service.safety.contract import CheckContext, Checked, Finding
from tests.service.errors import assert_error
from tests.service.limited import SilentStore
from tests.service.serving import ASYNC_FAULTY, Gate, generating, in_mode, quick, serving, simulated, until
from tests.service.sse import MESSAGES, ask, body
from tests.service.wire_client import KEY, connected, request, run

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]

RUN_BODY = b'{"input": "hello"}'
LIMITED = (TierConfig("paid", tokens_per_minute=10**9),)


# Who leaves while something is still to be decided


class LateStore(SilentStore):
    """Says what the real one says, when it is told to."""

    def __init__(self, front: Front) -> None:
        super().__init__()
        self.memory = front.limiter._store
        front.limiter._store = cast(Any, self)

    def say(self) -> None:
        while self.asked:
            self.memory.reserve(*self.asked.pop())

    def settle(self, reservation: Reservation, tokens: int) -> None:
        self.memory.settle(reservation, tokens)

    def give_back(self, reservation: Reservation) -> None:
        self.memory.give_back(reservation)


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("mode", ["continuous", "batch"])
async def test_who_leaves_before_the_verdict_of_its_limit_holds_nothing(mode: str, is_streamed: bool) -> None:
    """The verdict comes later, and says that it is admitted."""
    async with in_mode(mode, tiers=LIMITED) as server:
        front: Front = server.app.state.service.front
        store = LateStore(front)
        async with connected(server.port) as client:
            client.write(ask("hello", stream=is_streamed))
            await until(lambda: len(store.asked) == 1)
        state = server.server.server_state
        await until(lambda: not state.connections and not state.tasks)
        store.say()
        assert front.limiter.statistics().num_given_back == 1
        assert server.app.state.service.num_live == 0


@pytest.mark.parametrize("tokens_per_minute", [1000, 11])
async def test_a_verdict_between_leaving_and_hearing_of_it_is_undone(tokens_per_minute: int) -> None:
    """It was told to a future that was cancelled already, and that raised into whoever was telling everybody theirs."""
    async with serving(quick(tiers=(TierConfig("paid", tokens_per_minute=tokens_per_minute),))) as server:
        front = server.service.front
        store = LateStore(front)
        passage = front.open("/v1/messages", {}, None)
        passage.caller, passage.model = front.door.authenticate({b"x-api-key": b"dev-paid"}), "simulated"
        accounts = [Account(front, passage) for _ in range(2)]
        waiting = [asyncio.ensure_future(account.reserved(5, 5)) for account in accounts]
        await until(lambda: len(store.asked) == 2)
        for task in waiting:
            task.cancel()
        store.say()
        assert await asyncio.gather(*waiting, return_exceptions=True) == [ANY_CANCELLED, ANY_CANCELLED]
        assert front.limiter.statistics().num_open == 0
        passage.leave()


async def test_a_refusal_between_leaving_and_hearing_of_it_is_nobodys() -> None:
    """The same on the plain route's way through ASGI."""
    async with serving(quick(tiers=(TierConfig("paid", tokens_per_minute=10),))) as server:
        front = server.service.front
        store = LateStore(front)
        passage = front.open("/v1/run", {}, None)
        passage.caller = front.door.authenticate({b"x-api-key": b"dev-paid"})
        answering = asyncio.ensure_future(RunAsgi(server.service.run, body_timeout_s=1.0)._run(passage, RUN_BODY, None))
        await until(lambda: len(store.asked) == 1)
        # Somebody else takes what was left of the minute meanwhile.
        store.memory.reserve(store.asked[0][0], 10, lambda verdict: None)
        answering.cancel()
        store.say()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert front.limiter.statistics().num_open == 0
        passage.leave()


async def test_a_call_that_its_server_cancels_is_one_that_left() -> None:
    """It had no line at all."""
    async with serving(quick()) as server:
        scope: Any = {"headers": [(b"x-api-key", b"dev-paid")]}
        never: Any = asyncio.Event().wait
        answering = asyncio.ensure_future(RunAsgi(server.service.run, body_timeout_s=60.0)(scope, never, never))
        await asyncio.sleep(0)
        answering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answering
        assert server.service.front.meters.statuses["/v1/run"] == [0, 0, 0, 0, 1, 0]


class _AnyCancelled:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, asyncio.CancelledError)


ANY_CANCELLED = _AnyCancelled()


class Pondering:
    """A checker of input that never comes to an end; `num_checks` are under way."""

    num_checks = 0

    async def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        Pondering.num_checks += 1
        try:
            await asyncio.Event().wait()
        finally:
            Pondering.num_checks -= 1
        return None

    def check_output(self, context: CheckContext) -> Any:
        raise AssertionError("nothing is answered")


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("mode", ["continuous", "batch"])
async def test_who_leaves_in_its_check_holds_nothing(mode: str, is_streamed: bool) -> None:
    checker = f"{__name__}:Pondering"
    async with in_mode(mode, tiers=LIMITED, safety_checker=checker, safety_timeout=60.0) as server:
        async with connected(server.port) as client:
            client.write(ask("hello", stream=is_streamed))
            await until(lambda: Pondering.num_checks == 1)
        await until(lambda: Pondering.num_checks == 0)
        assert server.app.state.service.front.limiter.statistics().num_given_back == 0


class PonderingOutput:
    """A checker of output that never comes to an end; `num_checks` are under way."""

    num_checks = 0

    async def check_input(self, context: CheckContext, texts: Sequence[str]) -> Finding | None:
        return None

    def check_output(self, context: CheckContext) -> "PonderingOutput":
        return self

    async def feed(self, text: str) -> Checked:
        PonderingOutput.num_checks += 1
        try:
            await asyncio.Event().wait()
        finally:
            PonderingOutput.num_checks -= 1
        return Checked(text)

    async def flush(self) -> Checked:
        return Checked("")


async def test_who_leaves_while_its_answer_is_checked_is_charged_what_was_computed(path: str) -> None:
    """All came back: leaving then made the work free."""
    checker = f"{__name__}:PonderingOutput"
    async with serving(quick(tiers=LIMITED, safety_checker=checker, safety_timeout=60.0)) as server:
        async with connected(server.port) as client:
            client.write(run("hello", path=path))
            await until(lambda: PonderingOutput.num_checks == 1)
        await until(lambda: PonderingOutput.num_checks == 0)
        limits = server.service.front.limiter.statistics()
        assert (limits.num_settled, limits.num_given_back) == (1, 0)


@pytest.mark.parametrize("path", ["/v1/run", MESSAGES])
async def test_who_leaves_with_an_idempotency_key_stops_the_work_and_frees_the_key(path: str, gate: Gate) -> None:
    headers = {**KEY, "idempotency-key": "k"}
    async with serving(quick(tiers=LIMITED, backend=ASYNC_FAULTY, workers=1)) as server, connected(server.port) as holding:
        holding.write(run(gate.hold))
        await until(lambda: server.statistics.num_running == 1)
        content = json.dumps({"input": "hello"}).encode() if path == "/v1/run" else body("hello", model=ASYNC_FAULTY)
        async with connected(server.port) as client:
            client.write(request(path=path, body=content, headers=headers))
            await until(lambda: server.statistics.num_live == 2)
        await until(lambda: server.statistics.num_live == 1)
        await until(lambda: server.service.front.idempotency.statistics().num_running == 0)
        gate.open()
        assert (await holding.read()).status == 200
        assert (await server.ask(request(path=path, body=content, headers=headers))).status == 200
        assert server.statistics.counters.batch_sizes == {1: 2}


# What is refused in the middle


async def test_an_answer_that_is_refused_in_the_middle_is_charged_once(tmp_path: Path) -> None:
    """Its books were closed twice: the second time gave back what was reserved while the first still waited to hear what had
    been computed, which then was neither charged nor recorded."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nname = "out"\nphrases = ["secret"]\nwhere = "output"\nverdict = "refuse"\n')
    usage = tmp_path / "usage"
    settings = simulated(tiers=LIMITED, safety_rules=rules, usage_dir=usage, simulated_time_scale=0.1)
    async with generating(settings) as server:
        # So long that the engine is still at work when it is refused.
        response = await server.ask(ask("this is a secret " + "and so on " * 50, max_tokens=1000))
        assert_error(response, 400, "invalid_request_error")
        await until(lambda: server.service.front.limiter.statistics().num_settled == 1)
        (record,) = [json.loads(line) for file in usage.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert (record["outcome"], record["output_tokens"]) == ("failed", 0)
    assert record["computed_tokens"] >= len("this is a secret")


async def test_whose_answers_may_not_go_out_comes_to_an_end_under_its_limit(path: str, tmp_path: Path) -> None:
    """All came back: such a caller computed without end."""
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nname = "out"\nphrases = ["secret"]\nwhere = "output"\nverdict = "refuse"\n')
    tiers = (TierConfig("paid", requests_per_minute=2),)
    async with serving(quick(tiers=tiers, safety_rules=rules)) as server:
        statuses = [(await server.ask(run("a secret", path=path))).status for _ in range(3)]
        limits = server.service.front.limiter.statistics()
    assert statuses == [400, 400, 429]
    assert (limits.num_settled, limits.num_given_back) == (2, 0)
