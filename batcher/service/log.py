"""Structured logs: one JSON object a line, on standard error. Fields are data, never formatted into a sentence.

Whoever logs waits for no reader of it; see `line_writer.py`.
"""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from batcher.service.line_writer import NO_LINES, STDERR, LinesStatistics, LineWriter

_MAX_LINES = 2_000
"""That wait to be written: some 10 MB, if all of them have tracebacks."""

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


class _Handler(logging.Handler):
    """Its lock, held while it emits, makes all threads one caller of the writer."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self._writer: LineWriter[bytes] = LineWriter(b"".join, name="log", fd=fd, gather_s=0.0, max_lines=_MAX_LINES)
        self._writer.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Raises nothing: whoever logs is in the middle of something."""
        try:
            line = self.format(record)
        except Exception:
            line = _encode({"at": round(record.created, 3), "level": "error", "event": "not_logged", "logger": record.name})
        self._writer.write(line.encode() + b"\n")

    def statistics(self) -> LinesStatistics:
        return self._writer.statistics()

    def close(self) -> None:
        self._writer.close()
        super().close()


@contextmanager
def configured(level: str, *, fd: int = STDERR) -> Iterator[None]:
    """Meanwhile every logger of this process speaks through one handler; at the end what waits is written, if a reader takes
    it in time, and all is as it was before. Not twice at once; and what is logged while it ends is lost."""
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn")
    levels = [(logger, logger.level) for logger in (root, uvicorn, _logger)]
    handlers = root.handlers[:]
    handler = _Handler(fd)
    try:
        root.handlers[:] = [handler]
        root.setLevel(logging.WARNING)
        # Its warnings are what a client does wrong, and each such request has its own line in the request log.
        uvicorn.setLevel(logging.ERROR)
        _logger.setLevel(level.upper())
        yield
    finally:
        handler.close()
        root.handlers[:] = handlers
        for logger, before in levels:
            logger.setLevel(before)


def _write_at_once() -> None:
    """A child that was forked, by a backend perhaps, has no thread that writes."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler if isinstance(each, _Handler) else each for each in root.handlers]


os.register_at_fork(after_in_child=_write_at_once)


def statistics() -> LinesStatistics:
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _Handler):
            return handler.statistics()
    return NO_LINES


def event(name: str, /, **fields: Any) -> None:
    _logger.info(name, extra={"fields": fields})


def warning(name: str, /, **fields: Any) -> None:
    _logger.warning(name, extra={"fields": fields})


def error(name: str, /, exc_info: BaseException | None = None, **fields: Any) -> None:
    _logger.error(name, exc_info=exc_info, extra={"fields": fields})
