"""Bar F6, quickly; and that whoever judges it would see what is wrong."""

from collections import Counter
from pathlib import Path

import pytest

from benchmarks import crash
from benchmarks.crash import Bill, Written, _judge, _read
from benchmarks.crash_callers import Books
from tests.benchmarks.test_commands import run
from tests.usage.examples import record, write


def test_usage_holds_when_the_server_is_killed() -> None:
    output = run(crash.main, "--kills", "2", "--callers", "4")
    assert "every answer received has one record, and every question is billed once" in output


BOOKS = Books(answers=[("req_1", 3, 4), ("req_1", 3, 4), ("req_2", 5, 6)], billable=[(3, 4), (5, 6)])
GOOD = Written(records=Counter(["req_1", "req_2", "req_3"]), digests=Counter("aab"), num_torn=0, num_segments=1)
BILL = Bill(num_requests=2, input_tokens=8, output_tokens=10)


@pytest.mark.parametrize(
    ("written", "bill", "words"),
    [
        (GOOD, BILL, []),
        (GOOD._replace(records=Counter(["req_1", "req_3"])), BILL, ["1 answers that were received have no record"]),
        (GOOD._replace(records=Counter(["req_1", "req_2", "req_2"])), BILL, ["1 request ids have more than one record"]),
        (GOOD, BILL._replace(num_requests=3), ["the bill is Bill(num_requests=3"]),
        (GOOD, BILL._replace(output_tokens=11), ["the bill is Bill(num_requests=2"]),
    ],
)
def test_what_is_wrong_is_seen(written: Written, bill: Bill, words: list[str]) -> None:
    found = _judge(BOOKS, written, bill)
    assert len(found) == len(words)
    assert all(line.startswith(start) for line, start in zip(found, words, strict=True))


def test_the_folder_is_read_without_the_reader_under_test(tmp_path: Path) -> None:
    write(tmp_path, record("req_1", idempotency="a"), tail=b'{"request_id":"req_2')
    write(tmp_path, record("req_1", idempotency="a"), record("req_3", idempotency="b"), number=2)
    assert _read(tmp_path) == Written(Counter(["req_1", "req_1", "req_3"]), Counter("aab"), 1, 2)
