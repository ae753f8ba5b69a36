"""The usage log as it is written: when, where, and what outlives a process that is killed."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from batcher.config import UsageConfig
from batcher.errors import ConfigError
from batcher.service.stores import usage_log
from batcher.service.stores.usage_log import UsageLog
from batcher.usage.segments import list_segments
from tests.service.stores.usage_disk import Begin, Disk, ids, read
from tests.usage.examples import NOON, encode, record, write

ROOT = Path(__file__).parents[3]


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


def test_a_clock_that_was_days_ahead_has_a_segment_of_its_own(begin: Begin, tmp_path: Path) -> None:
    """Else whoever asks for today's records would not find them."""
    log = begin()
    log.append(record("req_ahead", at=NOON + 10 * 86_400))
    log.append(record("req_today"))
    assert {name: len(records) for name, records in read(tmp_path).items()} == {
        "usage-2026-11-30-0001.jsonl": 1,
        "usage-2026-12-10-0001.jsonl": 1,
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


def test_a_pipe_named_like_a_segment_holds_up_no_start(begin: Begin, tmp_path: Path) -> None:
    os.mkfifo(write(tmp_path).with_name("usage-2026-11-30-0002.jsonl"))
    log = begin()
    log.append(record("req_one"))
    assert (tmp_path / "usage-2026-11-30-0003.jsonl").exists()
    assert log.statistics().num_torn == 0


def test_a_name_that_another_process_takes_at_the_same_moment(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, record("req_theirs"))
    monkeypatch.setattr("batcher.service.stores.usage_segments.list_segments", lambda directory: [])
    begin().append(record("req_ours"))
    assert list(read(tmp_path).values()) == [[record("req_theirs")], [record("req_ours")]]


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
