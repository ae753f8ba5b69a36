"""What a bug of ours looks like from outside, and in the books."""

import json

import pytest

from tests.service.errors import assert_error
from tests.service.serving import generating, quick, serving, simulated
from tests.service.sse import ask
from tests.service.wire_client import run

pytestmark = [pytest.mark.anyio]


async def test_a_bug_is_one_500_and_one_line(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It was counted twice: where it happened, and where every bug is answered."""
    async with generating(simulated()) as server:
        monkeypatch.setattr(server.service, "submit", lambda *arguments: 1 / 0)
        assert_error(await server.ask(ask("hello")), 500, "api_error", may_retry="true")
        assert server.app.state.service.front.meters.statuses["/v1/messages"] == [0, 0, 0, 0, 0, 1]
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if '"event":"request"' in line]
    assert [(line["status"], line["outcome"]) for line in lines] == [(500, "failed")]


async def test_a_bug_in_the_plain_route_is_one_500_of_its_own_call(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was counted as a call that nobody knew: without its tenant, its tier and its model."""
    async with serving(quick()) as server:
        monkeypatch.setattr(server.service.run, "submit", lambda *arguments, **names: 1 / 0)
        assert_error(await server.ask(run("hello", path="/v1/run?by=asgi")), 500, "api_error", may_retry="true")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if '"event":"request"' in line]
    assert [(line["status"], line["outcome"], line["tenant"]) for line in lines] == [(500, "failed", "dev-paid")]
