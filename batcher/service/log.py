"""Structured logs: one JSON object a line, on standard error. Fields are data, never formatted into a sentence."""

import json
import logging
import sys
from typing import Any

import msgspec

_logger = logging.getLogger("batcher")


class JsonFormatter(logging.Formatter):
    """`{"at", "level", "event", ...fields}`. Values that JSON cannot carry are shown by their `str`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": round(record.created, 3),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.name != _logger.name:
            line["logger"] = record.name
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return _encode(line)


def _encode(line: dict[str, Any]) -> str:
    try:
        return msgspec.json.encode(line, enc_hook=str).decode()
    except UnicodeEncodeError:
        # A lone surrogate in a text of somebody else's: shown escaped rather than lost with its line.
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Sends every logger of this process through one handler. Call once, at start."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    _logger.setLevel(level.upper())


def event(name: str, /, **fields: Any) -> None:
    _logger.info(name, extra={"fields": fields})


def warning(name: str, /, **fields: Any) -> None:
    _logger.warning(name, extra={"fields": fields})


def error(name: str, /, exc_info: BaseException | None = None, **fields: Any) -> None:
    _logger.error(name, exc_info=exc_info, extra={"fields": fields})
