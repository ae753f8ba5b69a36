"""Lines of the request log for its tests, and how they are read again."""

import json
import time
from typing import Any

import msgspec

from batcher.service.records import RequestLine, Route
from batcher.types import Outcome

LINE = RequestLine(
    at=1_700_000_000.25,
    request_id="req_1",
    route=Route.MESSAGES,
    status=200,
    outcome=Outcome.OK,
    e2e_s=0.5,
    key="key_1",
    tenant="acme",
    tier="paid",
    model="simulated",
    is_streamed=True,
    input_tokens=3,
    output_tokens=4,
    ttft_s=0.25,
    trace_id="0af7651916cd43dd8448eb211c80319c",
)


def parsed(lines: list[bytes]) -> list[dict[str, Any]]:
    assert all(line.endswith(b"\n") for line in lines)
    return [json.loads(line) for line in lines if line.strip()]


def numbered(*numbers: int) -> list[RequestLine]:
    return [msgspec.structs.replace(LINE, request_id=f"req_{number}") for number in numbers]


def until(is_true: Any) -> None:
    deadline = time.monotonic() + 30.0
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.001)
