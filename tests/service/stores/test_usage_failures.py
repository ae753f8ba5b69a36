"""The usage log on disks that fill up, break and vanish."""

import logging
from pathlib import Path

import pytest

from batcher.config import OnFailure
from batcher.errors import Overloaded
from batcher.service.stores import usage_log
from batcher.usage.segments import list_segments
from tests.service.stores.usage_disk import Begin, Disk, ids, read, refuses
from tests.usage.examples import NOON, encode, record


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
        assert (caught.value.retry_after_s, caught.value.refused) == (30, "usage_away")
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
    log._sync()
    for segment in list_segments(tmp_path):
        segment.path.unlink()
    tmp_path.rmdir()
    log.append(record("req_1"))  # Nobody knows yet.
    log._sync()
    log.append(record("req_2"))
    assert ids(tmp_path) == ["req_2"]
    assert log.statistics().num_unrecorded == 1, "what was there when it was last looked at, somebody may have read"


def test_a_segment_that_is_gone_when_it_is_left_is_counted_too(begin: Begin, tmp_path: Path) -> None:
    log = begin()
    log.append(record("req_0"))
    log.append(record("req_1", at=NOON + 86_400))  # The day before is left, and waits to be synced.
    for segment in list_segments(tmp_path):
        segment.path.unlink()
    log._sync()
    assert log.statistics().num_unrecorded == 2
    log.append(record("req_2", at=NOON + 86_400))
    for segment in list_segments(tmp_path):
        segment.path.unlink()
    log.close()
    assert log.statistics().num_unrecorded == 3


def test_what_still_waits_at_the_end_is_told(begin: Begin, disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    log = begin()
    disk.left = 0
    log.append(record())
    log.append(record())
    log.close()
    assert log.statistics().num_unrecorded == 2
    assert [each.__dict__["fields"] for each in caplog.records if each.message == "usage_lost"] == [{"num_records": 2}]
