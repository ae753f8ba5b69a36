"""Records and folders to try the usage log on."""

from pathlib import Path

import msgspec

from batcher.types import Outcome
from batcher.usage.record import UsageRecord

DAY = 20_787
"""2026-11-30, in days since 1970."""
NOON = DAY * 86_400.0 + 43_200.0


def record(
    request_id: str = "req_1",
    *,
    key: str = "key_a",
    tenant: str = "acme",
    tier: str = "paid",
    model: str = "simulated",
    tokens: tuple[int, int] = (10, 5),
    at: float = NOON,
    outcome: Outcome = Outcome.OK,
    idempotency: str | None = None,
) -> UsageRecord:
    return UsageRecord(
        request_id=request_id,
        key=key,
        tenant=tenant,
        tier=tier,
        model=model,
        input_tokens=tokens[0],
        output_tokens=tokens[1],
        finished_at=at,
        outcome=outcome,
        idempotency=idempotency,
    )


def encode(*records: UsageRecord) -> bytes:
    return b"".join(msgspec.json.encode(each) + b"\n" for each in records)


def write(directory: Path, *records: UsageRecord, date: str = "2026-11-30", number: int = 1, tail: bytes = b"") -> Path:
    path = directory / f"usage-{date}-{number:04d}.jsonl"
    path.write_bytes(encode(*records) + tail)
    return path
