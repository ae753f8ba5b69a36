"""A folder of segments, read whatever happened to it."""

from pathlib import Path

from batcher.usage.segments import date_of, has_torn_end, list_segments, read_records, segment_path
from tests.usage.examples import DAY, encode, record, write


def test_names_go_and_come(tmp_path: Path) -> None:
    assert date_of(DAY) == "2026-11-30"
    assert segment_path(tmp_path, DAY, 1).name == "usage-2026-11-30-0001.jsonl"
    for day, number in ((DAY, 10_000), (DAY, 2), (DAY - 1, 7), (DAY, 9_999)):
        segment_path(tmp_path, day, number).touch()
    for other in ("usage-2026-13-30-0001.jsonl", "usage-2026-11-30-0001.jsonl.gz", "notes", "usage-2026-11-30-1.jsonl"):
        (tmp_path / other).touch()
    assert [(segment.day, segment.number) for segment in list_segments(tmp_path)] == [
        (DAY - 1, 7),
        (DAY, 2),
        (DAY, 9_999),
        (DAY, 10_000),
    ]


def test_records_in_order_and_zeros_stay_zeros(tmp_path: Path) -> None:
    records = [record("req_1", tokens=(0, 0)), record("req_2", idempotency="d")]
    path = write(tmp_path, *records)
    assert list(read_records(path)) == records
    assert not has_torn_end(path)


def test_a_torn_end_is_no_record_even_if_only_the_newline_is_missing(tmp_path: Path) -> None:
    path = write(tmp_path, record("req_1"), tail=encode(record("req_2"))[:-1])
    assert list(read_records(path)) == [record("req_1"), None]
    assert has_torn_end(path)


def test_an_empty_segment(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert list(read_records(path)) == []
    assert not has_torn_end(path)


def test_damaged_lines_cost_themselves_alone(tmp_path: Path) -> None:
    damaged = [
        b'{"request_id":"req_9","key',
        b"\x00" * 5000,
        b"\xff\xfe",
        b"[]",
        b"{}",
        encode(record()).replace(b'"input_tokens":10', b'"input_tokens":-1').strip(),
        encode(record()).replace(b'"input_tokens":10', b'"input_tokens":1e99').strip(),
        encode(record()).replace(b'"output_tokens":5', b'"output_tokens":null').strip(),
        encode(record(at=1e300)).strip(),
        encode(record(tenant="x" * 70_000)).strip(),
        b"y" * 200_000,
    ]
    path = tmp_path / "usage-2026-11-30-0001.jsonl"
    lines = [line + b"\n" + encode(record("req_2")) for line in damaged]
    path.write_bytes(encode(record("req_1")) + b"\n   \n" + b"".join(lines))
    assert list(read_records(path)) == [record("req_1"), *[None, record("req_2")] * len(damaged)]


def test_what_a_later_version_adds_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "usage-2026-11-30-0001.jsonl"
    path.write_bytes(encode(record()).replace(b"{", b'{"colour":"red",', 1))
    assert list(read_records(path)) == [record()]
