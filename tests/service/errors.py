"""The one shape that every error has (DESIGN D6), as a check."""

from tests.service.wire_client import Response

RETRYABLE = {408: "true", 409: "true", 422: "false", 429: "true", 504: "true", 529: "true"}


def assert_error(response: Response, status: int, type_: str, *, may_retry: str | None = None) -> str:
    """Asserts that the response is this error in the right shape, its headers included. Returns its message."""
    assert response.status == status, response
    assert response.headers["content-type"] == "application/json"
    document = response.json
    assert set(document) == {"type", "error", "request_id"}
    assert document["type"] == "error"
    assert set(document["error"]) == {"type", "message", "retry_after_s"}
    assert document["error"]["type"] == type_
    assert document["request_id"] == response.headers["x-request-id"]
    assert response.headers.get("x-should-retry") == (may_retry or RETRYABLE.get(status))
    retry_after_s = document["error"]["retry_after_s"]
    assert response.headers.get("retry-after") == (None if retry_after_s is None else str(retry_after_s))
    assert (retry_after_s is not None) == (status in (429, 529))
    assert retry_after_s is None or (type(retry_after_s) is int and 1 <= retry_after_s <= 60)
    message: str = document["error"]["message"]
    assert 0 < len(message) < 600
    return message
