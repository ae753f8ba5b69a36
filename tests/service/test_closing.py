"""The last words of a service: in order, off the event loop, and never for longer than they may take."""

import asyncio
import threading
from pathlib import Path

import pytest

from batcher.config import Switch
from batcher.service.closing import close_in_order
from batcher.service.request_log import RequestLog
from batcher.service.spans import SpanTracer
from batcher.service.stores.usage_log import UsageLog
from tests.service.serving import quick, serving
from tests.service.wire_client import run

pytestmark = pytest.mark.anyio


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Of closing; threads of other tests may have last words, too."""
    return [record.message for record in caplog.records if record.message.startswith("close_")]


async def test_each_is_closed_in_its_turn_while_the_loop_goes_on() -> None:
    has_ticked = threading.Event()
    done: list[str] = []

    def waits_for_the_loop() -> None:
        assert has_ticked.wait(10.0)
        done.append("first")

    asyncio.get_running_loop().call_soon(has_ticked.set)
    await close_in_order([waits_for_the_loop, lambda: done.append("second")], within_s=10.0)
    assert done == ["first", "second"]


async def test_one_that_raises_does_not_keep_the_next_from_closing(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def raises() -> None:
        raise OSError("disk")

    await close_in_order([raises, lambda: done.append("second")], within_s=10.0)
    assert done == ["second"]
    assert told(caplog) == ["close_failed"]


async def test_one_that_hangs_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    is_let_go, is_over = threading.Event(), threading.Event()

    def hangs() -> None:
        is_let_go.wait()

    await close_in_order([hangs, is_over.set], within_s=0.01)
    assert told(caplog) == ["close_left_behind"]
    assert not is_over.is_set()
    is_let_go.set()
    assert is_over.wait(10.0)


async def test_a_service_closes_what_writes_off_its_loop_and_its_log_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[tuple[str, bool]] = []
    for writer in (UsageLog, SpanTracer, RequestLog):

        def close(self: object, real: object = writer.close, name: str = writer.__name__) -> None:
            closed.append((name, threading.current_thread() is threading.main_thread()))
            assert callable(real)
            real(self)

        monkeypatch.setattr(writer, "close", close)
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    async with serving(quick(tracing=Switch.ON, usage_dir=tmp_path)) as server:
        assert (await server.ask(run("a"))).status == 200
    assert closed == [("UsageLog", False), ("SpanTracer", False), ("RequestLog", False)]
