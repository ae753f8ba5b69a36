"""The usage log on disks that fill up, break, vanish, and under processes that are killed."""

import errno
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batcher.config import OnFailure, UsageConfig
from batcher.errors import ConfigError, Overloaded
from batcher.service.records import UsageRecord
from batcher.service.stores import usage_log
from batcher.service.stores.usage_log import UsageLog
from batcher.usage.segments import list_segments, read_records
from tests.usage.examples import NOON, encode, record, write

ROOT = Path(__file__).parents[3]


class Disk:
    """Stands before the calls that write. `left` is the room in bytes, of which a write takes what fits; `broken` are the
    calls that fail with EIO, after they have done their work if they write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: float = float("inf")
        self.most = 10_000_000
        """Bytes that one write takes."""
        self.broken: set[str] = set()
        self.num_writes = 0
        self.num_fsyncs = 0
        self._write, self._fsync, self._ftruncate, self._open = os.write, os.fsync, os.ftruncate, os.open
        module = "batcher.service.stores.usage_segments.os."
        monkeypatch.setattr(module + "write", self.write)
        monkeypatch.setattr(module + "fsync", self.fsync)
        monkeypatch.setattr(module + "ftruncate", self.ftruncate)
        monkeypatch.setattr(module + "open", self.open)

    def _fail_if_broken(self, name: str) -> None:
        if name in self.broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write(self, fd: int, data: bytes) -> int:
        self.num_writes += 1
        if not self.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        num_written = self._write(fd, data[: int(min(self.left, self.most))])
        self.left -= num_written
        self._fail_if_broken("write")
        return num_written

    def fsync(self, fd: int) -> None:
        self.num_fsyncs += 1
        self._fail_if_broken("fsync")
        self._fsync(fd)

    def ftruncate(self, fd: int, length: int) -> None:
        self._fail_if_broken("ftruncate")
        self.left += os.fstat(fd).st_size - length
        self._ftruncate(fd, length)

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        self._fail_if_broken("open")
        return self._open(path, flags, mode)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread does nothing by itself: a test calls `_sync` and `_recover` when it wants them."""
    monkeypatch.setattr(usage_log, "_SYNC_S", 3600.0)


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., UsageLog]]:
    logs: list[UsageLog] = []

    def begin(*, on_failure: OnFailure = OnFailure.OPEN, segment_bytes: int = 2**20) -> UsageLog:
        logs.append(UsageLog(UsageConfig(directory=tmp_path, segment_bytes=segment_bytes, on_failure=on_failure)))
        return logs[-1]

    yield begin
    for log in logs:
        log.close()
    assert "usage-log" not in [thread.name for thread in threading.enumerate()]


def read(directory: Path) -> dict[str, list[UsageRecord | None]]:
    return {segment.path.name: list(read_records(segment.path)) for segment in list_segments(directory)}


def ids(directory: Path) -> list[str]:
    """Of all records in order of segments; a line that is none is told as `-`."""
    return [each.request_id if each else "-" for records in read(directory).values() for each in records]


def refuses(log: UsageLog) -> bool:
    return log.refusal is not None


Begin = Callable[..., UsageLog]


def test_one_write_for_each_record_at_once(begin: Begin, disk: Disk, tmp_path: Path) -> None:
    log = begin()
    assert read(tmp_path) == {}
    for number in range(3):
        log.append(record(f"req_{number}"))
        assert disk.num_writes == number + 1
        assert len(ids(tmp_path)) == number + 1
    assert read(tmp_path) == {"usage-2026-11-30-0001.jsonl": [record(f"req_{number}") for number in range(3)]}
    assert disk.num_fsyncs == 0
    statistics = log.statistics()
    assert (statistics.num_recorded, statistics.num_segments, statistics.num_unrecorded) == (3, 1, 0)
    assert log.refusal is None


def test_it_is_synced_once_for_many_and_at_the_end(begin: Begin, disk: Disk) -> None:
    log = begin()
    for _ in range(100):
        log.append(record())
    log._sync()
    log._sync()
    assert disk.num_fsyncs == 2  # The file and, once, the folder.
    log.append(record())
    log.close()
    assert disk.num_fsyncs == 3


def test_the_thread_syncs_by_itself(begin: Begin, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage_log, "_SYNC_S", 0.001)
    is_synced = threading.Event()
    monkeypatch.setattr("batcher.service.stores.usage_segments.os.fsync", lambda fd: is_synced.set())
    begin().append(record())
    assert is_synced.wait(10)


def test_a_new_segment_by_size_and_by_day(begin: Begin, tmp_path: Path) -> None:
    log = begin(segment_bytes=4096)
    size = len(encode(record("req_00")))
    num_first = -(-4096 // size)
    for number in range(num_first + 1):
        log.append(record(f"req_{number:02}"))
    log.append(record("req_late", at=NOON + 86_400))
    log.append(record("req_before", at=NOON + 43_199.9))  # Ended just before midnight: no segment of its own.
    assert {name: len(records) for name, records in read(tmp_path).items()} == {
        "usage-2026-11-30-0001.jsonl": num_first,
        "usage-2026-11-30-0002.jsonl": 1,
        "usage-2026-12-01-0001.jsonl": 2,
    }


def test_every_process_has_segments_of_its_own(begin: Begin, tmp_path: Path) -> None:
    write(tmp_path, record("req_old"), number=7, tail=b'{"request_id":"torn')
    one, other = begin(), begin()
    one.append(record("req_one"))
    other.append(record("req_other"))
    one.append(record("req_two"))
    assert ids(tmp_path) == ["req_old", "-", "req_one", "req_two", "req_other"]
    assert list(read(tmp_path)) == [f"usage-2026-11-30-{number:04}.jsonl" for number in (7, 8, 9)]
    assert one.statistics().num_torn == 1


def test_a_name_that_another_process_takes_at_the_same_moment(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, record("req_theirs"))
    monkeypatch.setattr("batcher.service.stores.usage_segments.list_segments", lambda directory: [])
    begin().append(record("req_ours"))
    assert list(read(tmp_path).values()) == [[record("req_theirs")], [record("req_ours")]]


def test_a_full_disk_is_an_alarm_and_nothing_is_lost(
    begin: Begin, disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = begin()
    log.append(record("req_0"))
    disk.left = 40  # Takes a part of a record.
    for number in range(1, 6):
        log.append(record(f"req_{number}"))
    assert ids(tmp_path) == ["req_0"]
    statistics = log.statistics()
    assert (statistics.num_waiting, statistics.num_unrecorded, statistics.is_failing) == (5, 0, True)
    assert log.refusal is None
    log._recover()
    assert log.statistics().num_waiting == 5
    assert ids(tmp_path) == ["req_0"]
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert [(each.message, each.__dict__["fields"]["reason"]) for each in errors] == [("usage_not_recorded", "ENOSPC")]
    disk.left = 10_000
    log._recover()
    log.append(record("req_6"))
    assert ids(tmp_path) == [f"req_{number}" for number in range(7)]
    (segment,) = list_segments(tmp_path)
    assert segment.path.read_bytes() == encode(*(record(f"req_{number}") for number in range(7)))  # And nothing else.
    statistics = log.statistics()
    assert (statistics.num_recorded, statistics.num_waiting, statistics.is_failing) == (7, 0, False)


def test_a_write_that_takes_a_part_is_finished(begin: Begin, disk: Disk, tmp_path: Path) -> None:
    log = begin()
    disk.most = 100
    log.append(record("req_0"))
    assert (ids(tmp_path), disk.num_writes, log.statistics().is_failing) == (["req_0"], 2, False)


def test_while_it_fails_the_disk_is_left_alone(begin: Begin, disk: Disk) -> None:
    log = begin()
    disk.left = 0
    log.append(record())
    num_writes = disk.num_writes
    for _ in range(100):
        log.append(record())
    assert disk.num_writes == num_writes


def test_what_waits_is_bounded(begin: Begin, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(encode(record("req_0")))
    monkeypatch.setattr(usage_log, "_BACKLOG_BYTES", 3 * size)
    monkeypatch.setattr(usage_log, "_CHUNK_BYTES", size)
    log = begin()
    disk.left = 0
    for number in range(5):
        log.append(record(f"req_{number}"))
    assert (log.statistics().num_waiting, log.statistics().num_unrecorded) == (3, 2)
    disk.left = 4096 + 3 * size  # Room for the blanks and, after they are gone, everything.
    log._recover()
    assert ids(tmp_path) == ["req_0", "req_1", "req_2"]
    disk.left = 0
    for number in range(5, 10):
        log.append(record(f"req_{number}"))
    assert (log.statistics().num_waiting, log.statistics().num_unrecorded) == (3, 4)


def test_a_disk_that_fills_up_again_while_what_waits_is_written(
    begin: Begin, disk: Disk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage_log, "_CHUNK_BYTES", 1)
    monkeypatch.setattr("batcher.service.stores.usage_segments._PROBE", b" \n")
    log = begin()
    disk.left = 0
    for number in range(4):
        log.append(record(f"req_{number}"))
    disk.left = 2.5 * len(encode(record("req_0")))
    log._recover()
    assert log.statistics().is_failing
    assert ids(tmp_path) == ["req_0", "req_1"]
    disk.left = float("inf")
    log._recover()
    assert ids(tmp_path) == ["req_0", "req_1", "req_2", "req_3"]


def test_the_closed_policy_gives_no_answer_without_its_record(begin: Begin, disk: Disk, tmp_path: Path) -> None:
    log = begin(on_failure=OnFailure.CLOSED)
    log.append(record("req_0"))
    disk.left = 0
    for _ in range(2):
        with pytest.raises(Overloaded) as caught:
            log.append(record("req_1"))
        assert caught.value.retry_after_s == 30
    assert refuses(log)
    assert log.statistics().num_unrecorded == 2
    log._recover()
    assert refuses(log)
    disk.left = 10_000
    log._recover()
    assert not refuses(log)
    log.append(record("req_2"))
    assert ids(tmp_path) == ["req_0", "req_2"]


def test_a_write_that_fails_after_it_was_done_is_not_there_twice(begin: Begin, disk: Disk, tmp_path: Path) -> None:
    log = begin()
    log.append(record("req_0"))
    disk.broken = {"write"}
    log.append(record("req_1"))
    assert ids(tmp_path) == ["req_0"]
    disk.broken = set()
    log._recover()
    assert ids(tmp_path) == ["req_0", "req_1"]


def test_a_segment_that_cannot_be_cut_back_is_left(begin: Begin, disk: Disk, tmp_path: Path) -> None:
    log = begin()
    log.append(record("req_0"))
    disk.left = 30
    disk.broken = {"ftruncate"}
    log.append(record("req_1"))
    assert ids(tmp_path) == ["req_0", "-"]
    disk.left, disk.broken = float("inf"), set()
    log._recover()
    log.append(record("req_2"))
    assert read(tmp_path) == {
        "usage-2026-11-30-0001.jsonl": [record("req_0"), None],
        list(read(tmp_path))[1]: [record("req_1"), record("req_2")],
    }


def test_no_new_segment(begin: Begin, disk: Disk, tmp_path: Path) -> None:
    log = begin(segment_bytes=4096)
    disk.broken = {"open"}
    log.append(record("req_0"))
    assert ids(tmp_path) == []
    disk.broken = set()
    log._recover()
    assert ids(tmp_path) == ["req_0"]


def test_a_segment_that_cannot_be_synced_is_left(begin: Begin, disk: Disk, tmp_path: Path) -> None:
    log = begin()
    log.append(record("req_0"))
    disk.broken = {"fsync"}
    log._sync()
    disk.broken = set()
    log.append(record("req_1"))
    log._sync()
    assert [len(records) for records in read(tmp_path).values()] == [1, 1]
    assert log.statistics().num_failures == 2  # The file, and the folder that has its name.


def test_a_folder_that_is_taken_away_is_made_again(begin: Begin, tmp_path: Path) -> None:
    log = begin()
    log.append(record("req_0"))
    for segment in list_segments(tmp_path):
        segment.path.unlink()
    tmp_path.rmdir()
    log.append(record("req_1"))  # Nobody knows yet.
    log._sync()
    log.append(record("req_2"))
    assert ids(tmp_path) == ["req_2"]


def test_what_still_waits_at_the_end_is_told(begin: Begin, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    log = begin()
    disk.left = 0
    log.append(record())
    log.append(record())
    log.close()
    assert log.statistics().num_unrecorded == 2
    assert [each.__dict__["fields"] for each in caplog.records if each.message == "usage_lost"] == [{"num_records": 2}]


def test_nothing_written_leaves_no_segment(begin: Begin, tmp_path: Path) -> None:
    begin().close()
    assert read(tmp_path) == {}


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="usage_dir"):
        UsageLog(UsageConfig(directory=tmp_path / "file" / "usage"))
    made = tmp_path / "some" / "where"
    UsageLog(UsageConfig(directory=made)).close()
    assert made.is_dir()


WRITER = """
import sys
from pathlib import Path
from batcher.config import UsageConfig
from batcher.service.stores.usage_log import UsageLog
from tests.usage.examples import record
log = UsageLog(UsageConfig(directory=Path(sys.argv[1]), segment_bytes=65536))
number = 0
while True:
    log.append(record(f"{sys.argv[2]}_{number}"))
    print(number, flush=True)
    number += 1
"""


def test_what_was_told_is_there_after_a_kill(tmp_path: Path) -> None:
    told: list[str] = []
    for name in ("a", "b"):
        command = [sys.executable, "-c", WRITER, str(tmp_path), name]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                told.append(f"{name}_{line.strip()}")
                if line.strip() == "2000":
                    process.send_signal(signal.SIGKILL)
    written = ids(tmp_path)
    assert len(written) == len(set(written))
    assert set(told) <= set(written)
    assert len(list_segments(tmp_path)) > 4
