"""Large requests take turns, so that small ones pass between."""

import asyncio

import pytest

from batcher.core.admission.gate import Refusal
from batcher.errors import Overloaded, ServiceError
from batcher.service.auth import Caller
from batcher.service.turns import Turns
from batcher.types import Outcome
from tests.service.serving import quick, serving, until
from tests.service.turns import LARGE, ROUTES, asked, next_round, withhold
from tests.service.wire_client import connected, run

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quiet")]


class Line:
    """Works that are to be done in turns."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.done: list[str] = []

    def ask(self, *names: str, tenant: str = "ann", is_wanted: bool = True) -> None:
        for name in names:
            self.turns.call(tenant, lambda name=name: self._do(name, is_wanted))  # type: ignore[misc]

    def _do(self, name: str, is_wanted: bool) -> bool:
        if is_wanted:
            self.done.append(name)
        return is_wanted


@pytest.fixture
def line() -> Line:
    return Line()


async def test_the_first_of_a_round_has_its_turn_at_once_and_the_others_one_each_round(line: Line) -> None:
    line.ask("a", "b", "c")
    assert (line.done, repr(line.turns)) == (["a"], "Turns(2 waiting)")
    await next_round()
    assert line.done == ["a", "b"]
    await next_round()
    assert line.done == ["a", "b", "c"]
    await next_round()
    line.ask("d")
    assert line.done == ["a", "b", "c", "d"], "nothing is put off where there is no crowd"


async def test_tenants_take_turns(line: Line) -> None:
    """One key's thousand large bodies stood before another's one."""
    line.ask("a1", "a2", "a3", "a4", tenant="ann")
    line.ask("b1", tenant="ben")
    for _ in range(5):
        await next_round()
    assert line.done == ["a1", "a2", "b1", "a3", "a4"]


async def test_what_goes_on_stands_before_what_has_not_begun(line: Line) -> None:
    line.ask("a1", "b1", "c1")
    line.turns.call("ann", lambda: line._do("a2", True), goes_on=True)
    for _ in range(4):
        await next_round()
    assert line.done == ["a1", "a2", "b1", "c1"]


async def test_what_is_not_wanted_any_more_takes_no_turn(line: Line) -> None:
    line.ask("gone", is_wanted=False)
    line.ask("a")
    assert line.done == ["a"]
    line.ask("gone", "gone too", is_wanted=False)
    line.ask("b")
    await next_round()
    assert line.done == ["a", "b"]


async def test_work_that_asks_for_a_turn_itself_gets_one_in_the_next_round(line: Line) -> None:
    def ask_again() -> bool:
        line.ask("inner")
        assert line.done == []
        return True

    line.turns.call("ann", ask_again)
    await next_round()
    assert line.done == ["inner"]


async def test_work_that_breaks_does_not_keep_the_others_from_their_turns(line: Line) -> None:
    def broken() -> bool:
        line.ask("next")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        line.turns.call("ann", broken)
    await next_round()
    assert line.done == ["next"]


async def test_tasks_wait_in_the_same_line_as_callbacks(line: Line) -> None:
    async def take(name: str) -> None:
        await line.turns.take("ann")
        line.done.append(name)

    tasks = [asyncio.ensure_future(take(name)) for name in ("a", "b", "c")]
    await next_round()
    line.ask("d")
    await asyncio.gather(*tasks)
    await next_round()
    assert sorted(line.done) == ["a", "b", "c", "d"]
    assert [name for name in line.done if name != "d"] == ["a", "b", "c"], "a task goes on one round after its turn has come"


async def test_who_was_cancelled_while_waiting_takes_nobodys_turn(line: Line) -> None:
    line.ask("a")
    waiting = asyncio.ensure_future(line.turns.take("ann"))
    line.ask("b")
    await next_round()
    assert repr(line.turns) == "Turns(1 waiting)", "b's turn has come, before the task began to wait"
    waiting.cancel()
    line.ask("c")
    await next_round()
    assert waiting.cancelled()
    assert (line.done, line.turns.num_waiting) == (["a", "b", "c"], 0)


@pytest.fixture(params=ROUTES)
def route(request: pytest.FixtureRequest) -> str:
    path: str = request.param
    return path


async def test_small_requests_pass_while_large_ones_wait_for_their_turn(route: str) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        turns = withhold(server)
        client.write(asked(route, LARGE))
        await until(lambda: len(turns.withheld) == 1)
        assert server.service.front.door.bodies.num_bytes > len(LARGE), "it is held, and counted, until then"
        assert (await server.ask(asked(route, "small"))).status == 200
        assert server.service.driver.num_live == 0
        turns.give()
        assert (await client.read()).status == 200


async def test_who_leaves_before_its_turn_gets_no_work_done(route: str) -> None:
    async with serving(quick(batch_timeout=0.1)) as server:
        turns = withhold(server)
        async with connected(server.port) as client:
            client.write(asked(route, LARGE))
            await until(lambda: len(turns.withheld) == 1)
            client.leave()
            await until(lambda: not server.server.server_state.connections)
        turns.give()
        await server.check_idle()
        outcomes = server.service.meters.tiers["paid"].outcomes
        assert sum(outcomes.values()) == outcomes[Outcome.CANCELLED]


async def test_what_is_asked_behind_a_large_request_waits_for_it(route: str) -> None:
    async with serving(quick()) as server, connected(server.port) as client:
        turns = withhold(server)
        client.write(asked(route, LARGE) + run("second") + run("third"))
        await until(lambda: len(turns.withheld) == 1)
        turns.give()
        assert len((await client.read()).body) > len(LARGE)
        assert [(await client.read()).json["output"] for _ in range(2)] == ["second", "third"]


# Asked before a body


async def test_once_somebody_was_refused_small_requests_are_judged_by_their_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_early: list[str] = []
    async with serving(quick()) as server:
        driver, door = server.service.driver, server.service.front.door
        refuse_early = driver.refuse_early

        def note(caller: Caller) -> ServiceError | None:
            asked_early.append(caller.tenant)
            return refuse_early(caller)

        door.refuse_early = note
        assert (await server.ask(run("small"))).status == 200
        assert asked_early == []
        refusal = Refusal(Outcome.REJECTED_CAPACITY, Overloaded("as if it were busy", retry_after_s=1))
        with monkeypatch.context() as patched:
            patched.setattr(driver, "_ask_gate", lambda *_, **__: refusal)
            assert [(await server.ask(run("small"))).status for _ in range(2)] == [529, 529]
        assert (await server.ask(run("small"))).status == 200
        assert asked_early == ["dev-paid", "dev-paid"]
