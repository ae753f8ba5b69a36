"""The tree of errors: what a caller is told, and whether a retry can help."""

import pytest

from batcher.errors import (
    BadOutput,
    BatcherError,
    BatchFailed,
    ConfigError,
    Expired,
    IdempotencyConflict,
    IdempotencyMismatch,
    InputFailed,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    NotAuthenticated,
    NotFound,
    Overloaded,
    PermissionDenied,
    PromptTooLong,
    RateLimited,
    RequestTimeout,
    RequestTooLarge,
    SafetyRefused,
    ServerFault,
    ServiceError,
    ShuttingDown,
    WorkerFailed,
)

TABLE: list[tuple[type[ServiceError], int, str, bool]] = [
    (InvalidRequest, 400, "invalid_request_error", False),
    (SafetyRefused, 400, "invalid_request_error", False),
    (PromptTooLong, 400, "invalid_request_error", False),
    (NotAuthenticated, 401, "authentication_error", False),
    (PermissionDenied, 403, "permission_error", False),
    (NotFound, 404, "not_found_error", False),
    (ModelNotFound, 404, "not_found_error", False),
    (MethodNotAllowed, 405, "invalid_request_error", False),
    (RequestTimeout, 408, "timeout_error", True),
    (IdempotencyConflict, 409, "idempotency_error", True),
    (RequestTooLarge, 413, "request_too_large", False),
    (IdempotencyMismatch, 422, "idempotency_error", False),
    (RateLimited, 429, "rate_limit_error", True),
    (Overloaded, 529, "overloaded_error", True),
    (ShuttingDown, 529, "overloaded_error", True),
    (Expired, 504, "timeout_error", True),
    (ServerFault, 500, "api_error", True),
    (InputFailed, 500, "api_error", False),
    (BatchFailed, 500, "api_error", True),
    (WorkerFailed, 500, "api_error", True),
    (BadOutput, 500, "api_error", True),
]


@pytest.mark.parametrize(("kind", "status", "wire_type", "is_retryable"), TABLE)
def test_each_error_knows_its_status_its_wire_type_and_whether_a_retry_helps(
    kind: type[ServiceError], status: int, wire_type: str, is_retryable: bool
) -> None:
    """DESIGN D6."""
    error = kind("why")

    assert (error.status, error.type, error.is_retryable) == (status, wire_type, is_retryable)
    assert error.message == str(error) == "why"
    assert error.retry_after_s is None
    assert isinstance(error, BatcherError)


def every_kind_under(kind: type[ServiceError]) -> set[type[ServiceError]]:
    """Of the tree itself: a component may add to an error what it alone knows of it."""
    below = {other for other in kind.__subclasses__() if other.__module__ == kind.__module__}
    return below.union(*(every_kind_under(other) for other in below))


def test_no_error_is_missing_from_the_table() -> None:
    assert {kind for kind, *_ in TABLE} == every_kind_under(ServiceError)


def test_a_wait_may_be_told_with_any_error() -> None:
    assert Overloaded("full", retry_after_s=7).retry_after_s == 7


def test_a_wrong_setting_is_no_service_error() -> None:
    assert issubclass(ConfigError, BatcherError)
    assert not issubclass(ConfigError, ServiceError)


def test_shutting_down_is_a_kind_of_overload_and_our_faults_are_server_faults() -> None:
    assert issubclass(ShuttingDown, Overloaded)
    assert all(issubclass(kind, ServerFault) for kind in (InputFailed, BatchFailed, WorkerFailed, BadOutput))
