"""The structured log: one line of JSON for each event, whatever the event carries (B74)."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from batcher.service import log


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Iterator[io.StringIO]:
    """What the service's own logger writes, in the form in which it is configured."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(log.JsonFormatter())
    logger = logging.getLogger("batcher")
    monkeypatch.setattr(logger, "handlers", [handler])
    monkeypatch.setattr(logger, "propagate", False)
    with caplog.at_level(logging.INFO, "batcher"):
        yield stream


def written(lines: io.StringIO) -> dict[str, Any]:
    (line,) = lines.getvalue().splitlines()
    parsed: dict[str, Any] = json.loads(line)
    return parsed


def test_an_event_is_a_line_with_its_fields(lines: io.StringIO) -> None:
    log.event("listening", url="http://127.0.0.1:1", workers=3, tiers=("paid", "free"), poison=None)
    line = written(lines)
    assert isinstance(line.pop("at"), float)
    assert line == {
        "level": "info",
        "event": "listening",
        "url": "http://127.0.0.1:1",
        "workers": 3,
        "tiers": ["paid", "free"],
        "poison": None,
    }


def test_an_exception_stays_on_its_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        log.error("failed", exc_info=error)
    line = written(lines)
    assert (line["level"], line["event"]) == ("error", "failed")
    assert "ValueError: first\nsecond" in line["exception"]


@pytest.mark.parametrize(
    "value", ["a\nb", "\ud83d", "\0", 'a"b', b"bytes", object(), {"a": object()}, 1e999, ValueError("\ud83d")]
)
def test_no_value_breaks_a_line(lines: io.StringIO, value: object) -> None:
    log.warning("odd", value=value)
    (line,) = lines.getvalue().splitlines()
    assert line.startswith("{")
    assert '"odd"' in line or "'odd'" in line
