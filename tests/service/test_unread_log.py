"""A log that nobody reads: the service answers, says what it dropped, and ends when it is told to."""

import fcntl
import json
import logging
import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from batcher.service import log
from benchmarks.ports import free_port
from tests.service.process import PATIENCE_S, answers
from tests.service.serving import FAULTY

SMALL = 4096
"""Bytes that a pipe is made to hold."""


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, SMALL)
    yield reader, writer
    for fd in (reader, writer):
        os.close(fd)


def test_whoever_logs_waits_for_no_reader(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with log.configured("info", fd=writer):
        for number in range(5000):
            log.event("said", number=number)
        read = b""
        deadline = time.monotonic() + PATIENCE_S
        while b"log_lines_dropped" not in read:  # As soon as somebody reads.
            assert time.monotonic() < deadline
            if select.select([reader], [], [], 0.1)[0]:
                read += os.read(reader, SMALL)
    *lines, last = [json.loads(line) for line in read.splitlines()]
    assert [line["number"] for line in lines] == list(range(len(lines))), "the first ones, in order"
    assert last["event"] == "log_lines_dropped"
    assert len(lines) + last["dropped"] == 5000


class Wordless:
    def __str__(self) -> str:
        raise ValueError("no words")


def test_what_cannot_be_logged_is_said_and_breaks_nobody_off(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    with log.configured("info", fd=writer):
        logging.getLogger("some.library").warning("%d things", "many")
        log.event("said", value=Wordless())
        deadline = time.monotonic() + PATIENCE_S
        while log.statistics().num_written < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    lines = [json.loads(line) for line in os.read(reader, SMALL).splitlines()]
    assert [(line["event"], line["logger"]) for line in lines] == [("not_logged", "some.library"), ("not_logged", "batcher")]


def test_afterwards_all_loggers_are_as_they_were(pipe: tuple[int, int]) -> None:
    """Or a process that serves for a while, as a test or a notebook does, would be deaf to what is logged later."""
    loggers = [logging.getLogger(name) for name in (None, "batcher", "uvicorn")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    with log.configured("error", fd=pipe[1]):
        assert [logger.level for logger in loggers] == [logging.WARNING, logging.ERROR, logging.ERROR]
    assert [(logger.level, logger.handlers[:]) for logger in loggers] == before


def test_a_child_that_was_forked_writes_where_it_logs() -> None:
    """A backend may fork, and the thread that writes stays behind."""
    command = (
        "import os\nfrom batcher.service import log\nwith log.configured('info'):\n"
        "    if os.fork() == 0:\n        log.event('child')\n        os._exit(0)\n"
        "    os.wait()\n    log.event('parent')\n"
    )
    told = subprocess.run((sys.executable, "-c", command), stderr=subprocess.PIPE, timeout=PATIENCE_S, check=True).stderr
    assert [json.loads(line)["event"] for line in told.splitlines()] == ["child", "parent"]


def test_a_server_whose_log_nobody_reads_answers_and_ends(pipe: tuple[int, int]) -> None:
    """Requests that are refused, batches that raise: it has more to say than the pipe holds, on either way to it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = ("--port", str(port), "--backend", FAULTY, "--policy", "single")
    command = (sys.executable, "-m", "batcher", "serve", *flags)
    with subprocess.Popen(command, stderr=pipe[1], stdout=subprocess.DEVNULL) as server:
        try:
            while not answers(f"{url}/ready"):
                assert server.poll() is None
            for _ in range(100):
                request = urllib.request.Request(f"{url}/v1/run", b'{"input": "BOOM"}', {"x-api-key": "dev-paid"})
                with pytest.raises(urllib.error.HTTPError, match="500"):
                    urllib.request.urlopen(request, timeout=PATIENCE_S)
            assert answers(f"{url}/health")
            server.send_signal(signal.SIGTERM)
            assert server.wait(PATIENCE_S) == 0
        finally:
            server.kill()
